// What the executor needs of one rank's memory. RankStore (rank_store.h) is the one
// implementation; the tests of the protocol bring a small one of their own.
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

// Bytes by the way that they came: a name of the way, and how many. Thread-safe.
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

// The way from a rank of this process; all others are transports (agent/mover).
inline constexpr const char* kWithinProcess = "process";

// Bytes of one attempt, written while it stages, read at any time.
struct StageProgress {
  std::atomic<uint64_t> total{0}, done{0};
  std::atomic<uint64_t> local{0}, shared{0}, tcp{0}, wire{0}, checkpoint{0};
  BytesByTransport weights_by_way, kv_by_way;  // from other ranks
  std::atomic<uint64_t> peak{0};               // of the pool, in use when all is there
  std::atomic<uint64_t> corrupt{0};  // pulls that broke off at bytes that differ from their hash
};

// Who may have what an attempt brings.
struct Origins {
  std::vector<v1::PeerAddress> peers;        // ranks are the target's
  std::shared_ptr<const v1::Layout> before;  // in force; null: none
  bool serving = false;                      // engines take steps meanwhile
  // Then: how much of its time a worker may move bytes. None: all of it.
  std::function<double()> share;
};

struct MemoryFigures {
  uint64_t total = 0, free = 0, mapped = 0;  // bytes of the pool; total = free + mapped at rest
  device::PlatformInfo info;
};

// What an engine maps, and what it is to know of it.
struct EngineRegions {
  device::Export kv, control;
  std::string platform;  // how weights and KV are mapped (agent/device/platform.h)
  bool hugetlb = false;
  uint64_t dense_bytes = 0, kv_bytes = 0, control_bytes = 0;
  uint32_t banks = 0;
  std::vector<v1::DenseTensor> dense_tensors;
  void* control_page = nullptr;  // the agent's own mapping of the control region
};

// Places of weights and what an engine maps there: `fd_index` of an extent is one of `descriptors`.
struct EngineMappings {
  std::vector<v1::Mapping> mappings;
  std::vector<SharedFd> descriptors;
};

// Descriptors that an engine kept, each under the number by which extents of its Resume name it.
using KeptFds = std::map<uint32_t, UniqueFd>;
// What the rank shows instead of them.
using ShownFds = std::map<uint32_t, SharedFd>;

// Order of calls: Prepare, Stage, then Commit and Retire, or Abort. Stage blocks in its own
// thread; OpenPull, KvPull and the getters may run beside everything.
class RankMemory {
 public:
  virtual ~RankMemory() = default;

  virtual EngineRegions Regions() = 0;
  virtual MemoryFigures Memory() = 0;
  virtual v1::Inventory Held() = 0;
  // Another one whenever Held is, also after the agent's death. Waits for nobody.
  virtual uint64_t HeldVersion() = 0;

  // Proves the part, checks its peak against the pool, backs the pages. An error leaves nothing.
  // rank = -1: leaves with this flip. kBadPlan, kNoMemory.
  virtual Status Prepare(uint64_t attempt, const v1::Layout& target, int32_t rank,
                         const v1::RankPart& part) = 0;
  // Brings and verifies every piece of the part.
  virtual Status Stage(const v1::Header& header, const Origins& origins, StageProgress* progress,
                       std::stop_token stop) = 0;
  // May be repeated while the rank's gate has not flipped.
  virtual Status Commit() = 0;
  // Gives back what the attempt brought, also if it was committed: then its gate did not flip.
  virtual void Abort() = 0;
  virtual Status Retire() = 0;
  // Ends a staged or committed attempt and gives nothing back: what is verified stays held, as
  // a source for a repair, until a later flip's target does not name it. What was granted to others
  // in the attempt ends with it, as it does by Abort and Retire.
  virtual void Keep() = 0;
  // What an engine kept of a rank whose agent died, mapped and verified beside the rank, which
  // knows nothing of it yet.
  class Adoption {
   public:
    virtual ~Adoption() = default;
    virtual void* control() = 0;  // the agent's own mapping of the control region in it
    virtual ShownFds descriptors() = 0;
  };
  // The layout tells the places, the mappings the pages; every granule is hashed, and must be
  // what it was when it was loaded. `rank` = -1: it was in no layout. Takes as long as reading
  // all of it; runs beside everything, waits for nobody, changes nothing. kInvalid: it is not
  // what it should be; kCorrupt: some bytes are not; kUnavailable: stopped.
  virtual Result<std::unique_ptr<Adoption>> Examine(const v1::Resume& resume, int32_t rank,
                                                    KeptFds kept, std::stop_token stop) = 0;
  // The rank goes on with it from now on, and what it had before goes with `adoption`.
  // kWrongPhase, and nothing has changed: the rank holds pieces of its own.
  virtual Status Adopt(Adoption* adoption) = 0;
  // Drops everything; the rank goes on under another member id.
  virtual void Reset(const std::string& member) = 0;

  // An error, here and below: the memory cannot be exported (descriptors are used up, say).
  virtual Result<EngineMappings> CurrentMappings() = 0;
  virtual Result<EngineMappings> NewMappings() = 0;  // of the attempt, after Prepare
  // By Retire, after Commit: places whose extents have lengths alone.
  virtual std::vector<v1::Mapping> DroppedMappings() = 0;

  // `pod`: who asks, by its certificate; nobody else gets the bytes. Empty: a rank of this process.
  virtual Result<v1::OpenPullResponse> OpenPull(const v1::OpenPullRequest& request,
                                                const std::string& pod) = 0;
  // Moves KV of ranks of the layout before the flip into this rank's. Answers the bytes; wrong ones
  // that came and were asked for again are counted in `progress`. Waits for a source that has not
  // heard of the attempt, which may never come. `stop`, Abort, Retire, Keep and Reset end it, with
  // kUnavailable; these wait for its end, for limits::kStopLook or so.
  virtual Result<uint64_t> KvPull(const v1::KvPull& pull, const std::vector<v1::PeerAddress>& peers,
                                  StageProgress* progress, std::stop_token stop) = 0;
};

}  // namespace tangram
