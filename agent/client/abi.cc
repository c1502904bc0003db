// The C functions of client.h over Client. Every one catches what the standard library may throw
// (no memory), since no exception may cross the boundary.
#include "agent/client/abi.h"

#include <fcntl.h>

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "agent/client/client.h"
#include "agent/client/versioned.h"

struct tg_client {
  std::unique_ptr<tangram::Client> impl;
};

namespace {

using tangram::CheckKnown;
using tangram::Code;
using tangram::ReadKnown;
using tangram::Status;
using tangram::WriteKnown;
using tangram::abi::Done;
using tangram::abi::Fail;
using tangram::abi::Guarded;

// The moves of a caller, with the members that this library knows.
std::vector<tg_kv_move> Known(const tg_kv_move* moves, size_t count, size_t move_size) {
  std::vector<tg_kv_move> known;
  known.reserve(count);
  for (size_t i = 0; i < count; ++i) known.push_back(*TG_AT(tg_kv_move, moves, move_size, i));
  return known;
}

static_assert(TG_TOLD + 1 == tangram::GatePage::kCauses &&
              TG_IN_FLIP + 1 == tangram::GatePage::kDoings);

tg_code Narrow(tg_error* error) {
  return Fail(error, TG_INVALID,
              "move_size is smaller than a tg_kv_move; set it to sizeof(tg_kv_move)");
}

constexpr uint32_t kSlabFormats = TG_SLAB_GRANULE_MAJOR | TG_SLAB_ROW_MAJOR;

Status CheckOptions(const tg_options& options) {
  if (options.socket_path == nullptr || options.token == nullptr) {
    return {Code::kInvalid, "tg_options: socket_path and token are required"};
  }
  if ((options.slab_formats & ~kSlabFormats) != 0) {
    return {Code::kInvalid, "tg_options.slab_formats is " + std::to_string(options.slab_formats) +
                                "; this library supports the bits " + std::to_string(kSlabFormats)};
  }
  return tangram::OkStatus();
}

}  // namespace

