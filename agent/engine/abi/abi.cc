// The C functions of tangram/engine.h.
#include "agent/client/abi.h"

#include <atomic>
#include <memory>
#include <string>

#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/base/utf8.h"
#include "agent/client/versioned.h"
#include "agent/engine/abi/called.h"
#include "agent/engine/host/host.h"
#include "agent/engine/turn/turn.h"

struct tge_engine {
  std::atomic<bool> stop{false};
  uint32_t block_tokens = 0;
  tangram::engine::Turn::Options turn;
  std::unique_ptr<tangram::engine::Host> host;
  std::unique_ptr<tangram::engine::Called> called;  // while it runs
};

namespace {

using tangram::Code;
using tangram::Status;
using tangram::abi::Fail;
using tangram::abi::Guarded;
using tangram::engine::Host;

tg_code Told(const Status& status, tg_error* error) {
  switch (status.code()) {
    case Code::kOk:
      return Fail(error, TG_OK, "");
    case Code::kUnavailable:
      return Fail(error, TG_AGAIN, status.message().c_str());
    case Code::kNoMemory:
      return Fail(error, TG_NO_ROOM, status.message().c_str());
    default:
      return tangram::abi::Done(status, error);
  }
}

std::string Text(const char* text) { return text == nullptr ? "" : text; }

Status Open(const tge_options& o, tge_engine* out) {
  if (o.block_tokens == 0) return {Code::kInvalid, "tge_options: block_tokens is 0"};
  tangram::SetUpLog("engine", o.log_level == nullptr ? "info" : o.log_level, false,
                    {{"device", std::to_string(o.device)}});
  Host::Options host;
  host.world.agent_socket = Text(o.agent_socket);
  host.world.device = o.device;
  host.world.block_tokens = o.block_tokens;
  host.world.attention_data_only = true;
  host.world.even_shards_only = o.even_shards_only != 0;
  host.world.slab_formats = o.slab_formats;
  host.world.settings = Text(o.settings);
  host.token_file = Text(o.token_file);
  host.agent_wait = std::chrono::seconds(o.agent_wait_seconds);
  host.mesh_listen = Text(o.mesh_listen);
  host.serve_listen = Text(o.serve_listen);
  host.advertise = Text(o.advertise);
  host.tls = {Text(o.tls_ca), Text(o.tls_cert), Text(o.tls_key)};
  host.insecure_fabric = o.insecure_fabric != 0;
  host.ready_file = Text(o.ready_file);
  const auto milliseconds = [](uint32_t given, auto* to) {
    if (given > 0) *to = std::chrono::milliseconds(given);
  };
  milliseconds(o.max_peer_timeout_ms, &out->turn.patience.most);
  milliseconds(o.min_peer_timeout_ms, &out->turn.patience.least);
  milliseconds(o.idle_pause_ms, &out->turn.idle_pause);
  milliseconds(o.min_step_ms, &out->turn.least_step);
  if (o.kv_ahead_ms != 0) out->turn.kv_ahead = std::chrono::milliseconds(o.kv_ahead_ms);
  tangram::fault::Follow(Text(o.fault_dir));  // before any thread passes a fault point
  out->block_tokens = o.block_tokens;
  auto opened = Host::Open(std::move(host), out->stop);
  if (!opened.ok()) return opened.status();
  out->host = std::move(*opened);
  return tangram::OkStatus();
}

bool Whole(const tge_backend& b) {
  return b.submit != nullptr && b.cancel != nullptr && b.measure != nullptr && b.fits != nullptr &&
         b.announce != nullptr && b.compute != nullptr && b.kv_layout != nullptr &&
         b.manifest != nullptr && b.adopt != nullptr && b.drop != nullptr && b.gone != nullptr &&
         b.enter != nullptr && b.leave != nullptr;
}

// All callbacks of KV ahead, or none.
bool Even(const tge_backend& b) {
  const bool some = b.progress != nullptr || b.reserve != nullptr || b.unreserve != nullptr;
  return !some || (b.progress != nullptr && b.reserve != nullptr && b.unreserve != nullptr);
}

// For functions that return nothing. They cannot report an error, so a request or a token would be
// lost, and no exception may cross C. So the process ends, as for a rank that dies.
template <typename F>
void OrEnd(F&& call) noexcept {
  call();
}

}  // namespace

