// A rank's memory through transitions: several ranks in one process, in two agents with TCP between
// them; every byte is compared with the checkpoint.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "agent/base/unique_fd.h"
#include "agent/device/hash.h"
#include "agent/store/rank_store.h"
#include "agent/store/testing/fixture.h"

namespace tangram::store {
namespace {

using testing::Member;
using testing::Small;
using testing::StoreTest;
using testing::World;

struct Walk {
  bool paged;
  uint64_t seed;
  bool shared_memory = false;
};
class Walks : public StoreTest, public ::testing::WithParamInterface<Walk> {};

TEST_F(StoreTest, ResumesMemoryAfterAgentDies) {
  for (const bool paged : {false, true}) {
    for (const uint64_t descriptor_bytes : {0, 3 * 4096}) {
      auto options = Small(paged, 11);
      options.memory.descriptor_bytes = descriptor_bytes;
      World world(options);
      Begin(world, 3, 1);
      bool done = false;
      ASSERT_OK(world.Flip(world.Reshaped(3, 3, &done)));  // some layers each way
      for (uint32_t rank = 0; rank < 3; ++rank) ASSERT_OK(world.Restart(world.at(rank)));
      ASSERT_OK(world.Check());
      const MemoryFigures memory = world.at(0).store->Memory();
      EXPECT_EQ(memory.total, memory.free + memory.mapped);
      // Resumed memory can be moved, read from and freed.
      ASSERT_OK(world.Reshape(1, 2));
      ASSERT_OK(world.Check());
    }
  }
}

TEST_F(StoreTest, RejectsIncompleteOrInvalidResume) {
  World world(Small(false, 12));
  Begin(world, 2, 1);
  RankStore& store = *world.at(0).store;
  v1::Resume resume;
  resume.set_member(world.at(0).id);
  *resume.mutable_layout() = world.layout;
  EXPECT_EQ(store.Examine(resume, 0, {}, {}).status().code(), Code::kInvalid) << "no descriptors";
  const auto refusal = [&] {
    const auto examined = store.Examine(resume, 0, world.KeptBy(world.at(0)).fds, {});
    EXPECT_EQ(examined.status().code(), Code::kInvalid);
    return examined.status().message();
  };
  resume = world.KeptBy(world.at(0)).resume;
  resume.clear_mappings();
  EXPECT_NE(refusal().find("no memory mapped"), std::string::npos) << refusal();
  resume = world.KeptBy(world.at(0)).resume;
  resume.mutable_mappings(0)->mutable_extents(0)->set_fd_index(4711);
  EXPECT_NE(refusal().find("descriptor 4711"), std::string::npos) << refusal();
  resume = world.KeptBy(world.at(0)).resume;
  resume.mutable_mappings(0)->mutable_extents(0)->set_fd_index(resume.kv(0).fd_index());
  EXPECT_NE(refusal().find("more than one of"), std::string::npos) << refusal();
  resume = world.KeptBy(world.at(0)).resume;
  resume.mutable_kv(0)->set_length(4096);
  EXPECT_NE(refusal().find("all of the KV memory"), std::string::npos) << refusal();
  resume = world.KeptBy(world.at(0)).resume;
  resume.clear_control();
  EXPECT_EQ(refusal().empty(), false);
  resume = world.KeptBy(world.at(0)).resume;
  resume.mutable_layout()->set_banks(resume.layout().banks() - 1);
  EXPECT_NE(refusal().find("banks"), std::string::npos) << refusal();
  resume = world.KeptBy(world.at(0)).resume;
  v1::Extent* extent = resume.mutable_mappings(0)->mutable_extents(0);
  extent->set_offset(UINT64_MAX - 4095);
  EXPECT_NE(refusal().find("claim"), std::string::npos) << refusal();
  ASSERT_OK(world.Check());
}

// Flips a bit of an arena that an engine kept for reading.
void Damage(int kept, uint64_t at) {
  const std::string path = "/proc/self/fd/" + std::to_string(kept);
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  char byte = 0;
  ASSERT_EQ(pread(fd.get(), &byte, 1, static_cast<off_t>(at)), 1);
  byte = static_cast<char>(byte ^ 1);
  ASSERT_EQ(pwrite(fd.get(), &byte, 1, static_cast<off_t>(at)), 1);
}

// The load-time hash of a granule stays valid, whichever process holds the memory meanwhile.
TEST_F(StoreTest, RejectsResumeWhenByteChanged) {
  World world(Small(true, 14));
  Begin(world, 2, 1);
  Member& member = world.at(0);
  const testing::Kept kept = world.KeptBy(member);
  ASSERT_OK(world.Replace(member));
  const auto examine = [&] { return member.store->Examine(kept.resume, 0, kept.Fds(), {}); };
  for (const bool dense : {false, true}) {
    uint64_t at = 0;
    int fd = -1;
    for (const v1::Mapping& mapping : kept.resume.mappings()) {
      if (mapping.dense() != dense) continue;
      at = mapping.extents(0).offset();
      fd = kept.of(mapping.extents(0));
    }
    Damage(fd, at);
    const Status status = examine().status();
    EXPECT_EQ(status.code(), Code::kCorrupt) << status.message();
    EXPECT_NE(status.message().find("has changed since it was loaded"), std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find(dense ? "dense tensor" : "granule"), std::string::npos);
    EXPECT_EQ(member.store->Held().layer_size(), 0) << "the rank is as it was: new";
    Damage(fd, at);  // and back
  }
  auto adoption = examine();
  ASSERT_OK(adoption.status());
  ASSERT_OK(member.store->Adopt(adoption->get()));
  EXPECT_EQ(member.store->Adopt(adoption->get()).code(), Code::kWrongPhase) << "it holds pieces";
  ASSERT_OK(world.Check());
}

TEST_F(StoreTest, RejectsResumeWithoutRecordedHashes) {
  World world(Small(false, 15));
  Begin(world, 2, 1);
  const std::string path = world.HashesFile(world.at(0));
  ASSERT_EQ(unlink(path.c_str()), 0);  // as if the machine had lost it
  const Status status = world.Restart(world.at(0));
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_NE(status.message().find("no hash was recorded at the load"), std::string::npos)
      << status.message();
}

TEST_F(StoreTest, RetainsStagedPiecesUntilReset) {
  World world(Small(true, 13));
  Begin(world, 3, 1);
  bool done = false;
  const v1::Layout target = world.Reshaped(3, 3, &done);
  ASSERT_OK(world.Prepare(target));
  ASSERT_OK(world.Stage(target));
  const int held = world.at(0).store->Held().layer_size();
  for (uint32_t rank = 0; rank < 3; ++rank) world.at(rank).store->Keep();
  EXPECT_GT(world.at(0).store->Held().layer_size(), held) << "staged pieces are in the inventory";
  for (uint32_t rank = 0; rank < 3; ++rank) ASSERT_OK(world.at(rank).store->Audit());
  world.at(1).store->Reset("pod-1/0/2");
  const MemoryFigures memory = world.at(1).store->Memory();
  EXPECT_EQ(memory.free, memory.total);
  EXPECT_EQ(world.at(1).store->member(), "pod-1/0/2");
  EXPECT_EQ(world.at(1).store->Held().layer_size(), 0);
}

// Random: Expert -> Tensor -> Expert, other placements, more and fewer ranks, mixed groups.
TEST_P(Walks, MatchesCheckpointAfterEveryFlip) {
  World::Options options = Small(GetParam().paged, GetParam().seed);
  options.shared_memory = GetParam().shared_memory;
  World world(options);
  Begin(world, 3, GetParam().seed % 2 == 0 ? 1 : 3);
  for (int step = 0; step < 6; ++step) {
    const auto ranks = static_cast<uint32_t>(world.layout.members_size());
    switch (world.random() % 3) {
      case 0: {
        if (ranks >= 6) break;
        std::vector<std::string> ids;
        for (uint64_t n = world.random() % 2 + 1; n > 0; --n) ids.push_back(world.AddMember().id);
        ASSERT_OK(world.Flip(world.Joined(ids)));
        break;
      }
      case 1: {
        if (ranks <= 2) break;
        const uint32_t active = ranks - 1;
        ASSERT_OK(world.Reshape(world.random() % 2 == 0 ? 1 : std::min(active, 5U), active));
        ASSERT_OK(world.Flip(world.Left(active)));
        break;
      }
      default: {
        const uint32_t groups[] = {1, std::min(ranks, 5U), ranks % 2 == 0 ? 2U : 1U};
        ASSERT_OK(world.Reshape(groups[world.random() % 3], ranks));
        break;
      }
    }
    ASSERT_OK(world.Check());
  }
}

INSTANTIATE_TEST_SUITE_P(Store, Walks,
                         ::testing::Values(Walk{false, 1}, Walk{false, 2}, Walk{false, 3},
                                           Walk{false, 4}, Walk{true, 5}, Walk{true, 6},
                                           Walk{false, 7, true}, Walk{true, 8, true}),
                         [](const auto& info) {
                           return (info.param.paged ? "Paged" : "Shared") +
                                  std::to_string(info.param.seed) +
                                  (info.param.shared_memory ? "OnOneNode" : "");
                         });

TEST_F(StoreTest, ReadsEachByteOnceAtFirstStart) {
  World world(Small(false, 1));
  Begin(world, 4, 4);
  uint64_t read = 0;
  for (const auto& [id, progress] : world.progress) {
    read += progress->checkpoint;
    EXPECT_EQ(progress->done, progress->total) << id;
  }
  uint64_t whole = 3 * 7 * world.geometry().expert_bytes();
  for (const auto& tensor : world.checkpoint->dense()) whole += tensor.info.bytes;
  EXPECT_EQ(read, whole);
}

TEST_F(StoreTest, ReadsNoCheckpointInTransition) {
  for (const bool one_node : {false, true}) {
    World::Options options = Small(false, 2);
    options.shared_memory = one_node;
    World world(options);
    Begin(world, 4, 1);
    bool done = false;
    ASSERT_OK(world.Flip(world.Reshaped(4, 4, &done)));
    uint64_t shared = 0, tcp = 0;
    for (const auto& [id, progress] : world.progress) {
      EXPECT_EQ(progress->checkpoint, 0U);
      EXPECT_EQ(progress->done, progress->total);
      EXPECT_EQ(progress->done, progress->shared + progress->tcp);
      shared += progress->shared;
      tcp += progress->tcp;
    }
    EXPECT_GT(shared, 0U);
    EXPECT_EQ(tcp == 0, one_node) << "nothing goes by a network that can be had without one";
  }
}

// The externally visible state of a rank: inventory, memory, mappings, all mapped bytes of the
// arena.
struct Snapshot {
  std::string inventory, mappings;
  uint64_t free = 0, mapped = 0;
  bool operator==(const Snapshot&) const = default;
};
Snapshot Look(RankStore& store) {
  Snapshot out;
  out.inventory = store.Held().SerializeAsString();
  const auto current = store.CurrentMappings();
  for (const v1::Mapping& mapping : current->mappings) {
    out.mappings += mapping.SerializeAsString();
  }
  out.free = store.Memory().free;
  out.mapped = store.Memory().mapped;
  return out;
}

TEST_F(StoreTest, RestoresOldLayoutExactlyAfterAbort) {
  for (const bool staged : {false, true}) {
    World world(Small(false, 3));
    Begin(world, 3, 1);
    std::vector<Snapshot> before;
    for (const auto& member : world.members) before.push_back(Look(*member->store));
    for (int round = 0; round < 3; ++round) {
      bool done = false;
      const v1::Layout target = world.Reshaped(round == 2 ? 1 : 3, 3, &done);
      ASSERT_OK(world.Prepare(target));
      if (staged) ASSERT_OK(world.Stage(target));
      for (const auto& member : world.members) ASSERT_OK(member->store->Audit());
      world.Abort(target);
      for (size_t i = 0; i < world.members.size(); ++i) {
        EXPECT_EQ(Look(*world.members[i]->store), before[i]);
      }
      ASSERT_OK(world.Check());
    }
    ASSERT_OK(world.Reshape(3, 3));  // and it still can
  }
}

TEST_F(StoreTest, FreesAllMemoryWhenFirstLayoutAborted) {
  World world(Small(false, 4));
  world.AddMember();
  const v1::Layout target = world.First(1);
  ASSERT_OK(world.Prepare(target));
  ASSERT_OK(world.Stage(target));
  EXPECT_LT(world.members[0]->store->Memory().free, world.members[0]->store->Memory().total);
  world.Abort(target);
  const MemoryFigures memory = world.members[0]->store->Memory();
  EXPECT_EQ(memory.free, memory.total);
  EXPECT_EQ(world.members[0]->store->Held().dense(), false);
  ASSERT_OK(world.Flip(target));
  ASSERT_OK(world.Check());
}

// Bytes of all maps of memfds in this process that a write finds without a fault.
uint64_t BytesEntered() {
  const UniqueFd pagemap(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  std::ifstream maps("/proc/self/maps");
  uint64_t out = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:") == std::string::npos) continue;
    size_t dash = 0;
    const uint64_t from = std::stoull(line, &dash, 16) / 4096;
    const uint64_t to = std::stoull(line.substr(dash + 1), nullptr, 16) / 4096;
    std::vector<uint64_t> entries(to - from);
    EXPECT_EQ(
        pread(pagemap.get(), entries.data(), entries.size() * 8, static_cast<off_t>(from * 8)),
        static_cast<ssize_t>(entries.size() * 8));
    for (const uint64_t entry : entries) out += entry >> 63 != 0 ? 4096 : 0;  // present
  }
  return out;
}

// Page faults happen where no other thread waits.
TEST_F(StoreTest, PopulatesPagesInPrepare) {
  World world(Small(true, 16));
  for (int i = 0; i < 2; ++i) world.AddMember();
  const v1::Layout target = world.First(1);
  const uint64_t before = BytesEntered();
  ASSERT_OK(world.Prepare(target));
  uint64_t mapped = 0;
  for (const auto& member : world.members) mapped += member->store->Memory().mapped;
  EXPECT_GT(mapped, 0U);
  EXPECT_GE(BytesEntered(), before + mapped);
  world.Abort(target);
}

TEST_F(StoreTest, FreesAllMemoryOfLeaver) {
  World world(Small(false, 5));
  Begin(world, 3, 1);
  ASSERT_OK(world.Reshape(1, 2));
  ASSERT_OK(world.Flip(world.Left(2)));
  const MemoryFigures memory = world.members[2]->store->Memory();
  EXPECT_EQ(memory.free, memory.total);
  EXPECT_EQ(world.members[2]->store->Held().layer_size(), 0);
  ASSERT_OK(world.Check());
}

TEST_F(StoreTest, KeepsOldPiecesAsSourcesUntilRetire) {
  World world(Small(false, 6));
  Begin(world, 2, 1);
  bool done = false;
  const v1::Layout target = world.Reshaped(2, 2, &done);
  RankStore& store = *world.members[0]->store;
  const uint32_t expert = world.layout.layers(0).experts(0).slots(0) - 1;
  ASSERT_OK(world.Prepare(target));
  ASSERT_OK(world.Stage(target));
  ASSERT_OK(store.Commit());
  for (uint32_t g = 0; g < world.geometry().granules(); ++g) {
    EXPECT_GT(store.Granule(0, expert, g).bytes, 0U) << g;
  }
  ASSERT_OK(store.Audit());
  ASSERT_OK(store.Retire());
  uint32_t kept = 0;
  for (uint32_t g = 0; g < world.geometry().granules(); ++g) {
    kept += store.Granule(0, expert, g).bytes == 0 ? 0 : 1;
  }
  EXPECT_LT(kept, world.geometry().granules());
}

// Memory was committed, and the gate did not flip (its engine can destroy the page). Every outcome
// of the attempt cleans this up.
TEST_F(StoreTest, AllowsCommitRetryOrAbortWithoutGateFlip) {
  World world(Small(false, 10));
  Begin(world, 2, 1);
  bool done = false;
  const v1::Layout target = world.Reshaped(2, 2, &done);
  ASSERT_OK(world.Prepare(target));
  ASSERT_OK(world.Stage(target));
  for (const auto& member : world.members) {
    ASSERT_OK(member->store->Commit());
    ASSERT_OK(member->store->Commit());
  }
  world.Abort(target);
  for (const auto& member : world.members) {
    ASSERT_OK(member->store->Audit());
    EXPECT_EQ(member->store->Retire().code(), Code::kWrongPhase) << "it is over";
  }
  ASSERT_OK(world.Flip(target));
  ASSERT_OK(world.Check());
}

TEST_F(StoreTest, RejectsCallsOutOfOrder) {
  World world(Small(false, 7));
  Begin(world, 2, 1);
  RankStore& store = *world.members[0]->store;
  StageProgress progress;
  EXPECT_EQ(store.Stage(world.HeaderOf(), {}, &progress, {}).code(), Code::kWrongPhase);
  EXPECT_EQ(store.Commit().code(), Code::kWrongPhase);
  EXPECT_EQ(store.Retire().code(), Code::kWrongPhase);
  store.Abort();  // without an attempt: no effect
  bool done = false;
  const v1::Layout target = world.Reshaped(2, 2, &done);
  ASSERT_OK(world.Prepare(target));
  EXPECT_EQ(store.Retire().code(), Code::kWrongPhase);
  EXPECT_EQ(store.Prepare(99, target, 0, world.PartOf(*world.members[0], target)).code(),
            Code::kWrongPhase);
  ASSERT_OK(world.Stage(target));
  ASSERT_OK(world.CommitAndRetire(target));
  ASSERT_OK(world.Check());
}

// No layout with unfetched bytes may become active.
TEST_F(StoreTest, RejectsCommitBeforeVerification) {
  World world(Small(false, 8));
  Begin(world, 2, 1);
  bool done = false;
  const v1::Layout target = world.Reshaped(2, 2, &done);
  ASSERT_OK(world.Prepare(target));
  EXPECT_EQ(world.members[0]->store->Commit().code(), Code::kWrongPhase);
  world.Abort(target);
  ASSERT_OK(world.Check());
}

// One page less than the walk's peak: enough for the layouts before and after.
TEST_F(StoreTest, RejectsPrepareWhenPeakExceedsMemory) {
  World::Options options = Small(false, 9);
  uint64_t peak = 0;
  for (const bool enough : {true, false}) {  // the same seed: the same layouts
    if (!enough) options.pool_pages = peak / 4096 - 1;
    World world(options);
    Begin(world, 2, 1);
    bool done = false;
    const v1::Layout target = world.Reshaped(2, 2, &done);
    const v1::RankPart part = world.PartOf(*world.members[0], target);
    RankStore& store = *world.members[0]->store;
    const Snapshot before = Look(store);
    const Status prepared = store.Prepare(50, target, 0, part);
    if (enough) {
      ASSERT_OK(prepared);
      peak = part.peak_bytes();
      ASSERT_LT(part.steady_bytes() + 4096, peak);
      continue;
    }
    ASSERT_EQ(part.peak_bytes(), peak);
    EXPECT_EQ(prepared.code(), Code::kNoMemory) << prepared.message();
    for (const uint64_t number : {peak, peak - 4096}) {
      EXPECT_NE(prepared.message().find(std::to_string(number)), std::string::npos)
          << prepared.message();
    }
    EXPECT_EQ(Look(store), before);
    ASSERT_OK(world.Check());
  }
}

TEST_F(StoreTest, RejectsInexactPartWithoutSideEffects) {
  World world(Small(false, 10));
  Begin(world, 2, 1);
  bool done = false;
  const v1::Layout target = world.Reshaped(2, 2, &done);
  Member& member = *world.members[0];
  const v1::RankPart good = world.PartOf(member, target);
  ASSERT_GT(good.fetches().layer_size(), 0);
  const Snapshot before = Look(*member.store);
  const auto refused = [&](const v1::RankPart& part) {
    const Status status = member.store->Prepare(70, target, 0, part);
    EXPECT_EQ(status.code(), Code::kBadPlan) << status.message();
    EXPECT_EQ(Look(*member.store), before);
  };
  v1::RankPart part = good;
  part.mutable_fetches()->mutable_layer()->RemoveLast();
  part.mutable_fetches()->mutable_expert()->RemoveLast();
  part.mutable_fetches()->mutable_granule_start()->RemoveLast();
  part.mutable_fetches()->mutable_granule_count()->RemoveLast();
  part.mutable_fetches()->mutable_source()->RemoveLast();
  refused(part);  // a granule without a source
  part = good;
  part.set_steady_bytes(part.steady_bytes() + 4096);
  refused(part);
  part = good;
  part.set_peak_bytes(part.steady_bytes());
  refused(part);
  part = good;
  part.mutable_fetches()->set_source(0, 1);  // itself
  refused(part);
  EXPECT_TRUE(member.store->Prepare(70, target, 0, good).ok());
}

}  // namespace
}  // namespace tangram::store
