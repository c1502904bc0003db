// The step loop of a rank. At each boundary it takes the messages of agent and gateways, exchanges
// votes with the members, and flips or has the backend compute one step of the world. The same for
// every engine.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/base/limits.h"
#include "agent/base/time_source.h"
#include "agent/engine/frontend/inbox.h"
#include "agent/engine/frontend/sink.h"
#include "agent/engine/mesh/communicator.h"
#include "agent/engine/turn/backend.h"
#include "agent/engine/turn/control.h"
#include "agent/engine/turn/preparation.h"
#include "agent/engine/world/world.h"

namespace tangram::engine {

// One thread calls everything. The pointers outlive the loop, and so does `time`, which is the
// mesh's.
class Turn final : public Between {
 public:
  struct Options {
    Patience::Bounds patience;  // timeouts for peers
    std::chrono::milliseconds prepare_timeout = limits::kPrepare;
    // The longest pause between the steps of a world without work.
    std::chrono::milliseconds idle_pause{4};
    // A flip whose KV is not copied ahead yet waits at most this long for it, while steps continue.
    // Negative: no KV is copied ahead.
    std::chrono::milliseconds kv_ahead{1000};
    // An attempt may pause steps for at most this long; then the world continues to serve, also if
    // no process drives the attempt any longer.
    std::chrono::milliseconds most_paused{10000};
    // The minimum duration of a step with work, so that a busy world leaves the machine to others.
    std::chrono::milliseconds least_step{0};
  };

  Turn(Options options, WorldView* world, Mesh* mesh, Inbox* inbox, Sink* sink, Backend* backend,
       TimeSource& time = SteadyTime())
      : options_(options),
        world_(world),
        mesh_(mesh),
        inbox_(inbox),
        sink_(sink),
        backend_(backend),
        time_(time),
        patience_(options.patience) {}

  // Runs boundaries until `stop`. An error means that this rank can serve no longer: bytes are
  // wrong, or it is no longer a member. No token of that step was emitted. A lost peer is no error:
  // the rank is stopped until a repair.
  Status Run(const std::atomic<bool>& stop);
  // One boundary and what follows: a step, a flip, or a short wait outside any world.
  Status Once();

  // The epoch that this rank computes in; 0: none.
  uint64_t epoch() const { return epoch_ == nullptr ? 0 : epoch_->number(); }
  uint64_t flips() const { return flips_; }
  uint64_t carried() const { return carried_; }  // of these, those with a KV plan
  uint64_t declined() const { return declined_; }
  uint64_t paused() const { return paused_; }  // boundaries after which no step was computed
  // This thread's CPU time in the flips: from the deciding votes until the epoch is entered.
  std::chrono::nanoseconds carrying() const { return carrying_; }
  bool stopped() const { return stopped_; }

  Status Answer() override;
  Status Lives() override;
  Status MayEmit() override;
  bool Hurries() override;

 private:
  // Before the step.
  void TakeInbox();
  Status TakeEvents(int timeout_ms);
  Status TakeEvent(const tg_event& event);
  void Prepare(const tg_event& event);
  Status CheckPreparation();
  // Outside a world: waits for the first layout, or for an epoch that this rank joins.
  Status Outside();

  // The step.
  Status Step();
  // The text of `rank` is malformed. If that is this rank, this rank ends. Another rank detects the
  // same and ends; this rank abandons the step and continues after a repair.
  Status Malformed(uint32_t rank, const Status& why);
  void Pause(bool work, bool pending, std::chrono::steady_clock::time_point begun);
  void ReportLoad(bool now);
  // Whether an attempt is prepared here after which this rank is home to no requests.
  bool GivesHomesUp() const;

  // After a rank died (repair.cc). The step is abandoned for good.
  void GiveUp(const Status& why);
  // The lost ranks, as text; empty: none of the layout.
  std::string MissedText() const;
  // The error of a rank that its agent stopped.
  static Status Fenced();
  // While this rank is stopped: disconnects peers that send nothing, not even heartbeats.
  void WatchTheOthers();
  void HangUpOnTheSilent();
  // While stopped: connects again, and reports the peers that it cannot reach.
  Status StandStill();
  // The agents flipped. After a fence this may be the flip that the broken step was for.
  Status Follow(const tg_event& event);

  // A flip for which all KV is here, as confirmed to the others: some of them may have flipped.
  struct Pending {
    uint64_t attempt = 0, target_epoch = 0;
    bool stays = false;
    bool carries = false;  // attention changes, and KV was planned and fetched
    uint64_t bytes = 0, requests_moved = 0;
  };
  // Makes the flip (flip.cc). False: all declined and the old epoch continues.
  Result<bool> Flip();
  class Stopwatch;
  // Has the backend plan the place of all KV, and fetch this rank's part. False: it does not fit
  // now. `pulled`: the result of the fetch; any other error ends this rank.
  Result<bool> Carry(Stopwatch* watch, Pending* pending, Status* pulled);
  // Whether all ranks have confirmed that all ranks have their KV.
  Result<bool> AllBrought(const Status& pulled);
  void DropPending();
  // KV ahead of the flip (Backend::Stage): begins and ends with the attempt's preparation.
  void StageKv();
  void UnstageKv();
  // Whether this rank withholds its vote, so that less KV is left for the flip.
  bool KeepsWordBack();
  Status EnterPending();
  // Makes the agent's active layout that of this engine.
  Status Enter(Entry entry);
  void Leave();
  v1::World WorldMessage(const tg_maps& maps, const std::vector<kv::LayerGroups>& groups) const;

  const Options options_;
  WorldView* const world_;
  Mesh* const mesh_;
  Inbox* const inbox_;
  Sink* const sink_;
  Backend* const backend_;
  TimeSource& time_;

  Patience patience_;
  std::optional<Preparation> preparation_;
  std::optional<Pending> pending_;
  uint64_t staged_ = 0;   // the attempt for which the backend copies KV ahead
  bool kv_ready_ = true;  // as of the last boundary
  std::optional<std::chrono::steady_clock::time_point> kept_back_;  // vote withheld since
  bool stopped_ = false;
  std::vector<uint32_t> unreachable_;
  std::optional<Wait> still_;    // while this rank is stopped: for all peers
  std::vector<uint64_t> moved_;  // by peer, see Mesh::Moved

  std::unique_ptr<Epoch> epoch_;  // nullptr outside of a world
  Communicator comm_;
  uint64_t step_ = 0;
  std::optional<uint64_t> rows_;  // of the previous step; nullopt: this is an epoch's first

  std::deque<std::string> unknown_cancels_;  // of requests that may yet arrive by a flip
  uint64_t flips_ = 0, carried_ = 0, declined_ = 0, paused_ = 0;
  std::chrono::nanoseconds carrying_{0};
  int idle_turns_ = 0;
  std::optional<tg_event> kept_event_;  // received within a step, for the boundary after it
  uint64_t hurried_attempt_ = 0;        // the attempt whose steps ended early, and how many
  uint32_t hurried_ = 0;
  std::chrono::steady_clock::time_point beaten_{};  // last heartbeat within a step
  const std::atomic<bool>* stop_ = nullptr;
  bool agent_gone_ = false;
  std::chrono::steady_clock::time_point load_reported_{};
};

}  // namespace tangram::engine
