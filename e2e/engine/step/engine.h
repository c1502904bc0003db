// One rank's engine: boundary after boundary it takes what the agent and the gateways sent,
// exchanges words with the members, flips or computes one step of the world.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "e2e/engine/frontend/inbox.h"
#include "e2e/engine/frontend/sink.h"
#include "e2e/engine/kv/kv_memory.h"
#include "e2e/engine/mesh/communicator.h"
#include "e2e/engine/model/model.h"
#include "e2e/engine/pace/pacer.h"
#include "e2e/engine/scheduler/scheduler.h"
#include "e2e/engine/step/context.h"
#include "e2e/engine/step/control.h"
#include "e2e/engine/step/experts.h"
#include "e2e/engine/step/meter.h"
#include "e2e/engine/transition/carry.h"
#include "e2e/engine/transition/preparation.h"
#include "e2e/engine/world/reader.h"
#include "e2e/engine/world/world.h"

namespace tangram::engine {

// One thread calls everything. The pointers given to Make outlive the engine.
class Engine {
 public:
  struct Options {
    SchedulerLimits limits;     // vocabulary is taken from the model
    Patience::Bounds patience;  // with peers that say nothing
    std::chrono::milliseconds prepare_timeout{30000};
    // Longest pause between the steps of a world without work.
    std::chrono::milliseconds idle_pause{4};
    // A step with work takes at least so long: a busy world that leaves the machine to others.
    std::chrono::milliseconds least_step{0};
    PaceOptions pace;  // steps last as on other machines
  };

  // kInvalid when config.json is not a model this engine computes.
  static Result<std::unique_ptr<Engine>> Make(Options options, WorldView* world, Mesh* mesh,
                                              Inbox* inbox, Sink* sink);

  // Boundaries until `stop`. An error means that this rank can serve no longer: bytes are wrong,
  // or it is no member any more. Nothing of the step in which it happened was emitted. A peer
  // that is gone is no error: the rank stands still until a repair.
  Status Run(const std::atomic<bool>& stop);
  // One boundary and what follows: a step, a flip, or a short wait outside of any world.
  Status Turn();

  // The epoch that this rank computes in; 0 when it is in none.
  uint64_t epoch() const { return maps_ == nullptr ? 0 : maps_->epoch; }
  const Scheduler& scheduler() const { return scheduler_; }
  const PageStore& pages() const { return pages_; }
  uint64_t flips() const { return flips_; }
  uint64_t carried() const { return carried_; }  // of these, those that planned where KV goes
  uint64_t declined() const { return declined_; }
  bool stopped() const { return stopped_; }
  const PaceCounts& pace_counts() const { return paced_.counts; }
  double pace_imbalance() const { return paced_.imbalance; }

 private:
  Engine(Options options, WorldView* world, Mesh* mesh, Inbox* inbox, Sink* sink)
      : options_(options),
        world_(world),
        mesh_(mesh),
        inbox_(inbox),
        sink_(sink),
        scheduler_(options.limits),
        dense_(&world->device()),
        pieces_(&world->device()),
        experts_(world->model(), &pieces_),
        patience_(options_.patience),
        pacer_(options_.pace) {}

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
  Status Compute(const std::vector<Control>& controls, const std::vector<Chunk>& chunks);
  // Has the pages of a step's rows where they are computed with.
  Status BringPages(const std::vector<Batch>& batches);
  Status Emit(const std::vector<Chunk>& chunks, std::span<const float> x);
  void Pace(bool work, bool pending, std::chrono::steady_clock::time_point begun);

  // Ranks with a clock (paced.cc). Whether there is a pace for a layout; what is not in the table
  // is an error unless a repair needs it.
  Result<PacedLayout> PaceFor(const tg_maps& maps, bool repair) const;
  // When this step is to end.
  void SetPace(const std::vector<Control>& controls);
  // Waits until then, but answers meanwhile, and for no fence and no permit.
  Status AwaitPace();
  bool PaceIsCut();
  // The step is done: what became of its time.
  void NotePace(const std::vector<Control>& controls);
  void ReportLoad(bool now);

