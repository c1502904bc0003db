// The start of a client: connect, authenticate, map.
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <string>

#include "agent/client/client.h"
#include "agent/client/connect.h"
#include "agent/device/platform.h"

namespace tangram {
namespace {

constexpr int kAttachTimeoutMs = 15'000;

const char* OrEmpty(const char* text) { return text == nullptr ? "" : text; }

// TG_SLAB_*.
uint32_t BitOf(v1::SlabFormat format) {
  return format == v1::SLAB_FORMAT_UNSPECIFIED ? 0 : 1u << (format - 1);
}

// tg_options.settings.
Status ReadSettings(const char* lines, google::protobuf::Map<std::string, std::string>* out) {
  std::istringstream in(OrEmpty(lines));
  for (std::string line; std::getline(in, line);) {
    const size_t equal = line.find('=');
    if (equal == 0 || equal == std::string::npos) {
      return {Code::kInvalid, "tg_options.settings: '" + line + "' is not name=value"};
    }
    if (!out->insert({line.substr(0, equal), line.substr(equal + 1)}).second) {
      return {Code::kInvalid, "tg_options.settings: " + line.substr(0, equal) + " is set twice"};
    }
  }
  return OkStatus();
}

}  // namespace

Result<UniqueFd> ConnectTo(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Status{Code::kInvalid, "socket path '" + path + "' must have 1 to " +
                                      std::to_string(sizeof address.sun_path - 1) + " bytes"};
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return Status{Code::kInternal, std::string("socket: ") + std::strerror(errno)};
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return Status{Code::kUnavailable, "cannot connect to " + path + ": " + std::strerror(errno)};
  }
  return fd;
}

Code CodeOf(v1::Refusal::Code code) {
  switch (code) {
    case v1::Refusal::CODE_WRONG_WORLD:
      return Code::kWrongWorld;
    case v1::Refusal::CODE_WRONG_PHASE:
      return Code::kWrongPhase;
    case v1::Refusal::CODE_UNAUTHENTICATED:
      return Code::kUnauthenticated;
    default:
      return Code::kEngine;
  }
}

Client::Client(const tg_options& options)
    : ready_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      socket_path_(OrEmpty(options.socket_path)),
      token_(OrEmpty(options.token)),
      mesh_(OrEmpty(options.mesh_endpoint)),
      frontend_(OrEmpty(options.frontend)),
      cuda_driver_(OrEmpty(options.cuda_driver)),
      device_(options.device),
      kv_block_tokens_(options.kv_block_tokens) {
  const uint32_t formats =
      options.slab_formats == 0 ? uint32_t{TG_SLAB_GRANULE_MAJOR} : options.slab_formats;
  for (const v1::SlabFormat format : {v1::SLAB_FORMAT_GRANULE_MAJOR, v1::SLAB_FORMAT_ROW_MAJOR}) {
    if ((formats & BitOf(format)) != 0) capabilities_.add_slab_formats(format);
  }
  capabilities_.set_even_shards_only(options.even_shards_only != 0);
  capabilities_.set_mixed_layouts(options.mixed_layouts != 0);
  capabilities_.set_attention_data_only(options.attention_data_only != 0);
}

v1::EngineMessage Client::AttachMessage() const {
  v1::EngineMessage message;
  v1::Attach* attach = message.mutable_attach();
  attach->set_token(token_);
  attach->set_device(device_);
  *attach->mutable_capabilities() = capabilities_;
  attach->set_endpoint(mesh_);
  attach->set_frontend(frontend_);
  attach->set_kv_block_tokens(kv_block_tokens_);
  return message;
}

