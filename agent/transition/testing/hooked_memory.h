// A rank's memory with hooks before its slow operations. For tests.
#pragma once

#include <functional>
#include <utility>

#include "agent/store/rank_memory.h"

namespace tangram::testing {

// Called in the thread of each operation; set before it.
struct MemoryHooks {
  std::function<void()> before_examine, before_commit, before_held;
  std::function<void(const Origins&)> before_stage;
  std::function<void(const std::stop_token&)> before_kv_pull;
  std::function<Status()> before_new_mappings;  // an error is returned by the memory
};

class HookedMemory final : public RankMemory {
 public:
  HookedMemory(RankMemory* real, const MemoryHooks* hooks) : real_(real), hooks_(hooks) {}

  Result<std::unique_ptr<Adoption>> Examine(const v1::Resume& resume, int32_t rank, KeptFds kept,
                                            std::stop_token stop) override {
    if (hooks_->before_examine) hooks_->before_examine();
    return real_->Examine(resume, rank, std::move(kept), std::move(stop));
  }

  EngineRegions Regions() override { return real_->Regions(); }
  MemoryFigures Memory() override { return real_->Memory(); }
  v1::Inventory Held() override {
    if (hooks_->before_held) hooks_->before_held();
    return real_->Held();
  }
  uint64_t HeldVersion() override { return real_->HeldVersion(); }
  Status Prepare(uint64_t attempt, const v1::Layout& target, int32_t rank,
                 const v1::RankPart& part) override {
    return real_->Prepare(attempt, target, rank, part);
  }
  Status Stage(const v1::Header& header, const Origins& origins, StageProgress* progress,
               std::stop_token stop) override {
    if (hooks_->before_stage) hooks_->before_stage(origins);
    return real_->Stage(header, origins, progress, std::move(stop));
  }
  Status Commit() override {
    if (hooks_->before_commit) hooks_->before_commit();
    return real_->Commit();
  }
  void Abort() override { real_->Abort(); }
  Status Retire() override { return real_->Retire(); }
  void Keep() override { real_->Keep(); }
  Status Adopt(Adoption* adoption) override { return real_->Adopt(adoption); }
  void Reset(const std::string& member) override { real_->Reset(member); }
  Result<EngineMappings> CurrentMappings() override { return real_->CurrentMappings(); }
  Result<EngineMappings> NewMappings() override {
    if (hooks_->before_new_mappings) {
      TANGRAM_RETURN_IF_ERROR(hooks_->before_new_mappings());
    }
    return real_->NewMappings();
  }
  std::vector<v1::Mapping> DroppedMappings() override { return real_->DroppedMappings(); }
  Result<v1::OpenPullResponse> OpenPull(const v1::OpenPullRequest& request,
                                        const std::string& pod) override {
    return real_->OpenPull(request, pod);
  }
  Result<uint64_t> KvPull(const v1::KvPull& pull, const std::vector<v1::PeerAddress>& peers,
                          StageProgress* progress, std::stop_token stop) override {
    if (hooks_->before_kv_pull) hooks_->before_kv_pull(stop);
    return real_->KvPull(pull, peers, progress, std::move(stop));
  }

 private:
  RankMemory* const real_;
  const MemoryHooks* const hooks_;
};

}  // namespace tangram::testing
