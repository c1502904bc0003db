#include "agent/server/testing/test_memory.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>

#include "agent/gate/gate_page.h"
#include "agent/layout/testing.h"

namespace tangram::testing {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kFile = 2 * kPage;  // for weights

std::mutex g_mu;
std::map<std::string, std::pair<uint8_t*, uint64_t>> g_kv;  // by member, all of this process
std::function<void(const std::stop_token&)> g_before_kv_pull;

uint8_t* MapAll(int fd, uint64_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) std::abort();
  return static_cast<uint8_t*>(data);
}

SharedFd NewMemfd(const char* name, uint64_t bytes) {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) std::abort();
  return std::make_shared<const UniqueFd>(std::move(fd));
}

}  // namespace

uint64_t StampOf(uint32_t layer, uint32_t expert, uint32_t granule) {
  return uint64_t{1} << 60 | uint64_t{layer} << 40 | uint64_t{expert} << 20 | granule;
}

void SetBeforeKvPull(std::function<void(const std::stop_token&)> call) {
  const std::scoped_lock lock(g_mu);
  g_before_kv_pull = std::move(call);
}

TestMemory::TestMemory(layout::GeometryView geometry, std::string member, uint32_t banks,
                       uint64_t pool_bytes, uint64_t kv_bytes, PeerClient* peers)
    : geometry_(std::move(geometry)),
      member_(std::move(member)),
      banks_(banks),
      pool_bytes_(pool_bytes),
      kv_bytes_(kv_bytes),
      control_bytes_(
          layout::RoundUp(GatePageBytes(geometry_.moe_layers(), geometry_.experts()), kPage)),
      peers_(peers) {
  const uint64_t weights =
      banks_ * geometry_.bank_pitch() + layout::RoundUp(geometry_.proto().dense_bytes(), kPage);
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  void* range = mmap(nullptr, layout::RoundUp(weights, kFile), PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) std::abort();
  weights_ = static_cast<uint8_t*>(range);
  for (uint64_t at = 0; at < weights; at += kFile) {
    const SharedFd& fd = weights_fds_.emplace_back(NewMemfd("test-weights", kFile));
    if (mmap(weights_ + at, kFile, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd->get(), 0) ==
        MAP_FAILED) {
      std::abort();
    }
    fcntl(fd->get(), F_ADD_SEALS, kSeals | F_SEAL_FUTURE_WRITE);
  }
  kv_fd_ = NewMemfd("test-kv", kv_bytes_);
  control_fd_ = NewMemfd("test-control", control_bytes_);
  kv_ = MapAll(kv_fd_->get(), kv_bytes_);
  control_ = MapAll(control_fd_->get(), control_bytes_);
  fcntl(kv_fd_->get(), F_ADD_SEALS, kSeals);
  fcntl(control_fd_->get(), F_ADD_SEALS, kSeals);
  const std::scoped_lock lock(g_mu);
  g_kv[member_] = {kv_, kv_bytes_};
}

TestMemory::~TestMemory() {
  const std::scoped_lock lock(g_mu);
  g_kv.erase(member_);
  munmap(weights_, weights_fds_.size() * kFile);
  munmap(kv_, kv_bytes_);
  munmap(control_, control_bytes_);
}

EngineRegions TestMemory::Regions() {
  EngineRegions out;
  out.kv = {{kv_fd_}, {{0, layout::RoundUp(kv_bytes_, kPage)}}};
  out.control = {{control_fd_}, {{0, control_bytes_}}};
  out.dense_bytes = geometry_.proto().dense_bytes();
  out.platform = "host";
  out.kv_bytes = kv_bytes_;
  out.control_bytes = control_bytes_;
  out.banks = banks_;
  v1::DenseTensor& tensor = out.dense_tensors.emplace_back();
  tensor.set_name("model.norm.weight");
  tensor.set_dtype(v1::DTYPE_BF16);
  tensor.add_shape(16);
  tensor.set_offset(256);
  tensor.set_length(32);
  out.control_page = control_;
  return out;
}

MemoryFigures TestMemory::Memory() {
  const std::scoped_lock lock(mu_);
  const uint64_t mapped = held_.size() * kPage;
  return {pool_bytes_, pool_bytes_ - mapped, mapped, {"test", "pages", "", "", ""}};
}

v1::Inventory TestMemory::Held() { return {}; }