extern "C" {

const char* tg_version(void) { return "1.0.0"; }

tg_code tg_attach(const tg_options* options, tg_client** out, tg_error* error) {
  return Guarded(error, [&] {
    if (out == nullptr) return Fail(error, TG_INVALID, "out is null");
    auto known = ReadKnown(options, TANGRAM_UP_TO(tg_options, token), "tg_options");
    if (!known.ok()) return Done(known.status(), error);
    if (Status sane = CheckOptions(*known); !sane.ok()) return Done(sane, error);
    auto client = tangram::Client::Attach(*known);
    if (!client.ok()) return Done(client.status(), error);
    *out = new tg_client{std::move(*client)};
    return Fail(error, TG_OK, "");
  });
}

void tg_detach(tg_client* client) { delete client; }

const tg_model* tg_get_model(const tg_client* client) { return &client->impl->model(); }

size_t tg_dense_tensors(const tg_client* client, const tg_tensor** out, size_t* size) {
  *out = client->impl->dense().data();
  *size = sizeof(tg_tensor);
  return client->impl->dense().size();
}

const tg_maps* tg_maps_current(const tg_client* client) { return client->impl->current(); }

tg_code tg_poll(tg_client* client, int timeout_ms, tg_event* event, tg_error* error) {
  return Guarded(error, [&] {
    if (Status known = CheckKnown(event, TANGRAM_UP_TO(tg_event, attempt), "tg_event");
        !known.ok()) {
      return Done(known, error);
    }
    tg_event now{};
    const Status status = client->impl->Poll(timeout_ms, &now);
    WriteKnown(event, now);
    if (!status.ok()) return Done(status, error);
    return Fail(error, now.kind == TG_EVENT_NONE ? TG_AGAIN : TG_OK, "");
  });
}

int tg_poll_fd(const tg_client* client) { return client->impl->fd(); }

tg_code tg_prepared(tg_client* client, uint64_t attempt, int ok, const char* message,
                    tg_error* error) {
  return Guarded(error,
                 [&] { return Done(client->impl->Prepared(attempt, ok != 0, message), error); });
}

tg_vote tg_gate_vote(tg_client* client) {
  const tangram::GateVote word = client->impl->Word();
  return {word.epoch, word.hash};
}

tg_gate tg_gate_decide(tg_client* client, const tg_vote* words, size_t count) {
  try {
    std::vector<tangram::GateVote> all;
    all.reserve(count);
    for (size_t i = 0; i < count; ++i) all.push_back({words[i].epoch, words[i].hash});
    return client->impl->Decide(all) ? TG_GATE_GO : TG_GATE_STAY;
  } catch (const std::exception&) {
    client->impl->Decline("out of memory");
    return TG_GATE_STAY;
  }
}

void tg_gate_decline(tg_client* client, const char* reason) {
  client->impl->Decline(reason == nullptr ? "" : reason);
}

void tg_stop(tg_client* client, int keep_vote) { client->impl->Stop(keep_vote != 0); }

tg_code tg_missing(tg_client* client, const tg_missed* missed, size_t count, size_t missed_size,
                   tg_error* error) {
  return Guarded(error, [&] {
    if (count > 0 && missed_size < sizeof(tg_missed))
      return Fail(error, TG_INVALID,
                  "missed_size is smaller than a tg_missed; set it to sizeof(tg_missed)");
    std::vector<tangram::GateMissed> all;
    for (size_t i = 0; i < count; ++i) {
      const tg_missed& one = *TG_AT(tg_missed, missed, missed_size, i);
      if (one.cause == 0 || one.cause >= tangram::GatePage::kCauses || one.doing == 0 ||
          one.doing >= tangram::GatePage::kDoings)
        return Fail(error, TG_INVALID, "tg_missed: invalid cause or activity");
      all.push_back({one.rank, one.cause, one.doing, one.layer});
    }
    client->impl->SetMissed(all);
    return Fail(error, TG_OK, "");
  });
}

void tg_unreachable(tg_client* client, const uint32_t* ranks, size_t count) {
  client->impl->SetUnreachable({ranks, count});
}

int tg_stopped(const tg_client* client) { return client->impl->stopped() ? 1 : 0; }

tg_code tg_gate_commit(tg_client* client, tg_error* error) {
  return Guarded(error, [&] { return Done(client->impl->Commit(), error); });
}

tg_code tg_gate_commit_after(tg_client* client, int done_fd, tg_error* error) {
  return Guarded(error, [&] {
    tangram::UniqueFd done(fcntl(done_fd, F_DUPFD_CLOEXEC, 0));
    if (!done) return Fail(error, TG_INVALID, "done_fd is not a descriptor");
    return Done(client->impl->Commit(std::move(done)), error);
  });
}

tg_code tg_gate_join(tg_client* client, int timeout_ms, tg_error* error) {
  return Guarded(error, [&] { return Done(client->impl->Join(timeout_ms), error); });
}

tg_code tg_kv_pull(tg_client* client, const tg_kv_move* moves, size_t count, size_t move_size,
                   uint64_t* bytes, tg_error* error) {
  return Guarded(error, [&] {
    if (count > 0 && move_size < sizeof(tg_kv_move)) return Narrow(error);
    return Done(client->impl->KvPull(Known(moves, count, move_size), bytes), error);
  });
}

tg_code tg_kv_begin(tg_client* client, const tg_kv_move* moves, size_t count, size_t move_size,
                    tg_error* error) {
  return Guarded(error, [&] {
    if (count > 0 && move_size < sizeof(tg_kv_move)) return Narrow(error);
    return Done(client->impl->KvBegin(Known(moves, count, move_size), false), error);
  });
}

tg_code tg_kv_stage(tg_client* client, const tg_kv_move* moves, size_t count, size_t move_size,
                    tg_error* error) {
  return Guarded(error, [&] {
    if (count > 0 && move_size < sizeof(tg_kv_move)) return Narrow(error);
    return Done(client->impl->KvBegin(Known(moves, count, move_size), true), error);
  });
}

tg_code tg_kv_staged(tg_client* client, int timeout_ms, uint64_t* bytes, tg_error* error) {
  return Guarded(error, [&] {
    bool later = false;
    const Status status = client->impl->KvStaged(timeout_ms, bytes, &later);
    if (status.ok() && later) {
      return Fail(error, TG_LATER, "steps exceed their time limit during KV copies; retry later");
    }
    return Done(status, error);
  });
}

void tg_step_done(tg_client* client) { client->impl->StepDone(); }

void tg_count(tg_client* client, uint32_t moe_ordinal, uint32_t expert, uint64_t tokens) {
  client->impl->Count(tangram::TokenCount::kRouted, moe_ordinal, expert, tokens);
}

void tg_count_executed(tg_client* client, uint32_t moe_ordinal, uint32_t expert, uint64_t tokens) {
  client->impl->Count(tangram::TokenCount::kExecuted, moe_ordinal, expert, tokens);
}

tg_code tg_report(tg_client* client, const tg_engine_stats* stats, tg_error* error) {
  return Guarded(error, [&] {
    auto known = ReadKnown(stats, sizeof stats->struct_size, "tg_engine_stats");
    if (!known.ok()) return Done(known.status(), error);
    client->impl->Report(*known);
    return Fail(error, TG_OK, "");
  });
}

}  // extern "C"
