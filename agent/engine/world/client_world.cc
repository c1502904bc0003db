#include "agent/engine/world/client_world.h"

#include "agent/device/platform.h"

namespace tangram::engine {
namespace {

Status ToStatus(tg_code code, const tg_error& error, const char* call) {
  const std::string message = std::string(call) + ": " + error.message;
  switch (code) {
    case TG_OK:
      return OkStatus();
    case TG_AGAIN:
    case TG_LATER:
    case TG_DISCONNECTED:
      return {Code::kUnavailable, message};
    case TG_REFUSED:
      return {Code::kEngine, message};
    case TG_NO_ROOM:
      return {Code::kNoMemory, message};
    case TG_INVALID:
      return {Code::kInvalid, message};
  }
  return {Code::kInternal, message};
}

}  // namespace

Result<std::unique_ptr<ClientWorld>> ClientWorld::Attach(const Options& options) {
  tg_options raw = TG_INIT(tg_options);
  raw.socket_path = options.agent_socket.c_str();
  raw.token = options.token.c_str();
  raw.device = options.device;
  raw.mesh_endpoint = options.mesh_endpoint.c_str();
  raw.frontend = options.frontend.c_str();
  raw.mixed_layouts = 1;
  raw.attention_data_only = options.attention_data_only ? 1 : 0;
  raw.even_shards_only = options.even_shards_only ? 1 : 0;
  raw.slab_formats = options.slab_formats;
  raw.kv_block_tokens = options.block_tokens;
  raw.cuda_driver = options.cuda_driver.c_str();
  raw.settings = options.settings.c_str();
  tg_client* client = nullptr;
  tg_error error = TG_INIT(tg_error);
  TANGRAM_RETURN_IF_ERROR(ToStatus(tg_attach(&raw, &client, &error), error, "attach"));
  std::unique_ptr<ClientWorld> world(new ClientWorld(client));
  TANGRAM_RETURN_IF_ERROR(world->OpenDevice(options));
  return world;
}

// All addresses are of this process, also those that the library mapped. So copies need only the
// same platform.
Status ClientWorld::OpenDevice(const Options& options) {
  auto platform = device::MakePlatform(
      {.name = model().platform, .map_bytes = model().page_bytes, .driver = options.cuda_driver});
  if (!platform.ok()) return platform.status();
  device_ = (*platform)->Importers().kv;
  return OkStatus();
}

std::span<const tg_tensor> ClientWorld::dense() const {
  const tg_tensor* tensors = nullptr;
  size_t size = 0;  // this program is built with its library: sizeof(tg_tensor)
  const size_t count = tg_dense_tensors(client_.get(), &tensors, &size);
  return {tensors, count};
}

Result<tg_event> ClientWorld::Poll(int timeout_ms) {
  tg_event event = TG_INIT(tg_event);
  tg_error error = TG_INIT(tg_error);
  const tg_code code = tg_poll(client_.get(), timeout_ms, &event, &error);
  if (code == TG_AGAIN) {
    event.kind = TG_EVENT_NONE;
    return event;
  }
  TANGRAM_RETURN_IF_ERROR(ToStatus(code, error, "poll"));
  return event;
}

Status ClientWorld::Prepared(uint64_t attempt, bool ok, const std::string& message) {
  tg_error error = TG_INIT(tg_error);
  return ToStatus(tg_prepared(client_.get(), attempt, ok ? 1 : 0, message.c_str(), &error), error,
                  "prepared");
}

bool ClientWorld::Decide(std::span<const tg_vote> words) {
  return tg_gate_decide(client_.get(), words.data(), words.size()) == TG_GATE_GO;
}

void ClientWorld::Decline(const std::string& reason) {
  tg_gate_decline(client_.get(), reason.c_str());
}

void ClientWorld::Missed(std::span<const tg_missed> missed) {
  // The library rejects only reports that no exchange makes.
  (void)tg_missing(client_.get(), missed.data(), missed.size(), sizeof(tg_missed), nullptr);
}

void ClientWorld::SetUnreachable(std::span<const uint32_t> ranks) {
  tg_unreachable(client_.get(), ranks.data(), ranks.size());
}

Status ClientWorld::Commit() {
  tg_error error = TG_INIT(tg_error);
  return ToStatus(tg_gate_commit(client_.get(), &error), error, "gate commit");
}

Status ClientWorld::Join(int timeout_ms) {
  tg_error error = TG_INIT(tg_error);
  return ToStatus(tg_gate_join(client_.get(), timeout_ms, &error), error, "gate join");
}

Status ClientWorld::PullKv(std::span<const tg_kv_move> moves) {
  tg_error error = TG_INIT(tg_error);
  return ToStatus(
      tg_kv_begin(client_.get(), moves.data(), moves.size(), sizeof(tg_kv_move), &error), error,
      "kv pull");
}

Status ClientWorld::StageKv(std::span<const tg_kv_move> moves) {
  tg_error error = TG_INIT(tg_error);
  return ToStatus(
      tg_kv_stage(client_.get(), moves.data(), moves.size(), sizeof(tg_kv_move), &error), error,
      "kv stage");
}

Result<WorldView::StagedKv> ClientWorld::KvStaged(int timeout_ms) {
  uint64_t bytes = 0;
  tg_error error = TG_INIT(tg_error);
  const tg_code code = tg_kv_staged(client_.get(), timeout_ms, &bytes, &error);
  if (code == TG_AGAIN) return StagedKv{};
  if (code == TG_LATER) return StagedKv{StagedKv::State::kLater};
  TANGRAM_RETURN_IF_ERROR(ToStatus(code, error, "kv staged"));
  return StagedKv{StagedKv::State::kHere, bytes};
}

void ClientWorld::Count(uint32_t moe_ordinal, uint32_t expert, uint64_t tokens) {
  tg_count(client_.get(), moe_ordinal, expert, tokens);
}

void ClientWorld::CountExecuted(uint32_t moe_ordinal, uint32_t expert, uint64_t tokens) {
  tg_count_executed(client_.get(), moe_ordinal, expert, tokens);
}

}  // namespace tangram::engine