Result<std::unique_ptr<Client>> Client::Attach(const tg_options& options) {
  auto client = std::unique_ptr<Client>(new Client(options));
  TANGRAM_RETURN_IF_ERROR(ReadSettings(options.settings, client->capabilities_.mutable_settings()));
  auto socket = ConnectTo(OrEmpty(options.socket_path));
  if (!socket.ok()) return socket.status();
  client->channel_ = std::make_unique<FrameChannel>(std::move(*socket));
  TANGRAM_RETURN_IF_ERROR(client->Send(client->AttachMessage()));

  Frame reply;
  do {
    auto frame = client->channel_->Receive(kAttachTimeoutMs);
    if (!frame.ok()) return Status{Code::kUnavailable, frame.status().message()};
    if (!frame->has_value()) {
      return Status{Code::kUnavailable, "the agent did not reply to the attach within 15 s"};
    }
    reply = std::move(**frame);
    client->TakeDescriptors(reply.message.fd_index(), &reply.fds);
  } while (reply.message.has_descriptors());
  if (reply.message.has_refused()) {
    const v1::Refusal& refusal = reply.message.refused().refusal();
    return Status{CodeOf(refusal.code()), refusal.message()};
  }
  if (!reply.message.has_attached()) {
    return Status{Code::kInvalid, "the agent replied to the attach with an unexpected message"};
  }
  TANGRAM_RETURN_IF_ERROR(client->Open(reply.message.attached()));
  TANGRAM_RETURN_IF_ERROR(client->ReadFrom(client->channel_));
  return client;
}

Status Client::Open(const v1::Attached& attached) {
  auto geometry = layout::GeometryView::Make(attached.geometry());
  if (!geometry.ok()) return geometry.status();
  geometry_.emplace(std::move(*geometry));
  if (attached.bank_pitch() != geometry_->bank_pitch() ||
      attached.expert_pitch() != geometry_->expert_pitch()) {
    return {Code::kBadGeometry,
            "the agent's pitches (bank " + std::to_string(attached.bank_pitch()) + ", expert " +
                std::to_string(attached.expert_pitch()) +
                ") differ from those of this library; use the library of the agent's version"};
  }
  world_ = attached.world();
  member_ = attached.member().id();
  config_ = attached.config_json();
  platform_ = attached.platform();

  if (attached.banks() > (1u << 20) || attached.dense_bytes() > (uint64_t{1} << 44)) {
    return {Code::kInvalid, "attach: " + std::to_string(attached.banks()) + " banks, " +
                                std::to_string(attached.dense_bytes()) + " dense bytes"};
  }
  dense_offset_ = attached.banks() * geometry_->bank_pitch();
  device::PlatformOptions options{.name = attached.platform(),
                                  .map_bytes = geometry_->page_bytes(),
                                  .hugetlb = attached.hugetlb(),
                                  .sizes_only = true};  // the agent knows the kind of memory
  if (!cuda_driver_.empty()) options.driver = cuda_driver_;
  auto platform = device::MakePlatform(options);
  if (!platform.ok()) return platform.status();
  device::RankDevices devices = (*platform)->Importers();
  using device::Access;
  const auto reserve = [](std::unique_ptr<device::Device> device, uint64_t bytes, Access access,
                          Region* out) {
    auto region = Region::Reserve(std::move(device), bytes, access);
    if (!region.ok()) return region.status();
    *out = std::move(*region);
    return OkStatus();
  };
  const uint64_t weights =
      dense_offset_ + layout::RoundUp(attached.dense_bytes(), geometry_->page_bytes());
  TANGRAM_RETURN_IF_ERROR(reserve(std::move(devices.weights), weights, Access::kRead, &weights_));
  TANGRAM_RETURN_IF_ERROR(
      reserve(std::move(devices.kv), attached.kv_bytes(), Access::kReadWrite, &kv_));
  TANGRAM_RETURN_IF_ERROR(kv_.Map(0, attached.kv(), descriptors_));
  TANGRAM_RETURN_IF_ERROR(
      reserve(std::move(devices.control), attached.control_bytes(), Access::kReadWrite, &control_));
  uint64_t backed = 0;
  for (const v1::Extent& extent : attached.control()) backed += extent.length();
  const uint64_t wanted = GatePageBytes(geometry_->moe_layers(), geometry_->experts());
  if (backed < wanted) {
    return {Code::kInvalid, "control region of " + std::to_string(backed) + " bytes, want " +
                                std::to_string(wanted)};
  }
  TANGRAM_RETURN_IF_ERROR(control_.Map(0, attached.control(), descriptors_));
  for (const Extents* extents : {&attached.kv(), &attached.control()}) {
    for (const v1::Extent& extent : *extents) pinned_.insert(extent.fd_index());
  }
  page_ = reinterpret_cast<GatePage*>(control_.data());
  if (page_->magic != GatePage::kMagic || page_->moe_layers != geometry_->moe_layers() ||
      page_->experts != geometry_->experts()) {
    return {Code::kInvalid, "the control page has another version or model"};
  }
  gate_ = EngineGate(page_);
  TANGRAM_RETURN_IF_ERROR(OpenModel(attached));

  if (attached.has_layout()) {
    TANGRAM_RETURN_IF_ERROR(MapAll(attached.mappings(), nullptr));
    auto maps =
        Maps::Build(std::make_shared<const v1::Layout>(attached.layout()),
                    layout::HashOf(attached.layout()), *geometry_, member_, attached.peers());
    if (!maps.ok()) return maps.status();
    (*maps)->Resolve(weights_.data(), *geometry_);
    current_ = std::move(*maps);
  }
  return OkStatus();
}

