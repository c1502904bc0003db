// The executor's interface to one rank's memory. RankStore (rank_store.h) is the one
// implementation; protocol tests have a small one of their own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "agent/base/unique_fd.h"
#include "agent/device/device.h"
#include "agent/device/platform.h"
#include "tangram/v1/agent.pb.h"
#include "tangram/v1/engine.pb.h"

namespace tangram {

// Bytes by transport name. Thread-safe.
class BytesByTransport {
 public:
  void Add(const std::string& way, uint64_t bytes) {
    const std::scoped_lock lock(mu_);
    bytes_[way] += bytes;
  }
  std::map<std::string, uint64_t> Get() const {
    const std::scoped_lock lock(mu_);
    return bytes_;
  }

 private:
  mutable std::mutex mu_;
  std::map<std::string, uint64_t> bytes_;
};

// The transport name within this process; all others are in agent/mover.
inline constexpr const char* kWithinProcess = "process";

// Bytes of one attempt, written during staging, readable at any time.
struct StageProgress {
  std::atomic<uint64_t> total{0}, done{0};
  std::atomic<uint64_t> local{0}, shared{0}, tcp{0}, wire{0}, checkpoint{0};
  BytesByTransport weights_by_way, kv_by_way;  // from other ranks
  std::atomic<uint64_t> peak{0};               // of the pool, when all pieces are resident
  std::atomic<uint64_t> corrupt{0};            // pulls that ended at bytes with a wrong hash
};

// Possible sources of an attempt's pieces.
struct Origins {
  std::vector<v1::PeerAddress> peers;        // with ranks of the target
  std::shared_ptr<const v1::Layout> before;  // active layout; null: none
  bool serving = false;                      // engines step meanwhile
  // If serving: share of its time in which a worker may move bytes. None: all.
  std::function<double()> share;
};

struct MemoryFigures {
  uint64_t total = 0, free = 0, mapped = 0;  // bytes of the pool; total = free + mapped at rest
  device::PlatformInfo info;
};

// Memory that an engine maps, and its description.
struct EngineRegions {
  device::Export kv, control;
  std::string platform;  // how weights and KV are mapped (agent/device/platform.h)
  bool hugetlb = false;
  uint64_t dense_bytes = 0, kv_bytes = 0, control_bytes = 0;
  uint32_t banks = 0;
  std::vector<v1::DenseTensor> dense_tensors;
  void* control_page = nullptr;  // the agent's own mapping of the control region
};

// Places of weights and their mappings: `fd_index` of an extent is an index into `descriptors`.
struct EngineMappings {
  std::vector<v1::Mapping> mappings;
  std::vector<SharedFd> descriptors;
};

// Descriptors that an engine kept, by the number that extents of its Resume use.
using KeptFds = std::map<uint32_t, UniqueFd>;
// The rank's exported descriptors that replace them.
using ShownFds = std::map<uint32_t, SharedFd>;

// Order of calls: Prepare, Stage, then Commit and Retire, or Abort. Stage blocks in its own thread;
// OpenPull, KvPull and the getters may run in parallel with all others.
class RankMemory {
 public:
  virtual ~RankMemory() = default;

  virtual EngineRegions Regions() = 0;
  virtual MemoryFigures Memory() = 0;
  virtual v1::Inventory Held() = 0;
  // Changes whenever Held changes, also after the agent's death. Never blocks.
  virtual uint64_t HeldVersion() = 0;

  // Proves the part, checks its peak against the pool, backs the pages. An error undoes all. rank =
  // -1: the rank leaves with this flip. kBadPlan, kNoMemory.
  virtual Status Prepare(uint64_t attempt, const v1::Layout& target, int32_t rank,
                         const v1::RankPart& part) = 0;
  // Fetches and verifies every piece of the part.
  virtual Status Stage(const v1::Header& header, const Origins& origins, StageProgress* progress,
                       std::stop_token stop) = 0;
  // May be repeated while the rank's gate has not flipped.
  virtual Status Commit() = 0;
  // Frees the attempt's pieces, even if they were committed, because the gate did not flip.
  virtual void Abort() = 0;
  virtual Status Retire() = 0;
  // Ends a staged or committed attempt without freeing verified pieces: they are sources for a
  // repair until a later flip's target does not name them. Its grants to others end, as with Abort
  // and Retire.
  virtual void Keep() = 0;
  // Memory that an engine kept after its agent's death. It is mapped and verified next to the rank,
  // which does not use it yet.
  class Adoption {
   public:
    virtual ~Adoption() = default;
    virtual void* control() = 0;  // the agent's own mapping of the control region in it
    virtual ShownFds descriptors() = 0;
  };
  // The layout gives the places, the mappings the pages. Every granule is hashed and compared with
  // its load-time hash. `rank` = -1: it was in no layout. Takes as long as reading all of it. May
  // run in parallel with everything, never blocks on others, changes nothing. kInvalid: it is
  // malformed; kCorrupt: some bytes are wrong; kUnavailable: stopped.
  virtual Result<std::unique_ptr<Adoption>> Examine(const v1::Resume& resume, int32_t rank,
                                                    KeptFds kept, std::stop_token stop) = 0;
  // The rank uses it from now on, and its previous memory is destroyed with `adoption`.
  // kWrongPhase, without a change: the rank holds pieces of its own.
  virtual Status Adopt(Adoption* adoption) = 0;
  // Frees everything; the rank continues under another member id.
  virtual void Reset(const std::string& member) = 0;

  // Errors, here and below: the memory cannot be exported (for example, no descriptors are left).
  virtual Result<EngineMappings> CurrentMappings() = 0;
  virtual Result<EngineMappings> NewMappings() = 0;  // of the attempt, after Prepare
  // Places that Retire will free after Commit; their extents have only lengths.
  virtual std::vector<v1::Mapping> DroppedMappings() = 0;

  // `pod`: of the caller's certificate; only it may read the bytes. Empty: a rank of this process.
  virtual Result<v1::OpenPullResponse> OpenPull(const v1::OpenPullRequest& request,
                                                const std::string& pod) = 0;
  // Moves KV of ranks of the previous layout into this rank's. Returns the bytes; counts wrong
  // bytes that were fetched again in `progress`. Waits for a source that does not know the attempt
  // yet, and may never learn of it. `stop`, Abort, Retire, Keep and Reset end it with kUnavailable;
  // these calls wait for its end, for about limits::kStopLook.
  virtual Result<uint64_t> KvPull(const v1::KvPull& pull, const std::vector<v1::PeerAddress>& peers,
                                  StageProgress* progress, std::stop_token stop) = 0;
};

}  // namespace tangram
