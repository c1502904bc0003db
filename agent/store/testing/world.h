// Several ranks in one process, in two "agents" with a TCP listener each, a simple planner, and
// flips of all ranks together. For tests.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "agent/loader/testing/reference.h"
#include "agent/loader/testing/writer.h"
#include "agent/mover/data_server.h"
#include "agent/mover/wire_server.h"
#include "agent/net/testing/certs.h"
#include "agent/store/rank_store.h"
#include "agent/store/testing/engine_view.h"

namespace tangram::store::testing {

struct Node {  // one agent
  mover::Grants grants;
  std::unique_ptr<mover::WireServer> wires;  // null: none
  std::unique_ptr<mover::DataServer> server;
  std::shared_ptr<loader::SharedReads> reads;
};

struct Member {
  std::string id;
  uint32_t node = 0;
  std::unique_ptr<RankStore> store;
  EngineView engine;
};

// Memory and state that an engine keeps after its agent's death.
struct Kept {
  v1::Resume resume;
  KeptFds fds;
  KeptFds Fds() const;  // new descriptors of the same files
  int of(const v1::Extent& extent) const;
  int control() const;  // of the control page
};

class World {
 public:
  struct Options {
    loader::testing::ModelShape shape;
    uint32_t granule_rows = 8, spare_banks = 2, nodes = 2;
    uint64_t pool_pages = 512, kv_bytes = 65536;
    device::PlatformOptions memory;  // mapped in pages of 4096
    device::WireOptions wire;        // between nodes, if it has a name
    uint32_t fabrics = 0;  // number of NVLink domains, to which members belong in turn; 0: none
    bool shared_memory = false;  // nodes are pods of one node, which may map each other's memory
    uint64_t seed = 1;
    size_t load_threads = 1;
    std::chrono::milliseconds after_failure{1};  // delay before a failed source is used again
    v1::SlabFormat format = v1::SLAB_FORMAT_GRANULE_MAJOR;
  };
  explicit World(const Options& options);
  ~World();

  const layout::GeometryView& geometry() const { return checkpoint->geometry(); }
  Member& AddMember();  // in no layout yet
  // Its agent dies; a new one takes over the memory that its engine has mapped.
  Status Restart(Member& member);
  // The same in steps: its engine's state, and a new agent's store in place of the old.
  Kept KeptBy(const Member& member) const;
  Status Replace(Member& member);
  // File of the load-time hashes, which survives its agent.
  std::string HashesFile(const Member& member) const;
  Member& member(const std::string& id);
  Member& at(uint32_t rank) { return member(layout.members(static_cast<int>(rank)).id()); }

  // --- targets; the layout stays as it is -------------------------------------------------
  // Nothing -> all members, g as given (1 or the number of ranks).
  v1::Layout First(uint32_t group);
  // New members with dense weights.
  v1::Layout Joined(const std::vector<std::string>& ids);
  // Up to spare_banks layers that are not yet so become (g, on ranks 0..active-1); layers that stay
  // at g = 1 change in place. `*done`: no layer is left to change.
  v1::Layout Reshaped(uint32_t group, uint32_t active, bool* done);
  // Without the ranks from `active` on.
  v1::Layout Left(uint32_t active);

  // --- plan and flip -----------------------------------------------------------------------
  // The member's part for the target; sources are random holders.
  v1::RankPart PartOf(const Member& member, const v1::Layout& target);
  // All members of the layout or of the target.
  std::vector<std::string> Everyone(const v1::Layout& target) const;
  std::vector<v1::PeerAddress> Addresses(const v1::Layout& target) const;
  Origins OriginsOf(const v1::Layout& target) const {
    return {Addresses(target), std::make_shared<const v1::Layout>(layout)};
  }
  v1::Header HeaderOf() const;

  Status Prepare(const v1::Layout& target);
  // All ranks concurrently, each in its thread; the first error.
  Status Stage(const v1::Layout& target);
  Status CommitAndRetire(const v1::Layout& target);
  void Abort(const v1::Layout& target);
  // Prepare, Stage, Commit, Retire; audits.
  Status Flip(const v1::Layout& target);
  Status Reshape(uint32_t group, uint32_t active);

  // Compares every byte of every rank, as the agent and as its engine see it, with a slow read of
  // the checkpoint. Pieces must be exactly those of the layout. Audits the pool.
  Status Check();

  std::shared_ptr<net::Credentials> credentials =
      net::testing::TestCa().Open("test", "agent", "pod");
  std::mt19937_64 random;
  loader::testing::TempDir dir;
  std::shared_ptr<const loader::Checkpoint> checkpoint;
  std::shared_ptr<const device::Platform> platform;
  std::shared_ptr<device::Wires> wires;  // null: none
  std::shared_ptr<mover::Transports> transports;
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<std::unique_ptr<Member>> members;
  v1::Layout layout;
  uint64_t attempt = 0;
  // Requested bytes of granules, by the member that holds them.
  std::map<std::string, uint64_t> asked;
  std::mutex asked_mu;
  std::set<std::string> unreachable;          // members whose OpenPull fails
  std::set<std::string> unheard;              // members that do not know the attempt yet
  std::set<std::string> silent;               // members that do not reply to OpenPull
  std::atomic<size_t> opens{0};               // calls of OpenPull
  std::map<std::string, v1::RankPart> parts;  // of the last Prepare
  std::map<std::string, std::unique_ptr<StageProgress>> progress;  // of the last Stage

 private:
  std::string FabricOf(const Member& member) const;
  RankStore::Options StoreOptions(const Member& member, const std::string& id);

  const Options options_;
  // Expected bytes of a piece with its tail: granule by granule, and in slab order.
  struct Truth {
    std::string in_order, in_slab;
  };
  const Truth& TruthOf(uint32_t layer, uint32_t expert, layout::Run run);
  v1::LayerLayout LayerOf(const v1::Layout& base, uint32_t layer, uint32_t group, uint32_t active,
                          std::set<uint32_t>* banks);

  std::unique_ptr<loader::testing::Reference> reference_;
  std::map<std::array<uint32_t, 4>, Truth> truths_;
};

}  // namespace tangram::store::testing
