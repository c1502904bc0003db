// Tails of experts are verified whatever their source, as granules are.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "agent/base/fault.h"
#include "agent/device/hash.h"
#include "agent/store/rank_store.h"
#include "agent/store/testing/fixture.h"

namespace tangram::store {
namespace {

using loader::testing::Family;
using testing::Small;
using testing::StoreTest;
using testing::World;

World::Options Tailed(uint64_t seed) { return Small(Family::kGptOss, seed); }

// Flips a bit of every tail of the rank in layers of which the target keeps no piece; returns the
// number.
int SpoilTails(World& world, uint32_t rank, const v1::Layout& target) {
  int spoiled = 0;
  for (int l = 0; l < target.layers_size(); ++l) {
    const v1::LayerLayout &now = world.layout.layers(l), &next = target.layers(l);
    if (next.SerializeAsString() == now.SerializeAsString()) continue;
    for (uint32_t expert = 0; expert < world.geometry().experts(); ++expert) {
      const auto tail = device::View(world.at(rank).store->Tail(target.layers(l).layer(), expert));
      if (tail.empty()) continue;
      tail.back() ^= std::byte{1};
      ++spoiled;
    }
  }
  return spoiled;
}

struct Staged {
  uint64_t corrupt = 0, checkpoint = 0;
};
Staged Sum(const World& world) {
  Staged out;
  for (const auto& [id, progress] : world.progress) {
    out.corrupt += progress->corrupt;
    out.checkpoint += progress->checkpoint;
  }
  return out;
}

// Corrupts each unit of a pull in turn, including tails: between ranks of an agent, over TCP, and
// by the node's memory.
TEST_F(StoreTest, RefetchesUnitCorruptedInTransit) {
  for (const auto& [nodes, one_node] : {std::pair(1U, false), {3U, false}, {3U, true}}) {
    int hit = 0;
    World::Options options = Tailed(50);
    options.nodes = nodes;
    options.shared_memory = one_node;
    World world(options);
    Begin(world, 3, 1);
    for (int unit = 1; unit <= 24; ++unit) {
      bool done = false;
      const v1::Layout target = world.Reshaped(unit % 2 == 0 ? 1 : 3, 3, &done);
      ASSERT_OK(world.Prepare(target));
      ASSERT_TRUE(fault::Arm("stage.after_fetch=corrupt@" + std::to_string(unit)).ok());
      ASSERT_OK(world.Stage(target));
      ASSERT_TRUE(fault::Arm("").ok());
      hit += Sum(world).corrupt > 0 ? 1 : 0;
      ASSERT_OK(world.CommitAndRetire(target));
      ASSERT_OK(world.Check());
    }
    EXPECT_EQ(hit, 24) << nodes << " agents" << (one_node ? " on one node" : "");
  }
}

// Corrupted at rest: in the rank itself, in another one, in all. Each is detected, and another
// source is used.
TEST_F(StoreTest, RejectsTailCorruptedAtRest) {
  for (const uint32_t nodes : {1U, 3U}) {
    for (const std::vector<uint32_t>& ranks :
         {std::vector<uint32_t>{0}, std::vector<uint32_t>{2}, std::vector<uint32_t>{0, 1, 2}}) {
      World::Options options = Tailed(51);
      options.nodes = nodes;
      World world(options);
      Begin(world, 3, 1);
      bool done = false;
      const v1::Layout target = world.Reshaped(3, 3, &done);
      int spoiled = 0;
      for (const uint32_t rank : ranks) spoiled += SpoilTails(world, rank, target);
      ASSERT_GT(spoiled, 0);
      ASSERT_OK(world.Prepare(target));
      ASSERT_OK(world.Stage(target));
      EXPECT_GT(Sum(world).corrupt, 0U);
      EXPECT_GT(Sum(world).checkpoint, 0U) << "nobody else has the expert";
      ASSERT_OK(world.CommitAndRetire(target));
      ASSERT_OK(world.Check());
    }
  }
}

// Two ranks exchange their shards: neither has a granule that it needs, both have the tail. If a
// rank's own tail is corrupted, the other rank provides it, and the checkpoint is not read.
TEST_F(StoreTest, UsesTailOfOtherShard) {
  for (const uint32_t nodes : {1U, 2U}) {
    for (const bool spoil : {false, true}) {
      World::Options options = Tailed(52);
      options.nodes = nodes;
      World world(options);
      Begin(world, 2, 2);
      v1::Layout target = world.layout;
      target.set_epoch(target.epoch() + 1);
      for (v1::LayerLayout& layer : *target.mutable_layers()) {
        layer.mutable_experts(0)->mutable_ranks()->SwapElements(0, 1);
      }
      if (spoil) {
        ASSERT_GT(SpoilTails(world, 0, target), 0);
      }
      ASSERT_OK(world.Prepare(target));
      ASSERT_OK(world.Stage(target));
      EXPECT_EQ(Sum(world).corrupt > 0, spoil);
      EXPECT_EQ(Sum(world).checkpoint, 0U);
      const uint64_t tails = world.geometry().moe_layers() * world.geometry().experts() *
                             world.geometry().tail_bytes();
      EXPECT_EQ(world.progress.at(world.at(1).id)->local, tails);
      EXPECT_EQ(world.progress.at(world.at(0).id)->local, spoil ? 0 : tails);
      ASSERT_OK(world.CommitAndRetire(target));
      ASSERT_OK(world.Check());
    }
  }
}

TEST_F(StoreTest, RejectsResumeWhenTailChanged) {
  World world(Tailed(53));
  Begin(world, 2, 1);
  testing::Member& member = world.at(0);
  const testing::Kept kept = world.KeptBy(member);
  // The first piece's tail, in the descriptor.
  const layout::PlacedPiece piece = layout::PiecesOf(world.layout, world.geometry(), 0)[0];
  const uint64_t in_bank = piece.offset + piece.bytes - 1;
  uint64_t at = ~uint64_t{0};
  for (const v1::Mapping& mapping : kept.resume.mappings()) {
    if (mapping.dense() || mapping.bank() != piece.bank) continue;
    uint64_t offset = mapping.offset();
    for (const v1::Extent& extent : mapping.extents()) {
      if (in_bank >= offset && in_bank < offset + extent.length()) {
        at = extent.offset() + in_bank - offset;
      }
      offset += extent.length();
    }
  }
  ASSERT_NE(at, ~uint64_t{0});
  ASSERT_OK(world.Replace(member));
  const auto flip = [&] {
    const std::string path =
        "/proc/self/fd/" + std::to_string(kept.of(kept.resume.mappings(0).extents(0)));
    const UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
    char byte = 0;
    ASSERT_EQ(pread(fd.get(), &byte, 1, static_cast<off_t>(at)), 1);
    byte = static_cast<char>(byte ^ 1);
    ASSERT_EQ(pwrite(fd.get(), &byte, 1, static_cast<off_t>(at)), 1);
  };
  const auto examine = [&] { return member.store->Examine(kept.resume, 0, kept.Fds(), {}); };
  flip();
  const Status status = examine().status();
  EXPECT_EQ(status.code(), Code::kCorrupt) << status.message();
  EXPECT_NE(status.message().find("tail has changed since it was loaded"), std::string::npos)
      << status.message();
  flip();
  auto adoption = examine();
  ASSERT_OK(adoption.status());
  ASSERT_OK(member.store->Adopt(adoption->get()));
  ASSERT_OK(world.Check());
}

v1::OpenPullRequest Ask(const World& world, uint32_t expert, layout::Run run,
                        const std::vector<uint32_t>& tails) {
  v1::OpenPullRequest request;
  *request.mutable_header() = world.HeaderOf();
  request.mutable_pieces()->add_layer(0);
  request.mutable_pieces()->add_expert(expert);
  request.mutable_pieces()->add_granule_start(run.start);
  request.mutable_pieces()->add_granule_count(run.count);
  for (const uint32_t row : tails) request.add_tails(row);
  return request;
}

TEST_F(StoreTest, ServesVerifiedTailsByRow) {
  World world(Tailed(54));
  world.AddMember();
  const v1::Layout target = world.First(1);
  RankStore& store = *world.members[0]->store;
  const auto code = [&](const v1::OpenPullRequest& request) {
    return store.OpenPull(request, "pod").status().code();
  };
  ASSERT_OK(world.Prepare(target));
  EXPECT_EQ(code(Ask(world, 0, {0, 0}, {0})), Code::kNotHeld);
  ASSERT_OK(world.Stage(target));
  for (const layout::Run run : {layout::Run{1, 3}, layout::Run{0, 0}}) {
    const auto opened = store.OpenPull(Ask(world, 0, run, {0}), "pod");
    ASSERT_OK(opened.status());
    EXPECT_EQ(opened->granule_hashes_size(), static_cast<int>(run.count));
    ASSERT_EQ(opened->tail_hashes_size(), 1);
    EXPECT_EQ(opened->tail_hashes(0), device::HashOf(device::View(store.Tail(0, 0))));
  }
  EXPECT_EQ(store.OpenPull(Ask(world, 0, {1, 3}, {}), "pod")->tail_hashes_size(), 0);
  EXPECT_EQ(code(Ask(world, 7, {0, 0}, {0})), Code::kUnavailable) << "no such expert";
  for (const std::vector<uint32_t>& bad :
       {std::vector<uint32_t>{1}, std::vector<uint32_t>{0, 0}, std::vector<uint32_t>{0, 7}}) {
    EXPECT_EQ(code(Ask(world, 0, {1, 3}, bad)), Code::kInvalid);
  }
  World plain(Small(false, 55));
  Begin(plain, 1, 1);
  v1::OpenPullRequest next = Ask(plain, 0, {0, 5}, {0});
  next.mutable_header()->set_attempt(plain.attempt + 1);
  EXPECT_EQ(plain.at(0).store->OpenPull(next, "pod").status().code(), Code::kInvalid)
      << "these experts have none";
}

// Each rank that reads a shard requests and counts its tail; ranks of one agent that read together
// read it once.
TEST_F(StoreTest, ReadsTailOnceInJointRead) {
  World::Options options = Tailed(56);
  options.nodes = 1;
  World world(options);
  for (int i = 0; i < 4; ++i) world.AddMember();
  const v1::Layout target = world.First(4);
  ASSERT_OK(world.Prepare(target));
  const auto before = world.checkpoint->reads();
  ASSERT_OK(world.Stage(target));
  uint64_t dense = 0;
  for (const auto& tensor : world.checkpoint->dense()) dense += tensor.info.bytes;
  const uint64_t experts = uint64_t{world.geometry().moe_layers()} * world.geometry().experts();
  const uint64_t once = experts * world.geometry().expert_bytes() + dense;
  const uint64_t tails = 3 * experts * world.geometry().tail_bytes();
  EXPECT_EQ(Sum(world).checkpoint, once + tails);
  const uint64_t read = world.checkpoint->reads().bytes - before.bytes;
  EXPECT_GE(read, once);
  EXPECT_LE(read, once + tails) << "who comes late reads it again";
  ASSERT_OK(world.CommitAndRetire(target));
  ASSERT_OK(world.Check());
}

}  // namespace
}  // namespace tangram::store