Status Client::OpenModel(const v1::Attached& attached) {
  const v1::Geometry& geometry = geometry_->proto();
  model_.struct_size = sizeof model_;
  model_.world = world_.c_str();
  model_.member = member_.c_str();
  model_.config_json = config_.data();
  model_.config_json_size = config_.size();
  model_.layers = geometry.layers();
  model_.moe_layers = geometry_->moe_layers();
  model_.hidden = geometry.hidden();
  model_.moe_inner = geometry.moe_inner();
  model_.experts = geometry.experts();
  model_.top_k = geometry.top_k();
  model_.query_heads = geometry.query_heads();
  model_.kv_heads = geometry.kv_heads();
  model_.head_dim = geometry.head_dim();
  model_.granule_rows = geometry.granule_rows();
  model_.granules = geometry_->granules();
  model_.granule_bytes = geometry.granule_bytes();
  model_.expert_tail_bytes = geometry.expert_tail_bytes();
  model_.dtype = geometry.dtype();
  model_.slab_format = BitOf(geometry.slab_format());
  for (const v1::Section& section : geometry.sections()) {
    sections_.push_back({section.lines(), section.bytes()});
  }
  model_.sections = sections_.empty() ? nullptr : sections_.data();
  model_.section_count = sections_.size();
  model_.section_size = sizeof(tg_section);
  model_.kv_head_token_bytes = static_cast<uint32_t>(geometry.kv_head_token_bytes());
  model_.platform = platform_.c_str();
  model_.page_bytes = geometry_->page_bytes();
  model_.banks = attached.banks();
  model_.kv = kv_.data();
  model_.kv_bytes = attached.kv_bytes();
  model_.dense = weights_.data() + dense_offset_;
  model_.dense_bytes = attached.dense_bytes();
  dense_names_.reserve(static_cast<size_t>(attached.dense_tensors_size()));
  for (const v1::DenseTensor& tensor : attached.dense_tensors()) {
    if (tensor.shape_size() > 4 || tensor.offset() > attached.dense_bytes() ||
        tensor.length() > attached.dense_bytes() - tensor.offset()) {
      return {Code::kInvalid, "dense tensor " + tensor.name() + ": " +
                                  std::to_string(tensor.shape_size()) + " dimensions, " +
                                  std::to_string(tensor.length()) + " bytes at " +
                                  std::to_string(tensor.offset()) + " of " +
                                  std::to_string(attached.dense_bytes())};
    }
    tg_tensor out{};
    out.name = dense_names_.emplace_back(tensor.name()).c_str();
    out.dtype = tensor.dtype();
    out.rank = static_cast<uint32_t>(tensor.shape_size());
    for (int i = 0; i < tensor.shape_size(); ++i) out.shape[i] = tensor.shape(i);
    out.data = weights_.data() + dense_offset_ + tensor.offset();
    dense_tensors_.push_back(out);
  }
  return OkStatus();
}

}  // namespace tangram
