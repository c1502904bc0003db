// A rank's turn: boundary after boundary it takes what the agent and the gateways sent, exchanges
// words with the members, flips or has the backend compute one step of the world. The same for
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

// One thread calls everything. The pointers outlive the turn, and so does `time`, which is the
// mesh's.
class Turn final : public Between {
 public:
  struct Options {
    Patience::Bounds patience;  // with peers that say nothing
    std::chrono::milliseconds prepare_timeout = limits::kPrepare;
    // Longest pause between the steps of a world without work.
    std::chrono::milliseconds idle_pause{4};
    // A flip whose KV is not ahead yet waits for it at most so long, while steps go on. Negative:
    // nothing is brought ahead.
    std::chrono::milliseconds kv_ahead{1000};
    // An attempt that wants no step computed has its way for so long; then the world serves on
    // beside it, also if nobody drives the attempt any more.
    std::chrono::milliseconds most_paused{10000};
    // A step with work takes at least so long: a busy world that leaves the machine to others.
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

  // Boundaries until `stop`. An error means that this rank can serve no longer: bytes are wrong,
  // or it is no member any more. Nothing of the step in which it happened was emitted. A peer
  // that is gone is no error: the rank stands still until a repair.
  Status Run(const std::atomic<bool>& stop);
  // One boundary and what follows: a step, a flip, or a short wait outside of any world.
  Status Once();

  // The epoch that this rank computes in; 0 when it is in none.
  uint64_t epoch() const { return epoch_ == nullptr ? 0 : epoch_->number(); }
  uint64_t flips() const { return flips_; }
  uint64_t carried() const { return carried_; }  // of these, those that planned where KV goes
  uint64_t declined() const { return declined_; }
  uint64_t paused() const { return paused_; }  // boundaries after which no step was computed
  // Of this thread, in those flips: from the words on which they go until the epoch is entered.
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
  // Outside of a world: wait for the first layout, or for an epoch that this rank joins.
  Status Outside();

  // The step.
  Status Step();
  // The text of `rank` is malformed. If it is this rank, it ends. If it is another one, that one
  // finds the same and ends, and this rank gives the step up and goes on by a repair.
  Status Malformed(uint32_t rank, const Status& why);
  void Pause(bool work, bool pending, std::chrono::steady_clock::time_point begun);
  void ReportLoad(bool now);
  // Is an attempt prepared here after which this rank is home to no requests?
  bool GivesHomesUp() const;

  // When something died (repair.cc). The step is given up for good.
  void GiveUp(const Status& why);
  // For whom; empty: for nobody of the layout.
  std::string MissedText() const;
  // Somebody else, the agent, had this rank stand still.
  static Status Fenced();
  // While this rank stands still: hangs up on peers that say nothing though they have nothing to do
  // but to say that they live.
  void WatchTheOthers();
  void HangUpOnTheSilent();
  // Standing still: connects again, and tells whom it cannot reach.
  Status StandStill();
  // The agents flipped. After a fence this may be the flip that the broken step was for.
  Status Follow(const tg_event& event);

  // A flip for which all KV is here, and the others were told so: it may be a fact elsewhere.
  struct Pending {
    uint64_t attempt = 0, target_epoch = 0;
    bool stays = false;
    bool carries = false;  // attention changes, and KV was planned and brought
    uint64_t bytes = 0, requests_moved = 0;
  };
  // The flip (flip.cc). False: all declined and the old epoch goes on.
  Result<bool> Flip();
  class Stopwatch;
  // Has the backend plan where all KV goes, and bring this rank's. False: it does not fit now.
  // `pulled`: what became of the bringing; an error otherwise is this rank's end.
  Result<bool> Carry(Stopwatch* watch, Pending* pending, Status* pulled);
  // Whether all heard that all have what they came for.
  Result<bool> AllBrought(const Status& pulled);
  void DropPending();
  // KV ahead of the flip (Backend::Stage): begins with the attempt's preparation, ends with it.
  void StageKv();
  void UnstageKv();
  // Whether this rank keeps its word back, so that less KV is left for the flip.
  bool KeepsWordBack();
  Status EnterPending();
  // The layout that the agent says is in force becomes this engine's.
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
  uint64_t staged_ = 0;   // the attempt for which the backend brings KV ahead
  bool kv_ready_ = true;  // as it said at the last boundary
  std::optional<std::chrono::steady_clock::time_point> kept_back_;  // the word, since
  bool stopped_ = false;
  std::vector<uint32_t> unreachable_;
  std::optional<Wait> still_;    // while this rank stands still: for all peers
  std::vector<uint64_t> moved_;  // by peer, see Mesh::Moved

  std::unique_ptr<Epoch> epoch_;  // nullptr outside of a world
  Communicator comm_;
  uint64_t step_ = 0;
  std::optional<uint64_t> rows_;  // of the step before; nullopt: this is an epoch's first

  std::deque<std::string> unknown_cancels_;  // for requests that may yet arrive by a flip
  uint64_t flips_ = 0, carried_ = 0, declined_ = 0, paused_ = 0;
  std::chrono::nanoseconds carrying_{0};
  int idle_turns_ = 0;
  std::optional<tg_event> kept_event_;  // came within a step, for the boundary after it
  uint64_t hurried_attempt_ = 0;        // for which steps hurried, and how many
  uint32_t hurried_ = 0;
  std::chrono::steady_clock::time_point beaten_{};  // within a step
  const std::atomic<bool>* stop_ = nullptr;
  bool agent_gone_ = false;
  std::chrono::steady_clock::time_point load_reported_{};
};

}  // namespace tangram::engine
