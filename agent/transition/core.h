// State shared by the parts of the executor: the machine and the ranks, under one lock. A thread
// that holds the lock waits for nothing else.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "agent/attempt/machine.h"
#include "agent/gate/gate.h"
#include "agent/layout/layout.h"
#include "agent/layout/owners.h"
#include "agent/transition/engines.h"
#include "agent/transition/peers.h"
#include "agent/transition/step_pace.h"
#include "agent/transition/types.h"

namespace tangram {

// The data of one attempt. The machine has its state.
struct Job {
  // One rank's part in it.
  struct Part {
    v1::RankPart part;
    int32_t target_rank = -1;
    bool joining = false;
    bool leaving = false;
    uint64_t incarnation = 0;  // of the engine that prepared it; 0: none did
    StageProgress progress;
    std::atomic<uint64_t> kv_bytes{0}, kv_ahead_bytes{0};
  };

  explicit Job(const v1::PrepareRequest& asked);

  bool by_agents() const {
    return request.kind() == v1::FLIP_KIND_FIRST || request.kind() == v1::FLIP_KIND_REPAIR;
  }
  std::vector<v1::PeerAddress> peers() const {
    return {request.peers().begin(), request.peers().end()};
  }

  const v1::PrepareRequest request;
  const uint64_t id;
  const std::string request_hash;
  ExecutorClock::time_point begun = ExecutorClock::now();
  std::stop_source stop;  // for its work outside calls

  // Last attempt of the run that begins with this one; 0: no run.
  uint64_t run_last() const;
  // A later flip of a run: its engines are asked for consent while its bytes are staged. A refusal
  // ends the run; no call waits for the reply.
  bool asks_when_staged = false;
  // Bytes and seconds of earlier attempts of its run, by device; set before others see the job.
  std::map<uint32_t, v1::TransitionStatus> carried;

  // The target, and the layout from which it was built; set before others see the job.
  std::shared_ptr<const v1::Layout> target, base;
  std::string target_wire, target_hash;
  std::optional<layout::Owners> owners;
  bool carries_kv = false;
  std::map<uint32_t, Part> parts;  // by device

  // Under Core::mu.
  ExecutorClock::time_point permitted;
  double prepare_seconds = 0, stage_seconds = 0, flip_seconds = 0;
};
using JobPtr = std::shared_ptr<Job>;

struct Core {
  // A local rank's state outside the machine.
  struct Rank {
    v1::Member member;
    RankMemory* memory = nullptr;  // never replaced
    AgentGate gate;
    std::unique_ptr<StepPace> pace;            // null: no bound on step times
    std::shared_ptr<const v1::Layout> layout;  // whose places it holds; null: none
    std::string layout_hash;
    bool fresh = false;      // its engine attached after the last flip
    bool awaited = false;    // its engine may resume
    bool verifying = false;  // its retained pieces are being verified
  };

  // Ranks are by device, from 0.
  Core(ExecutorOptions options, layout::GeometryView geometry, std::vector<LocalRank> ranks,
       Engines* engines, Peers* peers);

  const ExecutorOptions options;
  const layout::GeometryView geometry;
  Engines* const engines;
  Peers* const peers;

  std::mutex calls;  // one driver call at a time; taken before mu

  std::mutex mu;
  // Everything below is under mu.
  std::condition_variable changed;
  uint64_t version = 1;
  attempt::Machine machine;
  std::vector<Rank> ranks;
  std::map<uint64_t, JobPtr> jobs;  // of the attempts that the machine knows
  v1::PeerAddress address;
  std::vector<v1::PeerAddress> peers_now;  // of the active layout
  std::string checkpoint_error;
  ExecutorTotals totals;

  void Changed();
  // Wakes all waiting threads after a change outside the core.
  void Wake();
  bool WaitChange(uint64_t* seen, std::chrono::milliseconds limit);  // takes mu

  attempt::Gates Looks() const;
  // The rank whose layout is active here for all ranks; null: none.
  const Rank* InForce() const;
  // Step pace for copies of the job to a rank; null: no bound. Needs no lock.
  StepPace* PaceOf(const Job& job, uint32_t device) const;
  JobPtr JobOf(uint64_t attempt) const;  // null: forgotten
  // The attempt in progress, otherwise the last one; null: none.
  const attempt::Machine::Attempt* Shown() const;
};

attempt::Header HeaderOf(const v1::Header& header);
v1::Phase ToWire(attempt::Phase phase);

}  // namespace tangram
