// Sources of a rank's missing pieces if one is unreachable, returns wrong bytes, or is waited for.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <span>
#include <string>
#include <thread>

#include "agent/base/fault.h"
#include "agent/base/testing/hang.h"
#include "agent/store/rank_store.h"
#include "agent/store/testing/fixture.h"

namespace tangram::store {
namespace {

using testing::Small;
using testing::StoreTest;
using testing::World;

class FaultyPull : public StoreTest {
 protected:
  void Run(const std::string& spec) {
    World::Options options = Small(false, 11);
    options.nodes = 4;  // every pull uses TCP
    World world(options);
    Begin(world, 4, 1);
    bool done = false;
    const v1::Layout target = world.Reshaped(4, 4, &done);
    ASSERT_OK(world.Prepare(target));
    ASSERT_TRUE(fault::Arm(spec).ok());
    ASSERT_OK(world.Stage(target));
    ASSERT_TRUE(fault::Arm("").ok());
    for (const auto& [id, progress] : world.progress) corrupt_ += progress->corrupt;
    ASSERT_OK(world.CommitAndRetire(target));
    ASSERT_OK(world.Check());
  }
  uint64_t corrupt_ = 0;  // counted pulls
};

TEST_F(FaultyPull, RefetchesCorruptedBytes) {
  Run("stage.after_fetch=corrupt@5");
  EXPECT_EQ(corrupt_, 1U);
}
TEST_F(FaultyPull, RetriesFailedFetch) {
  Run("stage.before_fetch=error");
  EXPECT_EQ(corrupt_, 0U);
}
TEST_F(FaultyPull, RetriesBrokenConnection) { Run("stage.after_fetch=error@7"); }

TEST_F(StoreTest, ReadsCheckpointWhenSourceUnreachable) {
  World::Options options = Small(false, 12);
  options.nodes = 3;
  World world(options);
  Begin(world, 3, 1);
  bool done = false;
  const v1::Layout target = world.Reshaped(3, 3, &done);
  ASSERT_OK(world.Prepare(target));
  world.unreachable.insert(world.members[1]->id);
  ASSERT_OK(world.Stage(target));
  uint64_t read = 0;
  for (const auto& [id, progress] : world.progress) {
    read += progress->checkpoint;
    EXPECT_EQ(progress->done, progress->total);
  }
  EXPECT_GT(read, 0U);
  ASSERT_OK(world.CommitAndRetire(target));
  ASSERT_OK(world.Check());
}

// A joiner gets the dense weights from any member; they are not read again while a member has them.
TEST_F(StoreTest, FetchesDenseWeightsFromReachableMember) {
  World::Options options = Small(false, 12);
  options.nodes = 4;
  World world(options);
  Begin(world, 3, 1);
  const std::string joiner = world.AddMember().id;
  const v1::Layout target = world.Joined({joiner});
  ASSERT_OK(world.Prepare(target));
  world.unreachable.insert(world.members[0]->id);
  ASSERT_OK(world.Stage(target));
  EXPECT_EQ(world.progress.at(joiner)->checkpoint, 0U);
  EXPECT_EQ(world.progress.at(joiner)->done, world.progress.at(joiner)->total);
  EXPECT_GT(world.progress.at(joiner)->done, 0U);
  ASSERT_OK(world.CommitAndRetire(target));
  ASSERT_OK(world.Check());
}

// A rank's own copy is a source like others: corrupted bytes in it are replaced from elsewhere.
TEST_F(StoreTest, ReplacesCorruptedLocalCopyFromCheckpoint) {
  World world(Small(false, 12));
  Begin(world, 3, 1);
  bool done = false;
  const v1::Layout target = world.Reshaped(3, 3, &done);
  RankStore& store = *world.members[0]->store;
  int spoiled = 0;
  for (const v1::LayerLayout& layer : target.layers()) {
    if (layer.expert_group_size() != 3) continue;
    for (uint32_t expert = 0; expert < world.geometry().experts(); ++expert) {
      for (uint32_t g = 0; g < world.geometry().granules(); ++g) {
        const std::span<std::byte> bytes = device::View(store.Granule(layer.layer(), expert, g));
        if (bytes.empty()) continue;
        bytes[0] ^= std::byte{1};
        ++spoiled;
      }
    }
  }
  ASSERT_GT(spoiled, 0);
  ASSERT_OK(world.Prepare(target));
  ASSERT_OK(world.Stage(target));
  uint64_t read = 0, corrupt = 0;
  for (const auto& [id, progress] : world.progress) {
    read += progress->checkpoint;
    corrupt += progress->corrupt;
  }
  EXPECT_GT(read, 0U);
  EXPECT_GT(corrupt, 0U);
  ASSERT_OK(world.CommitAndRetire(target));
  ASSERT_OK(world.Check());
}

TEST_F(StoreTest, FailsStageOnFaultBeforeVerification) {
  World world(Small(false, 13));
  Begin(world, 2, 1);
  bool done = false;
  const v1::Layout target = world.Reshaped(2, 2, &done);
  ASSERT_OK(world.Prepare(target));
  ASSERT_TRUE(fault::Arm("stage.before_verify=error").ok());
  EXPECT_FALSE(world.Stage(target).ok());
  world.Abort(target);
  ASSERT_OK(world.Check());
}

TEST_F(StoreTest, StopsStageDuringWaitForSource) {
  World world(Small(false, 14));
  for (int i = 0; i < 2; ++i) world.AddMember();
  const v1::Layout target = world.First(2);
  ASSERT_OK(world.Prepare(target));
  // Only rank 1 stages: the parts that rank 0 should read never come.
  std::stop_source stop;
  StageProgress progress;
  Status staged;
  std::jthread stager([&] {
    staged = world.members[1]->store->Stage(world.HeaderOf(), world.OriginsOf(target), &progress,
                                            stop.get_token());
  });
  EXPECT_TRUE(tangram::testing::Eventually([&] { return progress.checkpoint > 0; }));
  stop.request_stop();
  stager.join();  // without the stop it would wait forever
  EXPECT_EQ(staged.code(), Code::kUnavailable) << staged.message();
  world.Abort(target);
  for (const auto& member : world.members) {
    EXPECT_EQ(member->store->Memory().free, member->store->Memory().total);
  }
}

// The world with another copy, at `to`, of each expert that `from` holds.
v1::Layout Copied(const World& world, int from, int to) {
  v1::Layout out = world.layout;
  out.set_epoch(out.epoch() + 1);
  for (v1::LayerLayout& layer : *out.mutable_layers()) {
    for (const uint32_t slot : world.layout.layers(layer.layer()).experts(from).slots()) {
      if (slot != 0) layer.mutable_experts(to)->add_slots(slot);
    }
  }
  return out;
}

// A rank with a copy of an expert in the active layout replaces the planned source; the checkpoint
// is not read.
TEST_F(StoreTest, UsesReplicaWhenSourceUnreachable) {
  World::Options options = Small(false, 12);
  options.nodes = 3;
  World world(options);
  Begin(world, 3, 1);
  ASSERT_OK(world.Flip(Copied(world, 0, 1)));
  ASSERT_OK(world.Check());
  const v1::Layout target = Copied(world, 0, 2);
  const v1::RankPart part = world.PartOf(world.at(2), target);
  const auto& planned = part.fetches().source();
  ASSERT_GT(std::count(planned.begin(), planned.end(), 1), 0) << "some are to come from rank 0";
  ASSERT_GT(std::count(planned.begin(), planned.end(), 2), 0) << "and some from rank 1";
  ASSERT_OK(world.Prepare(target));
  world.unreachable.insert(world.at(0).id);
  ASSERT_OK(world.Stage(target));
  const StageProgress& progress = *world.progress.at(world.at(2).id);
  EXPECT_EQ(progress.checkpoint, 0U);
  EXPECT_EQ(progress.tcp, progress.total);
  EXPECT_GT(progress.total, 0U);
  ASSERT_OK(world.CommitAndRetire(target));
  ASSERT_OK(world.Check());
}

// The nearest holder is used: here a rank of the same agent, by memory.
TEST_F(StoreTest, UsesNearestReplicaWhenSourceUnreachable) {
  World world(Small(false, 12));  // ranks 0 and 2 in one agent, 1 and 3 in another
  Begin(world, 4, 1);
  ASSERT_OK(world.Flip(Copied(world, 0, 2)));
  ASSERT_OK(world.Flip(Copied(world, 0, 3)));
  const v1::Layout target = Copied(world, 0, 1);
  const auto random = world.random;
  const v1::RankPart part = world.PartOf(world.at(1), target);
  world.random = random;                 // so that Prepare draws the same
  std::map<uint32_t, uint64_t> planned;  // bytes, by source
  for (int i = 0; i < part.fetches().source_size(); ++i) {
    planned[part.fetches().source(i)] +=
        part.fetches().granule_count(i) * world.geometry().granule_bytes();
  }
  ASSERT_GT(std::min({planned[1], planned[3], planned[4]}), 0U) << "some from each";
  ASSERT_OK(world.Prepare(target));
  world.unreachable.insert(world.at(0).id);
  ASSERT_OK(world.Stage(target));
  const StageProgress& progress = *world.progress.at(world.at(1).id);
  // Pieces of the missing rank 0 come from 3.
  EXPECT_EQ(progress.checkpoint, 0U);
  EXPECT_EQ(progress.tcp, planned[3]);
  EXPECT_EQ(progress.shared, planned[1] + planned[4]);
  ASSERT_OK(world.CommitAndRetire(target));
  ASSERT_OK(world.Check());
}

// Four agents on four nodes: 1 and 3 in one NVLink domain, 0 and 2 in another.
TEST_F(StoreTest, PrefersReplicaInSameNvlinkDomain) {
  World::Options options = Small(false, 12);
  options.nodes = 4;
  options.fabrics = 2;
  World world(options);
  Begin(world, 4, 1);
  ASSERT_OK(world.Flip(Copied(world, 0, 2)));
  ASSERT_OK(world.Flip(Copied(world, 0, 3)));
  const v1::Layout target = Copied(world, 0, 1);
  const auto random = world.random;
  const v1::RankPart part = world.PartOf(world.at(1), target);
  world.random = random;                 // so that Prepare draws the same
  std::map<uint32_t, uint64_t> planned;  // bytes, by source
  for (int i = 0; i < part.fetches().source_size(); ++i) {
    planned[part.fetches().source(i)] +=
        part.fetches().granule_count(i) * world.geometry().granule_bytes();
  }
  ASSERT_GT(std::min({planned[1], planned[3], planned[4]}), 0U) << "some from each";
  ASSERT_OK(world.Prepare(target));
  world.unreachable.insert(world.at(0).id);
  world.asked.clear();
  ASSERT_OK(world.Stage(target));
  EXPECT_EQ(world.asked[world.at(2).id], planned[3]);
  EXPECT_EQ(world.asked[world.at(3).id], planned[4] + planned[1]) << "what 0 does not give";
  ASSERT_OK(world.CommitAndRetire(target));
  ASSERT_OK(world.Check());
}

}  // namespace
}  // namespace tangram::store
