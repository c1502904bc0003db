// What the executor is given, and what it counts.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "agent/store/rank_memory.h"
#include "tangram/v1/agent.pb.h"
#include "tangram/v1/engine.pb.h"

namespace tangram {

using ExecutorClock = std::chrono::steady_clock;

struct ExecutorOptions {
  std::string world;
  std::string pod;  // the pod's name: of its members, and in its certificate
  std::string revision;
  std::string config_json;                       // of the checkpoint, for engines
  v1::PeerAddress address;                       // data, shared; `agent` comes by SetAddress
  std::chrono::milliseconds abort_wait{10'000};  // for an engine that gave its word
  // A staged attempt of which the driver says nothing for so long: ask the peers.
  std::chrono::milliseconds permit_wait{2'000};
  // By which steps of engines may take longer while weights are staged and KV goes ahead, of what
  // they take without; 0: by whatever.
  double max_step_stretch = 0;
  // An agent died here before: its engines may still hold the ranks, for so long at most.
  bool after_death = false;
  std::chrono::milliseconds resume_wait{20'000};
  std::function<ExecutorClock::time_point()> now = ExecutorClock::now;  // for waits
};

struct LocalRank {
  v1::Member member;
  RankMemory* memory = nullptr;  // outlives the executor
};

// What has been done since the start; only grows.
struct ExecutorTotals {
  // Bytes of ended attempts.
  std::map<std::string, uint64_t> weights_by_way, kv_by_way;  // from other ranks
  uint64_t local = 0, checkpoint = 0;                         // weights from elsewhere
  uint64_t kv_ahead = 0;                                      // of kv_by_way
  uint64_t corrupt = 0;                                       // pulls with wrong bytes
  double prepare_seconds = 0, stage_seconds = 0, flip_seconds = 0;
  std::map<std::string, uint64_t> outcomes;  // flipped, aborted, refused
};

// For an engine that attaches.
struct Attachment {
  v1::Attached message;  // `fd_index` of its extents is one of `descriptors`
  std::vector<SharedFd> descriptors;
};

}  // namespace tangram
