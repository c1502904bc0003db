// Grants of a rank's memory to others, and their end.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "agent/base/testing/hang.h"
#include "agent/device/hash.h"
#include "agent/mover/tcp_transport.h"
#include "agent/store/rank_store.h"
#include "agent/store/testing/fixture.h"

namespace tangram::store {
namespace {

using testing::Small;
using testing::StoreTest;
using testing::World;

v1::OpenPullRequest Ask(const World& world, uint32_t layer, uint32_t expert, layout::Run run) {
  v1::OpenPullRequest request;
  *request.mutable_header() = world.HeaderOf();
  request.mutable_pieces()->add_layer(layer);
  request.mutable_pieces()->add_expert(expert);
  request.mutable_pieces()->add_granule_start(run.start);
  request.mutable_pieces()->add_granule_count(run.count);
  return request;
}

TEST_F(StoreTest, ServesOnlyVerifiedPieces) {
  World world(Small(false, 15));
  world.AddMember();
  const v1::Layout target = world.First(1);
  RankStore& store = *world.members[0]->store;
  EXPECT_EQ(store.OpenPull(Ask(world, 0, 0, {0, 5}), "pod").status().code(), Code::kNotHeld);
  ASSERT_OK(world.Prepare(target));
  EXPECT_EQ(store.OpenPull(Ask(world, 0, 0, {0, 5}), "pod").status().code(), Code::kNotHeld);
  v1::OpenPullRequest dense;
  dense.add_dense_parts(3);
  EXPECT_EQ(store.OpenPull(dense, "pod").status().code(), Code::kNotHeld);
  ASSERT_OK(world.Stage(target));
  const auto opened = store.OpenPull(Ask(world, 0, 0, {1, 3}), "pod");
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  ASSERT_EQ(opened->granule_hashes_size(), 3);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(opened->granule_hashes(static_cast<int>(i)),
              device::HashOf(device::View(store.Granule(0, 0, 1 + i))));
  }
  EXPECT_TRUE(store.OpenPull(dense, "pod").ok());
  // Callers must not wait for pieces that are neither resident nor planned.
  dense.set_dense_parts(0, 16);
  EXPECT_EQ(store.OpenPull(dense, "pod").status().code(), Code::kUnavailable);
  for (const layout::Run bad : {layout::Run{3, 3}, layout::Run{5, 1}, layout::Run{~0U, 2}}) {
    EXPECT_EQ(store.OpenPull(Ask(world, 0, 0, bad), "pod").status().code(), Code::kUnavailable)
        << bad.start;
  }
  EXPECT_EQ(store.OpenPull(Ask(world, 0, 7, {0, 1}), "pod").status().code(), Code::kUnavailable);
  EXPECT_EQ(store.OpenPull(Ask(world, 9, 0, {0, 1}), "pod").status().code(), Code::kUnavailable);
  v1::OpenPullRequest ragged = Ask(world, 0, 0, {0, 1});
  ragged.mutable_pieces()->add_layer(1);
  EXPECT_EQ(store.OpenPull(ragged, "pod").status().code(), Code::kInvalid);
}

TEST_F(StoreTest, RevokesTokensWhenAttemptEnds) {
  World world(Small(false, 16));
  world.AddMember();
  const v1::Layout target = world.First(1);
  ASSERT_OK(world.Prepare(target));
  ASSERT_OK(world.Stage(target));
  RankStore& store = *world.members[0]->store;
  ASSERT_TRUE(store.OpenPull(Ask(world, 0, 0, {0, 5}), "pod").ok());
  ASSERT_TRUE(store.OpenPull(Ask(world, 1, 0, {0, 5}), "pod").ok());
  EXPECT_EQ(world.nodes[0]->grants.open(), 2U);
  world.Abort(target);
  EXPECT_EQ(world.nodes[0]->grants.open(), 0U);
}

// A repair retains all verified pieces. Grants of the previous attempt end anyway: KV pages will
// belong to other requests.
TEST_F(StoreTest, RevokesTokensWhenPiecesRetained) {
  World world(Small(false, 18));
  world.AddMember();
  const v1::Layout target = world.First(1);
  ASSERT_OK(world.Prepare(target));
  ASSERT_OK(world.Stage(target));
  RankStore& store = *world.members[0]->store;
  const v1::OpenPullRequest pull = Ask(world, 0, 0, {0, 5});
  v1::OpenPullRequest kv;
  *kv.mutable_header() = world.HeaderOf();
  kv.set_kv(true);
  ASSERT_TRUE(store.OpenPull(pull, "pod").ok());
  const auto opened = store.OpenPull(kv, "pod");
  ASSERT_TRUE(opened.ok());
  const auto redeemed = world.nodes[0]->grants.Redeem(opened->token(), "pod");  // as a connection
  ASSERT_TRUE(redeemed && !redeemed->lease->ended());
  store.Keep();
  EXPECT_EQ(world.nodes[0]->grants.open(), 0U);
  EXPECT_TRUE(redeemed->lease->ended());
  EXPECT_GT(store.Held().layer_size(), 0) << "all was kept";
  // Calls that were checked before the end, and granted after it.
  for (const v1::OpenPullRequest& late : {pull, kv}) {
    EXPECT_EQ(store.OpenPull(late, "pod").status().message(), "attempt 1 has ended on this agent");
  }
  v1::OpenPullRequest next = pull;
  next.mutable_header()->set_attempt(2);
  EXPECT_TRUE(store.OpenPull(next, "pod").ok()) << "a source for the repair";
}

// Pages are freed while others read them: a reader may fail, but never accepts wrong bytes, and no
// process crashes.
TEST_F(StoreTest, ServesNoWrongBytesWhenAbortedDuringReads) {
  World world(Small(true, 17));
  world.AddMember();
  const v1::Layout target = world.First(1);
  RankStore& store = *world.members[0]->store;
  const uint64_t unit = world.geometry().granule_bytes();
  const std::string data = "127.0.0.1:" + std::to_string(world.nodes[0]->server->port());
  std::atomic<int> good{0}, failed{0}, wrong{0};
  std::vector<std::byte> truth(5 * unit);
  ASSERT_OK(world.checkpoint->ReadGranules(0, 0, {0, 5}, truth));
  for (int round = 0; round < 8; ++round) {
    ASSERT_OK(world.Prepare(target));
    ASSERT_OK(world.Stage(target));
    const int seen = good + failed + wrong;
    std::stop_source stop;
    std::vector<std::jthread> readers;
    for (int r = 0; r < 3; ++r) {
      readers.emplace_back([&] {
        while (!stop.stop_requested()) {
          const auto opened = store.OpenPull(Ask(world, 0, 0, {0, 5}), "pod");
          if (!opened.ok()) break;
          std::vector<std::byte> copy(5 * unit);
          std::vector<mover::Target> targets;
          for (uint32_t g = 0; g < 5; ++g) {
            targets.push_back({device::Memory::Own(std::span(copy).subspan(g * unit, unit)),
                               opened->granule_hashes(static_cast<int>(g))});
          }
          const Status pulled = mover::PieceLink(world.credentials, data)
                                    .Pull(opened->token(), targets, {}, [](auto) {});
          if (!pulled.ok()) {
            ++failed;
          } else if (copy == truth) {
            ++good;
          } else {
            ++wrong;
          }
        }
      });
    }
    // Wait until a reader has read, however slow the machine is.
    EXPECT_TRUE(tangram::testing::Eventually([&] { return good + failed + wrong != seen; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(round));
    world.Abort(target);
    stop.request_stop();
    readers.clear();
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(good, 0);
  ASSERT_OK(store.Audit());
}

}  // namespace
}  // namespace tangram::store
