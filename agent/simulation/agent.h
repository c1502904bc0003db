// One agent of a simulated world: the shipping executor over shipping stores on `ghost` memory,
// with simulated engines and other agents.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "agent/loader/testing/writer.h"
#include "agent/simulation/fibers.h"
#include "agent/store/rank_store.h"
#include "agent/transition/executor.h"

namespace tangram::simulation {

class World;
class Engine;

// Shared by all histories of a process: the model, and a platform without bytes.
struct Model {
  static const Model& Get();

  loader::testing::TempDir folder;
  std::shared_ptr<const loader::Checkpoint> checkpoint;
  std::shared_ptr<const device::Platform> platform;
  uint32_t banks = 0;

 private:
  Model();
};

// A rank's store. Its operations take simulated time and may fail.
class SlowMemory final : public RankMemory {
 public:
  SlowMemory(World* world, std::unique_ptr<store::RankStore> store)
      : world_(world), store_(std::move(store)) {}
  store::RankStore& store() { return *store_; }

  EngineRegions Regions() override { return store_->Regions(); }
  MemoryFigures Memory() override { return store_->Memory(); }
  v1::Inventory Held() override { return store_->Held(); }
  uint64_t HeldVersion() override { return store_->HeldVersion(); }
  Status Prepare(uint64_t attempt, const v1::Layout& target, int32_t rank,
                 const v1::RankPart& part) override;
  Status Stage(const v1::Header& header, const Origins& origins, StageProgress* progress,
               std::stop_token stop) override;
  Status Commit() override;
  void Abort() override;
  Status Retire() override;
  void Keep() override;
  Result<std::unique_ptr<Adoption>> Examine(const v1::Resume& resume, int32_t rank, KeptFds kept,
                                            std::stop_token stop) override {
    return store_->Examine(resume, rank, std::move(kept), std::move(stop));
  }
  Status Adopt(Adoption* adoption) override { return store_->Adopt(adoption); }
  void Reset(const std::string& member) override;
  Result<EngineMappings> CurrentMappings() override { return store_->CurrentMappings(); }
  Result<EngineMappings> NewMappings() override { return store_->NewMappings(); }
  std::vector<v1::Mapping> DroppedMappings() override { return store_->DroppedMappings(); }
  Result<v1::OpenPullResponse> OpenPull(const v1::OpenPullRequest& request,
                                        const std::string& pod) override {
    return store_->OpenPull(request, pod);
  }
  Result<uint64_t> KvPull(const v1::KvPull& pull, const std::vector<v1::PeerAddress>& peers,
                          StageProgress* progress, std::stop_token stop) override {
    return store_->KvPull(pull, peers, progress, std::move(stop));
  }

 private:
  World* const world_;
  const std::unique_ptr<store::RankStore> store_;
};

// The agent's process. The object lives until the history ends, even after the process died.
class Agent {
 public:
  Agent(World* world, int number, uint32_t ranks);
  ~Agent();

  // Completes all work in progress, unseen by others, and frees it. Not in a fiber.
  void Die();
  // Reports that the device's engine died.
  void EngineGone(uint32_t device);

  const int number;  // number of its pod, and owner of its fibers
  const std::string pod, address;
  bool alive = true;
  int handlers = 0;  // calls to it in progress
  std::vector<std::unique_ptr<SlowMemory>> memories;
  std::vector<std::unique_ptr<Engine>> engines;  // by device
  mover::Grants grants;
  std::unique_ptr<Executor> executor;

  GatePage* page(uint32_t device) const { return pages_[device]; }

 private:
  class Sockets;  // to its engines
  class Lines;    // to other agents

  World* const world_;
  std::vector<GatePage*> pages_;
  std::unique_ptr<Sockets> sockets_;
  std::unique_ptr<Lines> lines_;
};

}  // namespace tangram::simulation