extern "C" {

tg_code tge_open(const tge_options* options, tge_engine** out, tg_error* error) {
  return Guarded(error, [&] {
    auto known =
        tangram::ReadKnown(options, TANGRAM_UP_TO(tge_options, slab_formats), "tge_options");
    if (!known.ok()) return Told(known.status(), error);
    auto engine = std::make_unique<tge_engine>();
    if (const Status opened = Open(*known, engine.get()); !opened.ok()) return Told(opened, error);
    *out = engine.release();
    return Fail(error, TG_OK, "");
  });
}

void tge_close(tge_engine* engine) { delete engine; }

tg_client* tge_client(tge_engine* engine) { return engine->host->world().client(); }

void tge_manifest_add(tge_manifest* manifest, const tge_request* request) {
  OrEnd([&] {
    tangram::engine::BlockRequest& to = manifest->requests.emplace_back();
    to.request = request->request;
    to.gateway = Text(request->gateway);
    to.running = request->running != 0;
    to.computed = request->computed;
    to.reserved = request->reserved;
    to.blocks.assign(request->blocks, request->blocks + request->block_count);
    const auto* const state = static_cast<const uint8_t*>(request->state);
    if (state != nullptr) to.state.assign(state, state + request->state_size);
    // An engine built before the member existed leaves it 0.
    if (request->struct_size >= TANGRAM_UP_TO(tge_request, generation)) {
      to.generation = request->generation;
    }
  });
}

tg_code tge_run(tge_engine* engine, const tge_backend* backend, tg_error* error) {
  return Guarded(error, [&] {
    auto known = tangram::ReadKnown(backend, TANGRAM_UP_TO(tge_backend, leave), "tge_backend");
    if (!known.ok()) return Told(known.status(), error);
    if (!Whole(*known)) return Fail(error, TG_INVALID, "tge_backend: a callback is null");
    if (!Even(*known)) {
      return Fail(error, TG_INVALID,
                  "tge_backend: set progress, reserve and unreserve together, or none of them");
    }
    Host& host = *engine->host;
    engine->called = std::make_unique<tangram::engine::Called>(*known, engine->block_tokens,
                                                               &host.world(), &host.hub());
    tangram::engine::Turn turn(engine->turn, &host.world(), &host.mesh(), &host.inbox(),
                               &host.hub(), engine->called.get());
    Status status = host.Ready();
    if (status.ok()) status = turn.Run(engine->stop);
    engine->called.reset();
    return Told(status, error);
  });
}

void tge_stop(tge_engine* engine) { engine->stop = true; }

tg_code tge_exchange(tge_engine* engine, uint64_t sequence, const tge_bytes* send, tge_bytes* recv,
                     tg_error* error) {
  return Guarded(error,
                 [&] { return Told(engine->called->Exchange(sequence, send, recv), error); });
}

tg_code tge_pieces(const tge_engine* engine, uint32_t layer, const tge_piece** out, size_t* count,
                   size_t* piece_size, tg_error* error) {
  return Guarded(error, [&] {
    if (engine->called == nullptr) {
      return Fail(error, TG_INVALID, "tge_pieces called before tge_run");
    }
    return Told(engine->called->Pieces(layer, out, count, piece_size), error);
  });
}

tg_code tge_dispatch(tge_engine* engine, const tge_rows* rows, tge_dispatched* arrived,
                     tg_error* error) {
  return Guarded(error, [&] {
    auto known = tangram::ReadKnown(rows, TANGRAM_UP_TO(tge_rows, weights), "tge_rows");
    if (!known.ok()) return Told(known.status(), error);
    const Status fits =
        tangram::CheckKnown(arrived, TANGRAM_UP_TO(tge_dispatched, weights), "tge_dispatched");
    if (!fits.ok()) return Told(fits, error);
    tge_dispatched came{};
    const Status done = engine->called->Dispatch(*known, &came);
    if (done.ok()) tangram::WriteKnown(arrived, came);
    return Told(done, error);
  });
}

tg_code tge_combine(tge_engine* engine, const float* results, float* y, tg_error* error) {
  return Guarded(error, [&] { return Told(engine->called->Combine(results, y), error); });
}

tg_code tge_may_emit(tge_engine* engine, tg_error* error) {
  return Guarded(error, [&] { return Told(engine->called->MayEmit(), error); });
}

void tge_emit(tge_engine* engine, const char* gateway, const char* request, uint32_t position,
              uint32_t token, int finish) {
  tge_emit_logprobs(engine, gateway, request, position, token, finish, nullptr);
}

void tge_emit_logprobs(tge_engine* engine, const char* gateway, const char* request,
                       uint32_t position, uint32_t token, int finish,
                       const tge_logprobs* logprobs) {
  OrEnd([&] {
    tangram::v1::Token out;
    out.set_request(request);
    out.set_position(position);
    out.set_token(token);
    out.set_finish(static_cast<tangram::v1::Finish>(finish));
    if (logprobs != nullptr) {
      tangram::v1::Logprobs& to = *out.mutable_logprobs();
      to.mutable_tokens()->Add(logprobs->tokens, logprobs->tokens + logprobs->count);
      to.mutable_values()->Add(logprobs->values, logprobs->values + logprobs->count);
      to.set_rank(logprobs->rank);
    }
    engine->called->Emit(gateway, std::move(out));
  });
}

void tge_refuse(tge_engine* engine, const char* gateway, const char* request, int code,
                const char* message) {
  OrEnd([&] {
    tangram::v1::Refused out;
    out.set_request(request);
    out.set_code(static_cast<tangram::v1::Refused::Code>(code));
    out.set_message(tangram::ValidUtf8(Text(message)));  // gateways reject other text
    engine->called->Refuse(gateway, std::move(out));
  });
}

uint64_t tge_prefix_of_salt(const char* cache_salt) {
  return tangram::engine::HashOfSalt(cache_salt);
}

uint64_t tge_prefix_after(uint64_t before, const uint32_t* tokens, size_t count) {
  return tangram::engine::HashAfter(before, {tokens, count});
}

void tge_cached(tge_engine* engine, const uint64_t* hashes, size_t count, int here) {
  OrEnd([&] { engine->called->Cached({hashes, count}, here != 0); });
}

void tge_cached_none(tge_engine* engine) {
  OrEnd([&] { engine->called->CachedNone(); });
}

}  // extern "C"
