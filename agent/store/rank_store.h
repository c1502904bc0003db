// One rank's memory through a transition: its resident pieces, an attempt's new pieces, and the
// freed ones. The one implementation of RankMemory.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "agent/device/platform.h"
#include "agent/layout/prove.h"
#include "agent/loader/checkpoint.h"
#include "agent/loader/shared_reads.h"
#include "agent/memory/banks.h"
#include "agent/mover/grants.h"
#include "agent/mover/kv_source.h"
#include "agent/mover/mover.h"
#include "agent/store/hash_file.h"
#include "agent/store/pieces.h"
#include "agent/store/rank_memory.h"
#include "agent/store/shapes.h"

namespace tangram::store {

constexpr uint32_t kDenseParts = 16;

class RankStore final : public RankMemory {
 public:
  struct Options {
    std::string member;  // id; also in the names of its arenas in /proc
    std::shared_ptr<const loader::Checkpoint> checkpoint;
    std::string revision;  // of the checkpoint
    std::shared_ptr<const device::Platform> platform;
    uint32_t banks = 0;  // MoE layers + spare
    uint64_t pool_bytes = 0, kv_bytes = 0, control_bytes = 0;
    // File of the hashes that survive this process; empty: none, and no engine can resume.
    std::string hashes_file;
    mover::Grants* grants = nullptr;
    mover::Opener opener;
    // Of all ranks of the process: transports to other agents.
    std::shared_ptr<mover::Transports> transports;
    // This rank's location, as in the peers' addresses: near peers are queried first.
    std::string node, fabric, rail;
    // Reads of the checkpoint shared by the ranks of the process; null: this rank reads alone.
    std::shared_ptr<loader::SharedReads> reads;
    size_t load_threads = 1;   // that read the checkpoint concurrently for this rank
    double staging_share = 1;  // of its time in which a worker moves bytes while engines serve
    // As mover::Limits::after_failure.
    std::chrono::milliseconds after_failure = mover::Limits().after_failure;
    // The store of another member in this process, or null.
    std::function<RankStore*(const std::string& member)> sibling;
  };
  static Result<std::unique_ptr<RankStore>> Create(Options options);

  EngineRegions Regions() override;
  MemoryFigures Memory() override;
  v1::Inventory Held() override;
  uint64_t HeldVersion() override { return held_version_.load(); }
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

  std::string member();

  // Checks that pool + mapped = total, that exactly the held pieces own every page, and that these
  // are unchanged under the same version.
  Status Audit();
  // For tests, if the CPU can access it.
  std::span<std::byte> kv() const { return device::View(memories_.kv.memory); }
  // Location of a verified granule or tail, for tests; 0 bytes if it is not held.
  device::Memory Granule(uint32_t layer, uint32_t expert, uint32_t granule);
  device::Memory Tail(uint32_t layer, uint32_t expert);