TestMemory::Pages TestMemory::PagesOf(const v1::Layout& layout, int32_t rank) const {
  Pages out;
  if (rank < 0) return out;
  const auto pieces = layout::PiecesOf(layout, geometry_, static_cast<uint32_t>(rank));
  for (const uint64_t key : layout::testing::PagesOf(pieces, geometry_)) {
    const uint64_t bank = key >> 40;
    const uint64_t page = key & ((uint64_t{1} << 40) - 1);
    out.insert(bank * (geometry_.bank_pitch() / kPage) + page);
  }
  if (layout::HoldsDense(layout, static_cast<uint32_t>(rank))) {
    const uint64_t first = banks_ * geometry_.bank_pitch() / kPage;
    for (uint64_t p = 0; p * kPage < geometry_.proto().dense_bytes(); ++p) out.insert(first + p);
  }
  return out;
}

Status TestMemory::Prepare(uint64_t, const v1::Layout& target, int32_t rank,
                           const v1::RankPart& part) {
  const std::scoped_lock lock(mu_);
  Pages both = PagesOf(target, rank);
  Pages next = both;
  both.insert(current_.begin(), current_.end());
  if (both.size() * kPage > pool_bytes_) {
    return {Code::kNoMemory, "the peak is " + std::to_string(both.size() * kPage) +
                                 " bytes, the pool has " + std::to_string(pool_bytes_)};
  }
  next_ = std::move(next);
  held_ = std::move(both);
  target_ = target;
  target_rank_ = rank;
  part_ = part;
  return OkStatus();
}

// Number of calls that a peer may leave without a reply.
constexpr int kLate = 10;

