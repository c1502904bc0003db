// Reads of the checkpoint for a first layout: each byte once for the world, also when files or
// readers fail.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>

#include "agent/base/testing/no_threads.h"
#include "agent/store/testing/fixture.h"

namespace {
std::function<void()> first_read;  // before each thread's first read; set while no thread reads
}

// Overrides the C library's.
extern "C" ssize_t preadv(int fd, const iovec* parts, int count, off_t offset) {
  thread_local bool read = false;
  if (first_read && !read) first_read();
  read = true;
  return syscall(SYS_preadv, fd, parts, count, offset, 0);
}

namespace tangram::store {
namespace {

using testing::Small;
using testing::StoreTest;
using testing::World;

uint64_t TensorBytes(const World& world) {
  uint64_t bytes = uint64_t{world.geometry().moe_layers()} * world.geometry().experts() *
                   world.geometry().expert_bytes();
  for (const auto& tensor : world.checkpoint->dense()) bytes += tensor.info.bytes;
  return bytes;
}

// Ranks of one agent and of several; whole experts, groups, and shards over all ranks.
TEST_F(StoreTest, ReadsEveryTensorOnceForFirstLayout) {
  for (const uint32_t nodes : {1U, 2U, 4U}) {
    for (const uint32_t group : {1U, 2U, 4U}) {
      World::Options options = Small(false, 20 + group);
      options.nodes = nodes;
      options.load_threads = group;
      World world(options);
      for (int i = 0; i < 4; ++i) world.AddMember();
      const v1::Layout target = world.First(group);
      ASSERT_OK(world.Prepare(target));
      const auto before = world.checkpoint->reads();
      ASSERT_OK(world.Stage(target));
      EXPECT_EQ(world.checkpoint->reads().bytes - before.bytes, TensorBytes(world))
          << nodes << " agents, groups of " << group;
      ASSERT_OK(world.CommitAndRetire(target));
      ASSERT_OK(world.Check());
    }
  }
}

// At the pod's process limit, one thread reads everything.
TEST_F(StoreTest, LoadsFirstLayoutWithoutExtraThreads) {
  World::Options options = Small(false, 26);
  options.load_threads = 4;
  World world(options);
  world.AddMember();
  const v1::Layout target = world.First(1);
  ASSERT_OK(world.Prepare(target));
  StageProgress progress;
  tangram::testing::WithoutThreads([&] {
    ASSERT_OK(
        world.members[0]->store->Stage(world.HeaderOf(), world.OriginsOf(target), &progress, {}));
  });
  ASSERT_OK(world.CommitAndRetire(target));
  ASSERT_OK(world.Check());
}

// Ranks of one agent read shards together: of each expert all of gate, all of up, all of down.
TEST_F(StoreTest, RanksOfAnAgentReadShardsTogether) {
  World::Options options = Small(false, 21);
  options.nodes = 1;
  options.shape.hidden = 256;
  options.pool_pages = 4096;
  World world(options);
  for (int i = 0; i < 4; ++i) world.AddMember();
  const v1::Layout target = world.First(4);
  ASSERT_OK(world.Prepare(target));
  const auto before = world.checkpoint->reads();
  // Each begins with dense weights that it reads for all; by then its other reads are registered.
  std::atomic<int> begun{0};
  first_read = [&] {
    ++begun;
    begun.notify_all();
    for (int seen = begun; seen < 4; seen = begun) begun.wait(seen);
  };
  const Status staged = world.Stage(target);
  first_read = nullptr;
  ASSERT_OK(staged);
  const uint64_t experts = uint64_t{world.geometry().moe_layers()} * world.geometry().experts();
  EXPECT_EQ(world.checkpoint->reads().calls - before.calls,
            3 * experts + world.checkpoint->dense().size());
  ASSERT_OK(world.CommitAndRetire(target));
  ASSERT_OK(world.Check());
}

TEST_F(StoreTest, FailsStageWhenFileShrinks) {
  for (const uint32_t group : {1U, 3U}) {
    World world(Small(false, 22));
    for (int i = 0; i < 3; ++i) world.AddMember();
    const v1::Layout target = world.First(group);
    ASSERT_OK(world.Prepare(target));
    const std::string file = world.dir.path() + "/model-00002-of-00002.safetensors";
    const auto size = std::filesystem::file_size(file);
    std::filesystem::resize_file(file, size / 2);
    const Status staged = world.Stage(target);
    EXPECT_EQ(staged.code(), Code::kInvalid);
    EXPECT_NE(staged.message().find(file + ": cannot read at byte"), std::string::npos)
        << staged.message();
    world.Abort(target);
    for (const auto& member : world.members) {
      EXPECT_EQ(member->store->Memory().free, member->store->Memory().total);
      ASSERT_OK(member->store->Audit());
    }
  }
}

// The reader of some dense weights is unreachable: the others read them themselves.
TEST_F(StoreTest, ReadsCheckpointWhenDenseReaderUnreachable) {
  World::Options options = Small(false, 23);
  options.nodes = 3;
  World world(options);
  for (int i = 0; i < 3; ++i) world.AddMember();
  const v1::Layout target = world.First(1);
  ASSERT_OK(world.Prepare(target));
  world.unreachable.insert(world.members[1]->id);
  const auto before = world.checkpoint->reads();
  ASSERT_OK(world.Stage(target));
  uint64_t again = 0;  // its parts, read again by each of the two others
  for (size_t t = 0; t < world.checkpoint->dense().size(); ++t) {
    if (t % kDenseParts % 3 == 1) again += 2 * world.checkpoint->dense()[t].info.bytes;
  }
  EXPECT_GT(again, 0U);
  EXPECT_EQ(world.checkpoint->reads().bytes - before.bytes, TensorBytes(world) + again);
  ASSERT_OK(world.CommitAndRetire(target));
  ASSERT_OK(world.Check());
}

// It stops with its attempt while others read: no rank may write to its pages afterwards.
TEST_F(StoreTest, ContinuesJointReadWhenOneRankStops) {
  World::Options options = Small(false, 24);
  options.nodes = 1;
  World world(options);
  for (int i = 0; i < 3; ++i) world.AddMember();
  const v1::Layout target = world.First(3);
  ASSERT_OK(world.Prepare(target));
  StageProgress progress;
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(
      world.members[2]
          ->store->Stage(world.HeaderOf(), world.OriginsOf(target), &progress, stop.get_token())
          .code(),
      Code::kUnavailable);
  world.members[2]->store->Abort();
  ASSERT_OK(world.members[2]->store->Audit());
  ASSERT_OK(world.members[2]->store->Prepare(world.attempt, target, 2,
                                             world.PartOf(*world.members[2], target)));
  ASSERT_OK(world.Stage(target));
  ASSERT_OK(world.CommitAndRetire(target));
  ASSERT_OK(world.Check());
}

}  // namespace
}  // namespace tangram::store
