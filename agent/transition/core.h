// What the parts of the executor share: the machine of its attempts and the ranks, under one
// lock. Nobody waits for anything else while it holds that.
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

// What an attempt is carried out with; where it stands is the machine's.
struct Job {
  // What one rank does in it.
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
  std::stop_source stop;  // of what works on it beside the calls

  // Of the run that begins with it, the last attempt; 0: none does.
  uint64_t run_last() const;
  // A flip of a run after the first: its engines are asked while its bytes are staged. A refusal
  // ends the run, and there is no call that it would have to answer.
  bool asks_when_staged = false;
  // Bytes and seconds of the attempts of its run before it, by device; set before others see it.
  std::map<uint32_t, v1::TransitionStatus> carried;

  // Of the target, and the layout that it was built from; set before others see the job.
  std::shared_ptr<const v1::Layout> target, base;
  std::string target_wire, target_hash;
  std::optional<layout::Owners> owners;
  bool carries_kv = false;
  std::map<uint32_t, Part> parts;  // by device

  // Under the core's lock.
  ExecutorClock::time_point permitted;
  double prepare_seconds = 0, stage_seconds = 0, flip_seconds = 0;
};
using JobPtr = std::shared_ptr<Job>;

struct Core {
  // A local rank, but for what the machine says of it.
  struct Rank {
    v1::Member member;
    RankMemory* memory = nullptr;  // never another one
    AgentGate gate;
    std::unique_ptr<StepPace> pace;            // null: bytes may take what they want of steps
    std::shared_ptr<const v1::Layout> layout;  // that it has places of; null: none
    std::string layout_hash;
    bool fresh = false;      // its engine attached after the last flip
    bool awaited = false;    // its engine may resume
    bool verifying = false;  // and what it kept is being looked at
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
  // The rest is under mu.
  std::condition_variable changed;
  uint64_t version = 1;
  attempt::Machine machine;
  std::vector<Rank> ranks;
  std::map<uint64_t, JobPtr> jobs;  // of the attempts that the machine knows
  v1::PeerAddress address;
  std::vector<v1::PeerAddress> peers_now;  // of the layout in force
  std::string checkpoint_error;
  ExecutorTotals totals;

  void Changed();
  // Who waits for a change looks again: something outside has one for it.
  void Wake();
  bool WaitChange(uint64_t* seen, std::chrono::milliseconds limit);  // takes mu

  attempt::Gates Looks() const;
  // In force here for all ranks; null: none.
  const Rank* InForce() const;
  // Of what moves bytes of the job for a rank; null: there is no bound. Needs no lock.
  StepPace* PaceOf(const Job& job, uint32_t device) const;
  JobPtr JobOf(uint64_t attempt) const;  // null: it is over
  // Of the attempt under way, or the one before; null: none.
  const attempt::Machine::Attempt* Shown() const;
};

attempt::Header HeaderOf(const v1::Header& header);
v1::Phase ToWire(attempt::Phase phase);

}  // namespace tangram
