// A rank's memory for tests: page for page as long as the address range, in memfds of two pages,
// like a device whose memory has handles. Each granule begins with a stamp of (layer, expert,
// granule). Bytes are made up, but every source of the part is first queried for the pull over real
// gRPC.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>

#include "agent/base/unique_fd.h"
#include "agent/layout/layout.h"
#include "agent/server/memory_host.h"

namespace tangram::testing {

uint64_t StampOf(uint32_t layer, uint32_t expert, uint32_t granule);

class TestMemory : public RankMemory {
 public:
  TestMemory(layout::GeometryView geometry, std::string member, uint32_t banks, uint64_t pool_bytes,
             uint64_t kv_bytes, PeerClient* peers);
  ~TestMemory() override;

  EngineRegions Regions() override;
  MemoryFigures Memory() override;
  v1::Inventory Held() override;
  uint64_t HeldVersion() override { return 1; }
  Status Prepare(uint64_t attempt, const v1::Layout& target, int32_t rank,
                 const v1::RankPart& part) override;
  Status Stage(const v1::Header& header, const Origins& origins, StageProgress* progress,
               std::stop_token stop) override;
  Status Commit() override;
  void Abort() override;
  Status Retire() override;
  void Keep() override;
  Result<std::unique_ptr<Adoption>> Examine(const v1::Resume& resume, int32_t rank, KeptFds kept,
                                            std::stop_token stop) override;
  Status Adopt(Adoption* adoption) override;
  void Reset(const std::string& member) override;
  Result<EngineMappings> CurrentMappings() override;
  Result<EngineMappings> NewMappings() override;
  std::vector<v1::Mapping> DroppedMappings() override;
  Result<v1::OpenPullResponse> OpenPull(const v1::OpenPullRequest& request,
                                        const std::string& pod) override;
  Result<uint64_t> KvPull(const v1::KvPull& pull, const std::vector<v1::PeerAddress>& peers,
                          StageProgress* progress, std::stop_token stop) override;

 private:
  using Pages = std::set<uint64_t>;  // within the whole range
  Pages PagesOf(const v1::Layout& layout, int32_t rank) const;
  EngineMappings Mappings(const Pages& pages) const;

  const layout::GeometryView geometry_;
  std::string member_;
  const uint32_t banks_;
  const uint64_t pool_bytes_, kv_bytes_, control_bytes_;
  PeerClient* const peers_;
  std::vector<SharedFd> weights_fds_;
  SharedFd kv_fd_, control_fd_;
  uint8_t* weights_ = nullptr;
  uint8_t* kv_ = nullptr;
  uint8_t* control_ = nullptr;
  std::mutex mu_;
  Pages current_, next_, held_;
  std::optional<v1::Layout> target_;
  int32_t target_rank_ = -1;
  std::optional<v1::RankPart> part_;
};

// Called by each KvPull of all TestMemory, in its thread, before it copies. Null: no call.
void SetBeforeKvPull(std::function<void(const std::stop_token&)> call);

// A MemoryFactory: geometry of `shape`, TestMemory for every member.
MemoryFactory TestHostOf(const v1::Geometry& shape);

}  // namespace tangram::testing
