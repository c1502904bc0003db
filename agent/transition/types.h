// Parameters and counts of the executor.
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
  v1::PeerAddress address;                       // data, shared; SetAddress sets `agent`
  std::chrono::milliseconds abort_wait{10'000};  // for an engine that has voted
  // Without a driver call for this time, a staged attempt queries the peers.
  std::chrono::milliseconds permit_wait{2'000};
  // By how much engine steps may take longer while weights are staged and KV is copied ahead, as a
  // share of their usual time; 0: no bound.
  double max_step_stretch = 0;
  // The previous agent died here: its engines may still hold the ranks, for resume_wait at most.
  bool after_death = false;
  std::chrono::milliseconds resume_wait{20'000};
  std::function<ExecutorClock::time_point()> now = ExecutorClock::now;  // for waits
};

struct LocalRank {
  v1::Member member;
  RankMemory* memory = nullptr;  // outlives the executor
};

// Counts since the start; they only grow.
struct ExecutorTotals {
  // Bytes of ended attempts.
  std::map<std::string, uint64_t> weights_by_way, kv_by_way;  // from other ranks
  uint64_t local = 0, checkpoint = 0;                         // weights from other sources
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