 private:
  struct Attempt {
    uint64_t id = 0;
    int32_t rank = -1;
    bool committed = false;
    layout::PartProof proof;
    Pieces incoming;
    std::vector<uint32_t> dense_source;  // by part; empty: nothing to fetch
  };
  explicit RankStore(Options options)
      : options_(std::move(options)), shapes_(options_.checkpoint->geometry()) {}
  // A device as one range of memory.
  struct Region {
    device::Mapping mapping;
    device::Memory memory;
    device::Export exported;  // for engines
  };
  // The memory of a rank and its mappings.
  struct Memories {
    device::RankDevices devices;
    Region kv, control;
    std::unique_ptr<memory::Banks> banks;
    // Exports to agents of this node; created on the first request.
    std::shared_ptr<const mover::Window> weights_window, kv_window;
  };
  struct Kept;                     // adopt.cc
  static uint64_t FreshVersion();  // used by no other store
  Status Open();
  device::RankBytes Bytes() const {
    return {options_.pool_bytes, options_.kv_bytes, options_.control_bytes};
  }
  Status MapMemories(Memories* memories) const;
  Status Verify(Kept* kept, const std::vector<layout::PlacedPiece>& places,
                const std::stop_token& stop) const;
  const layout::GeometryView& geometry() const { return options_.checkpoint->geometry(); }
  device::Memory BytesOf(const layout::PlacedPiece& place, uint32_t granule, uint32_t count) const;
  // The same if the slab is `slab`.
  device::Memory GranulesIn(const device::Memory& slab, layout::Run run, uint32_t granule,
                            uint32_t count) const;
  device::Memory TailOf(const layout::PlacedPiece& place) const;  // 0 bytes: none
  device::Memory DenseBytes(size_t tensor) const;
  EngineMappings ToProto(const std::vector<memory::BackedRange>& ranges) const;
  // Prepare without its slow part. `fresh` receives the memory that the attempt will write.
  Status BackAttempt(uint64_t attempt, const v1::Layout& target, int32_t rank,
                     const v1::RankPart& part, std::vector<device::Memory>* fresh);
  // Ends the attempt, if there is one, and all grants.
  void EndAttemptLocked();
  void KeepLocked();
  void UndoCommitLocked();  // its gate did not flip
  // Frees places that no other rank reads: call EndAttemptLocked before.
  void ReleaseLocked(const std::vector<layout::PlacedPiece>& places, bool dense);
  v1::Inventory HeldLocked() const;
  // The connection to a rank of another agent, for this attempt; requires kv_mu_.
  mover::KvLink& LinkTo(const v1::Header& header, const v1::PeerAddress& peer);
  // The attempt has ended: stops its KV pulls, waits for their end (about limits::kStopLook) and
  // closes the connections.
  void CloseLinks();
  std::stop_token KvEnds();  // of the current pulls, by CloseLinks

  friend class CheckpointSource;
  friend class HeldSource;
  friend class RankSource;

  // serving.cc
  const Piece* FindLocked(uint32_t layer, uint32_t expert, layout::Run run) const;
  const Piece* FindTailLocked(uint32_t layer, uint32_t expert) const;
  // Grants the requested granules and tails, and returns their hashes.
  Status GrantPiecesLocked(const v1::OpenPullRequest& request, mover::Grant* grant,
                           v1::OpenPullResponse* out) const;
  // Locations of the granted memory, for a reader on this node.
  Result<mover::Shown> ShowLocked(const mover::Grant& grant);
  Status CopyOut(const std::string& token, std::span<const mover::Target> targets,
                 const std::function<void(uint64_t)>& done, const std::stop_token& stop);

  // stage.cc: peers in query order. Not under mu_.
  std::vector<uint32_t> PeersInOrder(const std::vector<v1::PeerAddress>& peers,
                                     uint32_t mine) const;
  void MarkVerified(const layout::PartProof::Move& move, const std::vector<uint64_t>& hashes);
  void MarkDense(uint32_t part, const std::vector<uint64_t>& hashes);
  void WarnOnce(const Status& status);
  // Ok if all pieces of the attempt are resident and verified; kWrongPhase names a missing one.
  Status CheckVerifiedLocked() const;

  const Options options_;
  const Shapes shapes_;
  std::unique_ptr<HashFile> hashes_;  // null: none
  std::atomic<bool> warned_{false};
  // Set by Open, and by Adopt before the rank is in any world.
  Memories memories_;

  std::mutex mu_;  // guards everything below
  std::string member_;
  // Version of current_, old_ and dense_here_; grows under mu_ after a change, read without it.
  std::atomic<uint64_t> held_version_ = FreshVersion();
  Pieces current_;  // of the active layout, and pieces that Keep() retained
  Pieces old_;      // of the previous layout, until Retire
  std::array<bool, kDenseParts> dense_here_{};
  std::vector<uint64_t> dense_hashes_;
  bool dense_backed_ = false;
  std::optional<Attempt> attempt_;
  uint64_t over_ = 0;  // the last attempt that ended here; it gets no more grants
  std::optional<std::pair<uint64_t, std::string>> audited_;  // a version, and the pieces held then
  // Lease of OpenPull's grants; before pages are freed it ends, and a new one begins.
  std::shared_ptr<mover::Lease> lease_ = std::make_shared<mover::Lease>();
  std::mutex kv_stop_mu_;
  std::stop_source kv_stop_;                                     // of the current pulls
  std::mutex kv_mu_;                                             // links_; never taken under mu_
  std::map<std::string, std::unique_ptr<mover::KvLink>> links_;  // by member
};

}  // namespace tangram::store