Status TestMemory::Stage(const v1::Header& header, const Origins& origins, StageProgress* progress,
                         std::stop_token stop) {
  for (const v1::PeerAddress& peer : origins.peers) {
    if (peer.member() == member_) continue;
    v1::OpenPullRequest request;
    *request.mutable_header() = header;
    request.set_rank(peer.rank());
    request.set_member(peer.member());
    auto opened = peers_->OpenPull(peer.agent(), request, stop);
    // An unreachable peer fails immediately. A peer whose reply is late, because the machine is
    // busy, is queried again.
    for (int late = 0; !opened.ok() && !stop.stop_requested();
         opened = peers_->OpenPull(peer.agent(), request, stop)) {
      const Code code = opened.status().code();
      if (code != Code::kNotHeld && (code != Code::kUnavailable || ++late == kLate)) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (!opened.ok()) return opened.status();
    if (opened->token() != peer.member()) return {Code::kCorrupt, "another rank's token"};
  }
  if (target_rank_ < 0) return OkStatus();
  for (const auto& piece :
       layout::PiecesOf(*target_, geometry_, static_cast<uint32_t>(target_rank_))) {
    uint8_t* at = weights_ + piece.bank * geometry_.bank_pitch() + piece.offset;
    for (uint32_t i = 0; i < piece.run.count; ++i) {
      const uint64_t stamp = StampOf(piece.layer, piece.expert, piece.run.start + i);
      std::memcpy(at + i * geometry_.granule_bytes(), &stamp, sizeof stamp);
      progress->checkpoint += geometry_.granule_bytes();
      progress->done += geometry_.granule_bytes();
    }
  }
  return OkStatus();
}

Status TestMemory::Commit() {
  const std::scoped_lock lock(mu_);
  current_ = next_;
  return OkStatus();
}

void TestMemory::Abort() {
  const std::scoped_lock lock(mu_);
  held_ = current_;
  target_.reset();
}

Status TestMemory::Retire() {
  const std::scoped_lock lock(mu_);
  held_ = current_;
  return OkStatus();
}

void TestMemory::Keep() {
  const std::scoped_lock lock(mu_);
  target_.reset();  // held_ stays, old and new
}

Result<std::unique_ptr<RankMemory::Adoption>> TestMemory::Examine(const v1::Resume&, int32_t,
                                                                  KeptFds, std::stop_token) {
  return Status{Code::kInvalid, "this memory is of one process"};
}

Status TestMemory::Adopt(Adoption*) { return {Code::kInvalid, "this memory is of one process"}; }

void TestMemory::Reset(const std::string& member) {
  const std::scoped_lock lock(mu_);
  target_.reset();
  held_.clear();
  current_.clear();
  member_ = member;
}

EngineMappings TestMemory::Mappings(const Pages& pages) const {
  const uint64_t bank_pitch = geometry_.bank_pitch(), banks_bytes = banks_ * bank_pitch;
  EngineMappings out;
  std::map<uint64_t, uint32_t> named;  // index in out.descriptors, by file
  for (const uint64_t page : pages) {
    const uint64_t at = page * kPage;
    v1::Mapping& mapping = out.mappings.emplace_back();
    mapping.set_dense(at >= banks_bytes);
    mapping.set_bank(mapping.dense() ? 0 : static_cast<uint32_t>(at / bank_pitch));
    mapping.set_offset(mapping.dense() ? at - banks_bytes : at % bank_pitch);
    const auto [file, fresh] =
        named.try_emplace(at / kFile, static_cast<uint32_t>(out.descriptors.size()));
    if (fresh) out.descriptors.push_back(weights_fds_[at / kFile]);
    v1::Extent* extent = mapping.add_extents();
    extent->set_fd_index(file->second);
    extent->set_offset(at % kFile);
    extent->set_length(kPage);
  }
  return out;
}

Result<EngineMappings> TestMemory::CurrentMappings() {
  const std::scoped_lock lock(mu_);
  return Mappings(current_);
}

Result<EngineMappings> TestMemory::NewMappings() {
  const std::scoped_lock lock(mu_);
  Pages fresh;
  std::set_difference(next_.begin(), next_.end(), current_.begin(), current_.end(),
                      std::inserter(fresh, fresh.end()));
  return Mappings(fresh);
}

std::vector<v1::Mapping> TestMemory::DroppedMappings() {
  const std::scoped_lock lock(mu_);
  Pages dropped;
  std::set_difference(held_.begin(), held_.end(), current_.begin(), current_.end(),
                      std::inserter(dropped, dropped.end()));
  return Mappings(dropped).mappings;
}

Result<v1::OpenPullResponse> TestMemory::OpenPull(const v1::OpenPullRequest&, const std::string&) {
  v1::OpenPullResponse out;
  out.set_token(member_);
  return out;
}

Result<uint64_t> TestMemory::KvPull(const v1::KvPull& pull,
                                    const std::vector<v1::PeerAddress>& peers, StageProgress*,
                                    std::stop_token stop) {
  std::function<void(const std::stop_token&)> before;
  {
    const std::scoped_lock lock(g_mu);
    before = g_before_kv_pull;
  }
  if (before) before(stop);
  if (stop.stop_requested()) return Status{Code::kUnavailable, "stopped"};
  uint64_t bytes = 0;
  const std::scoped_lock lock(g_mu);
  for (int i = 0; i < pull.length_size(); ++i) {
    const auto peer = std::find_if(peers.begin(), peers.end(), [&](const v1::PeerAddress& p) {
      return p.rank() == pull.source_rank(i);
    });
    if (peer == peers.end()) return Status{Code::kBadPlan, "no such source rank"};
    const auto& [data, size] = g_kv.at(peer->member());
    if (pull.source_offset(i) + pull.length(i) > size ||
        pull.target_offset(i) + pull.length(i) > kv_bytes_) {
      return Status{Code::kBadPlan, "KV move outside the region"};
    }
    std::memmove(kv_ + pull.target_offset(i), data + pull.source_offset(i), pull.length(i));
    bytes += pull.length(i);
  }
  return bytes;
}

namespace {

class TestHost : public MemoryHost {
 public:
  TestHost(layout::GeometryView geometry, const AgentConfig& config,
           const std::vector<v1::Member>& members, PeerClient* peers)
      : geometry_(std::move(geometry)) {
    for (const v1::Member& member : members) {
      ranks_.push_back(std::make_unique<TestMemory>(geometry_, member.id(),
                                                    geometry_.moe_layers() + config.spare_banks,
                                                    config.memory_bytes, config.kv_bytes, peers));
    }
  }
  const layout::GeometryView& geometry() const override { return geometry_; }
  const std::string& config_json() const override { return config_json_; }
  Status CheckSource() const override { return OkStatus(); }
  RankMemory* memory(uint32_t device) override { return ranks_[device].get(); }
  uint16_t data_port() const override { return 1; }

 private:
  layout::GeometryView geometry_;
  std::string config_json_ = R"({"model_type":"test"})";
  std::vector<std::unique_ptr<TestMemory>> ranks_;
};

}  // namespace

MemoryFactory TestHostOf(const v1::Geometry& shape) {
  return [shape](const AgentConfig& config, const std::vector<v1::Member>& members,
                 PeerClient* peers) -> Result<std::unique_ptr<MemoryHost>> {
    auto geometry = layout::GeometryView::Make(shape);
    if (!geometry.ok()) return geometry.status();
    return std::unique_ptr<MemoryHost>(
        std::make_unique<TestHost>(std::move(*geometry), config, members, peers));
  };
}

}  // namespace tangram::testing
