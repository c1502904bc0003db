#include "e2e/stub/stub_engines.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string_view>
#include <thread>

namespace tangram::stub {
namespace {

using Clock = std::chrono::steady_clock;

std::string FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

}  // namespace

StubEngines::~StubEngines() {
  for (const Engine& engine : engines_) {
    if (engine.client != nullptr) tg_detach(engine.client);
  }
}

bool StubEngines::Attach(const Pod& pod) {
  const auto end = Clock::now() + std::chrono::minutes(1);
  for (uint32_t device = 0; device < pod.ranks; ++device) {
    // No connection uses these addresses; they only have to differ.
    const std::string place = "stub-" + std::to_string(engines_.size()) + ":1";
    tg_error error = TG_INIT(tg_error);
    tg_client* client = nullptr;
    while (true) {
      const std::string token = FirstLine(pod.token_file);
      tg_options options = TG_INIT(tg_options);
      options.socket_path = pod.socket.c_str();
      options.token = token.c_str();
      options.device = device;
      options.mesh_endpoint = options.frontend = place.c_str();
      options.mixed_layouts = 1;
      options.slab_formats = TG_SLAB_GRANULE_MAJOR | TG_SLAB_ROW_MAJOR;
      options.kv_block_tokens = 16;
      if (tg_attach(&options, &client, &error) == TG_OK) break;
      if (Clock::now() > end) {
        std::fprintf(stderr, "tangram-stub-engines: %s, device %u: %s\n", pod.socket.c_str(),
                     device, error.message);
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    Engine& engine = engines_.emplace_back();
    engine.name = place;
    engine.client = client;
  }
  return true;
}

void StubEngines::Poll(Engine* engine) {
  tg_event event = TG_INIT(tg_event);
  tg_error error = TG_INIT(tg_error);
  const tg_code code = tg_poll(engine->client, 0, &event, &error);
  if (code == TG_AGAIN) return;
  if (code != TG_OK) {
    std::fprintf(stderr, "tangram-stub-engines: %s: %s\n", engine->name.c_str(), error.message);
    tg_detach(engine->client);
    engine->client = nullptr;
    return;
  }
  if (event.kind == TG_EVENT_PREPARE) {
    engine->joins = event.joining != 0 && event.repair == 0;
    if (event.pause_steps != 0 && event.repair == 0) engine->pauses.push_back(event.attempt);
    tg_prepared(engine->client, event.attempt, 1, "", &error);
  } else if (event.kind == TG_EVENT_ABORT) {
    engine->joins = false;
    std::erase_if(engine->pauses, [&](uint64_t attempt) { return attempt == event.attempt; });
  } else if (event.kind == TG_EVENT_FLIPPED) {
    engine->joins = false;
    engine->pauses.clear();
  }
}

std::vector<StubEngines::Engine*> StubEngines::Members() {
  std::vector<Engine*> out;
  uint64_t newest = 0;
  for (Engine& engine : engines_) {
    const tg_maps* maps = engine.client == nullptr ? nullptr : tg_maps_current(engine.client);
    if (maps == nullptr || maps->rank < 0 || maps->epoch < newest) continue;
    if (maps->epoch > newest) out.assign(maps->world_size, nullptr);
    newest = maps->epoch;
    out[static_cast<size_t>(maps->rank)] = &engine;
  }
  return out;
}

Turned StubEngines::Turn() {
  for (Engine& engine : engines_) {
    if (engine.client != nullptr) Poll(&engine);
  }
  const std::vector<Engine*> members = Members();
  if (members.empty()) return Turned::kIdle;
  const std::vector<uint32_t> gone = Gone(members);
  if (!gone.empty()) {
    StandStill(members, gone);
    return Turned::kIdle;
  }
  // A flip by the agents (a first layout, a repair) reaches one engine after another.
  const auto away = [](const Engine* engine) {
    return engine == nullptr || tg_stopped(engine->client) != 0;
  };
  if (std::any_of(members.begin(), members.end(), away)) return Turned::kIdle;
  return Step(members);
}

std::vector<uint32_t> StubEngines::Gone(const std::vector<Engine*>& members) const {
  std::vector<uint32_t> out;
  const auto there = std::find_if(members.begin(), members.end(),
                                  [](const Engine* engine) { return engine != nullptr; });
  const tg_maps* maps = tg_maps_current((*there)->client);
  for (uint32_t rank = 0; rank < members.size(); ++rank) {
    const bool lives =
        members[rank] != nullptr ||
        std::any_of(engines_.begin(), engines_.end(), [&](const Engine& engine) {
          return engine.client != nullptr &&
                 std::string_view(tg_get_model(engine.client)->member) == maps->members[rank];
        });
    if (!lives) out.push_back(rank);
  }
  return out;
}

void StubEngines::StandStill(const std::vector<Engine*>& members,
                             const std::vector<uint32_t>& gone) {
  for (Engine* engine : members) {
    if (engine == nullptr) continue;
    // Once per epoch: a repair may have flipped the engine, and its event has not arrived yet.
    const uint64_t epoch = tg_maps_current(engine->client)->epoch;
    if (engine->stood_still == epoch) continue;
    engine->stood_still = epoch;
    tg_stop(engine->client, 0);
    tg_unreachable(engine->client, gone.data(), gone.size());
  }
}

Turned StubEngines::Step(const std::vector<Engine*>& members) {
  const bool paused = std::any_of(members.begin(), members.end(),
                                  [](const Engine* engine) { return !engine->pauses.empty(); });
  std::vector<tg_vote> words;
  for (const Engine* engine : members) words.push_back(tg_gate_vote(engine->client));
  size_t go = 0;
  for (const Engine* engine : members) {
    go += tg_gate_decide(engine->client, words.data(), words.size()) == TG_GATE_GO ? 1 : 0;
  }
  if (go == members.size()) {
    Flip(members);
    return Turned::kFlipped;
  }
  for (const Engine* engine : members) tg_step_done(engine->client);
  if (paused) return Turned::kPaused;
  ++steps_;
  return Turned::kStepped;
}

void StubEngines::Flip(const std::vector<Engine*>& members) {
  tg_error error = TG_INIT(tg_error);
  const auto failed = [&](const Engine* engine, const char* what) {
    std::fprintf(stderr, "tangram-stub-engines: %s: %s: %s\n", engine->name.c_str(), what,
                 error.message);
  };
  for (Engine* engine : members) {
    if (tg_gate_commit(engine->client, &error) != TG_OK) failed(engine, "commit");
    if (!engine->pauses.empty()) engine->pauses.erase(engine->pauses.begin());
  }
  for (Engine& engine : engines_) {
    if (engine.client == nullptr || !engine.joins) continue;
    engine.joins = false;
    if (tg_gate_join(engine.client, 10'000, &error) != TG_OK) failed(&engine, "join");
  }
}

}  // namespace tangram::stub
