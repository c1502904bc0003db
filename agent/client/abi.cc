// The C functions of client.h over Client. Every one catches what the standard library
// may throw (memory), since no exception may cross the boundary.
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include "agent/client/client.h"

struct tg_client {
  std::unique_ptr<tangram::Client> impl;
};

namespace {

using tangram::Code;
using tangram::Status;

tg_code Fail(tg_error* error, tg_code code, const char* message) {
  if (error != nullptr) {
    error->code = code;
    std::snprintf(error->message, sizeof error->message, "%s", message);
  }
  return code;
}

tg_code ToC(const Status& status, tg_error* error) {
  if (status.ok()) return Fail(error, TG_OK, "");
  tg_code code = TG_REFUSED;
  if (status.code() == Code::kUnavailable) code = TG_DISCONNECTED;
  if (status.code() == Code::kInvalid) code = TG_INVALID;
  if (status.code() == Code::kWrongPhase) code = TG_AGAIN;
  return Fail(error, code, status.message().c_str());
}

template <typename F>
tg_code Guarded(tg_error* error, F&& call) {
  try {
    return call();
  } catch (const std::exception& e) {
    return Fail(error, TG_INVALID, e.what());
  }
}

}  // namespace

extern "C" {

const char* tg_version(void) { return "0.1.0"; }

tg_code tg_attach(const tg_options* options, tg_client** out, tg_error* error) {
  return Guarded(error, [&] {
    if (options == nullptr || out == nullptr) return Fail(error, TG_INVALID, "null argument");
    auto client = tangram::Client::Attach(*options);
    if (!client.ok()) return ToC(client.status(), error);
    *out = new tg_client{std::move(*client)};
    return Fail(error, TG_OK, "");
  });
}

void tg_detach(tg_client* client) { delete client; }

const tg_model* tg_get_model(const tg_client* client) { return &client->impl->model(); }

size_t tg_dense_tensors(const tg_client* client, const tg_tensor** out) {
  *out = client->impl->dense().data();
  return client->impl->dense().size();
}

const tg_maps* tg_maps_current(const tg_client* client) { return client->impl->current(); }

tg_code tg_poll(tg_client* client, int timeout_ms, tg_event* event, tg_error* error) {
  return Guarded(error, [&] {
    const Status status = client->impl->Poll(timeout_ms, event);
    if (!status.ok()) return ToC(status, error);
    return Fail(error, event->kind == TG_EVENT_NONE ? TG_AGAIN : TG_OK, "");
  });
}

int tg_poll_fd(const tg_client* client) { return client->impl->fd(); }

tg_code tg_prepared(tg_client* client, uint64_t attempt, int ok, const char* message,
                    tg_error* error) {
  return Guarded(error,
                 [&] { return ToC(client->impl->Prepared(attempt, ok != 0, message), error); });
}

tg_word tg_gate_word(tg_client* client) {
  const tangram::GateWord word = client->impl->Word();
  return {word.epoch, word.hash};
}

tg_gate tg_gate_decide(tg_client* client, const tg_word* words, size_t count) {
  try {
    std::vector<tangram::GateWord> all;
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

void tg_stop(tg_client* client, int keep_word) { client->impl->Stop(keep_word != 0); }

void tg_unreachable(tg_client* client, const uint32_t* ranks, size_t count) {
  client->impl->SetUnreachable({ranks, count});
}

int tg_stopped(const tg_client* client) { return client->impl->stopped() ? 1 : 0; }

tg_code tg_gate_commit(tg_client* client, tg_error* error) {
  return Guarded(error, [&] { return ToC(client->impl->Commit(), error); });
}

tg_code tg_gate_join(tg_client* client, int timeout_ms, tg_error* error) {
  return Guarded(error, [&] { return ToC(client->impl->Join(timeout_ms), error); });
}

tg_code tg_kv_pull(tg_client* client, const tg_kv_move* moves, size_t count, uint64_t* bytes,
                   tg_error* error) {
  return Guarded(error, [&] { return ToC(client->impl->KvPull({moves, count}, bytes), error); });
}

void tg_step_done(tg_client* client) { client->impl->StepDone(); }

void tg_count(tg_client* client, uint32_t moe_ordinal, uint32_t expert, uint64_t tokens) {
  client->impl->Count(tangram::TokenCount::kRouted, moe_ordinal, expert, tokens);
}

void tg_count_executed(tg_client* client, uint32_t moe_ordinal, uint32_t expert, uint64_t tokens) {
  client->impl->Count(tangram::TokenCount::kExecuted, moe_ordinal, expert, tokens);
}

void tg_report(tg_client* client, const tg_engine_stats* stats) { client->impl->Report(*stats); }

}  // extern "C"