  // When something died (repair.cc). The step is given up for good.
  void GiveUp(const Status& why);
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
  Status EnterRepaired();
  std::map<std::string, v1::Roster> Rosters() const;

  // A flip for which all KV is here, and the others were told so: it may be a fact elsewhere.
  struct Pending {
    uint64_t attempt = 0, target_epoch = 0;
    bool stays = false;
    // What the plan gives this rank; none: attention does not change, and all KV stays.
    struct Carried {
      PageStore pages;
      Adopted adopted;
      uint32_t next_block = 0;
    };
    std::optional<Carried> carried;
    uint64_t bytes = 0, requests_moved = 0;
  };
  // The flip. False: all declined and the old epoch goes on.
  Result<bool> Flip();
  class Stopwatch;
  // Plans where all KV goes, and brings this rank's. False: it does not fit now. `pulled`: what
  // became of the bringing; an error otherwise is this rank's end.
  Result<bool> Carry(const Side& from, Stopwatch* watch, Pending* pending, Status* pulled);
  Status Bring(const Carrying& carrying, std::vector<RankManifest> manifests, uint32_t rank,
               Stopwatch* watch, Pending* pending);
  // Whether all heard that all have what they came for.
  Result<bool> AllBrought(const Status& pulled);
  Status EnterPending();
  // The layout that the agent says is in force becomes this engine's; pages and sequences are
  // what the flip left here. Without `adopted` the sequences are those that there are.
  Status Enter(PageStore pages, std::optional<Adopted> adopted, uint32_t next_block);
  Status BindModel();
  void Leave();
  v1::World WorldMessage(const tg_maps& maps, const HeldMap& held) const;

  Options options_;
  WorldView* world_;
  Mesh* mesh_;
  Inbox* inbox_;
  Sink* sink_;

  kv::Shape shape_;
  std::optional<model::Config> config_;
  std::optional<model::Model> model_;
  PageStore pages_;
  std::optional<KvMemory> kv_;
  Scheduler scheduler_;
  Reader dense_, pieces_;  // of the model that is bound; of the epoch
  ExpertStage experts_;
  StepMeter meter_;
  Patience patience_;
  const Pacer pacer_;
  std::optional<Preparation> preparation_;
  std::optional<Pending> pending_;
  bool stopped_ = false;
  std::vector<uint32_t> unreachable_;
  std::optional<Wait> still_;    // while this rank stands still: for all peers
  std::vector<uint64_t> moved_;  // by peer, see Mesh::Moved

  // Of the epoch in force; maps_ is nullptr outside of a world.
  const tg_maps* maps_ = nullptr;
  std::vector<kv::LayerGroups> groups_;
  HeldMap held_;
  Communicator comm_;
  uint64_t step_ = 0;
  std::optional<uint64_t> rows_;  // of the step before; nullopt: this is an epoch's first

  std::deque<std::string> unknown_cancels_;  // for requests that may yet arrive by a flip
  uint64_t flips_ = 0, carried_ = 0, declined_ = 0;
  uint64_t last_arrival_ = 0;
  int idle_turns_ = 0;
  struct Paced {
    PacedLayout layout;
    double imbalance = 1;  // of the experts, in the mean of some steps
    std::chrono::steady_clock::time_point begun, until;                           // of the step
    enum class Ended { kUnpaced, kInTime, kLate, kCut } ended = Ended::kUnpaced;  // the last step
    uint64_t cut_attempt = 0;  // for which waits were ended, and how many
    uint32_t cuts = 0;
    PaceCounts counts;
  } paced_;
  std::optional<tg_event> kept_event_;  // came within a step, for the boundary after it
  const std::atomic<bool>* stop_ = nullptr;
  bool agent_gone_ = false;
  std::chrono::steady_clock::time_point load_reported_{};
};

}  // namespace tangram::engine
