// The reference engine's part of the step loop: requests, KV and numerics of one rank.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/engine/ahead/copies.h"
#include "agent/engine/frontend/sink.h"
#include "agent/engine/turn/backend.h"
#include "agent/engine/world/world.h"
#include "e2e/engine/kv/kv_memory.h"
#include "e2e/engine/model/model.h"
#include "e2e/engine/pace/pacer.h"
#include "e2e/engine/scheduler/scheduler.h"
#include "e2e/engine/step/announced.h"
#include "e2e/engine/step/context.h"
#include "e2e/engine/step/experts.h"
#include "e2e/engine/step/meter.h"
#include "e2e/engine/transition/ahead.h"
#include "e2e/engine/transition/carry.h"
#include "e2e/engine/world/reader.h"

namespace tangram::engine {

class Reference final : public Backend {
 public:
  struct Options {
    SchedulerLimits limits;  // the vocabulary comes from the model
    PaceOptions pace;        // steps last as on other machines
  };

  // kInvalid if this engine cannot compute the model of config.json. The pointers must outlive it.
  static Result<std::unique_ptr<Reference>> Make(Options options, WorldView* world, Sink* sink);

  const Scheduler& scheduler() const { return scheduler_; }
  const PageStore& pages() const { return pages_; }
  // Telemetry of the requests here.
  v1::RankTelemetry told() const;
  // Number of steps whose end this rank has begun to wait for. Any thread may call it.
  uint64_t pace_waits() const { return pace_waits_; }
  const PaceCounts& pace_counts() const { return paced_.counts; }
  const auto& carried() const { return carried_; }
  double pace_imbalance() const { return paced_.imbalance; }

  void Submit(const std::string& gateway, v1::Submit submit) override;
  bool Cancel(const std::string& request) override { return scheduler_.Cancel(request); }
  std::map<std::string, v1::Roster> Rosters() const override;
  void Measure(v1::Load* load, tg_engine_stats* stats) override;
  uint32_t max_tokens() const override { return options_.limits.max_model_len; }
  uint32_t vocabulary() const override { return config_->vocab; }

  Status Fits(const tg_maps& target, bool repair) override;
  Announcement Announce(uint64_t step) override;
  Status Heard(const std::vector<Bytes>& texts, uint32_t* malformed) override;
  Status Compute(const StepInput& input) override;
  void StepDone(bool computed) override;

  // transition.cc
  Bytes Manifest(const Side& to, bool whole) override;
  Status Plan(const Side& from, const Side& to, bool whole, const std::vector<Bytes>& manifests,
              uint64_t* moved, uint32_t* malformed) override;
  Result<uint64_t> Bring(uint32_t rank, Between& between) override;
  void Drop() override;
  void Stage(uint64_t attempt, const Side& to) override;
  bool Advance() override;
  void Unstage() override;
  Status Enter(const Epoch& epoch, Entry entry) override;
  void Leave() override;

 private:
  Reference(Options options, WorldView* world, Sink* sink)
      : options_(std::move(options)),
        world_(world),
        sink_(sink),
        scheduler_(options_.limits),
        dense_(&world->device()),
        pieces_(&world->device()),
        experts_(world->model(), &pieces_),
        pacer_(options_.pace),
        copies_(world) {}

  // Loads the pages of a step's rows to the memory in which they are computed.
  Status BringPages(const std::vector<Batch>& batches);
  Status Emit(std::span<const float> x, Between& between);

  // Paced ranks (paced.cc). The pace of a layout; a shape that is not in the table is an error
  // unless `repair`.
  Result<PacedLayout> PaceFor(const tg_maps& maps, bool repair) const;
  // Sets the end time of this step.
  void SetPace(const StepInput& input);
  // Waits until then and answers control calls meanwhile; a fence or a permit ends the wait.
  Status AwaitPace(Between& between);
  // Records the duration of the step that ended.
  void NotePace();

  // The state of this rank at the beginning of a layout.
  struct Held {
    PageStore pages;
    Adopted adopted;
    uint32_t next_block = 0;
  };
  // Collects the result of the copies ahead. With `waits` it waits, and sends heartbeats meanwhile.
  void TakeUp(Between* waits);
  // Waits until the agent writes to no page. kUnavailable: the copies did not end in time.
  Status AwaitCopies(Between& between);
  // False: the next copies could not be started.
  bool BeginCopies();
  // `pages` replace the active ones.
  Status Replace(PageStore pages);
  // The state after a repair: all requests are kept; KV is kept if it is on this rank only.
  Result<Held> Repaired(const Epoch& epoch);
  Status BindModel();

  Options options_;
  WorldView* const world_;
  Sink* const sink_;

  kv::Shape shape_;
  std::optional<model::Config> config_;
  std::optional<model::Model> model_;
  PageStore pages_;
  std::optional<KvMemory> kv_;
  Scheduler scheduler_;
  Reader dense_, pieces_;  // of the bound model; of the epoch
  ExpertStage experts_;
  StepMeter meter_;
  const Pacer pacer_;
  std::atomic<uint64_t> pace_waits_{0};
  uint64_t last_arrival_ = 0;

  const Epoch* epoch_ = nullptr;  // active; nullptr outside of a world
  HeldMap held_;
  // State of the step.
  std::vector<Chunk> chunks_;
  std::vector<Announced> homes_;
  // State of the flip: the plan, and the fetched KV.
  struct Transition {
    Carrying carrying;
    std::vector<RankManifest> manifests;
    Side to;
    std::vector<bool> listed;  // layers; empty: all
    std::optional<Held> brought;
  };
  std::optional<Transition> transition_;
  std::optional<Ahead> ahead_;  // while an attempt is staged
  Copies copies_;
  FilledBlocks filled_;
  // KV that flips migrated: bytes copied ahead and used, all bytes copied ahead, bytes copied in
  // flips.
  struct CarriedBytes {
    uint64_t used = 0, ahead = 0, flip = 0;
  } carried_;

  struct Paced {
    PacedLayout layout;
    double imbalance = 1;                                // of the experts, smoothed over some steps
    std::chrono::steady_clock::time_point begun, until;  // of the step
    enum class Ended { kUnpaced, kInTime, kLate, kCut } ended = Ended::kUnpaced;  // the last step
    PaceCounts counts;
  } paced_;
};

}  // namespace tangram::engine
