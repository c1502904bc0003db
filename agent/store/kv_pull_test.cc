// KV between ranks: two in one process, one in another agent.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <set>
#include <stop_token>

#include "agent/base/fault.h"
#include "agent/base/testing/hang.h"
#include "agent/store/rank_store.h"
#include "agent/store/testing/world.h"

namespace tangram::store {
namespace {

using testing::World;

// With and without mapping the other agent's memory.
class KvPullTest : public ::testing::TestWithParam<bool> {
 protected:
  KvPullTest() : world_(OptionsOf(GetParam())) {
    for (int i = 0; i < 3; ++i) world_.AddMember();  // 0 and 2 share an agent
    for (size_t m = 0; m < 3; ++m) {
      auto kv = world_.members[m]->store->kv();
      for (size_t i = 0; i < kv.size(); ++i) kv[i] = std::byte((i * 13 + m * 101 + i / 255) & 0xff);
    }
    target_ = world_.First(1);
  }
  static World::Options OptionsOf(bool shared_memory) {
    World::Options options;
    options.seed = 18;
    options.shared_memory = shared_memory;
    return options;
  }
  static void Add(v1::KvPull* pull, uint32_t rank, uint64_t from, uint64_t to, uint32_t length) {
    pull->add_source_rank(rank);
    pull->add_source_offset(from);
    pull->add_target_offset(to);
    pull->add_length(length);
  }
  void TearDown() override { ASSERT_TRUE(fault::Arm("").ok()); }

  World world_;
  v1::Layout target_;
  StageProgress progress_;
};

INSTANTIATE_TEST_SUITE_P(Store, KvPullTest, ::testing::Bool(), [](const auto& info) {
  return info.param ? "OnOneNode" : "OverTheNetwork";
});

TEST_P(KvPullTest, PullsFromSiblingOtherAgentAndSelf) {
  RankStore& store = *world_.members[0]->store;
  v1::KvPull pull;
  const std::vector<std::byte> before(store.kv().begin(), store.kv().end());
  std::vector<std::byte> want = before;
  for (uint32_t i = 0; i < 60; ++i) {
    const uint32_t rank = i % 3;
    const uint64_t from = 32768 + uint64_t{i} * 500;  // targets are below: no hazard
    Add(&pull, rank, from, uint64_t{i} * 512, 512 - i);
    const auto kv = world_.members[rank]->store->kv();
    std::copy_n(kv.begin() + static_cast<int64_t>(from), 512 - i, want.begin() + int64_t{i} * 512);
  }
  uint64_t sum = 0;
  for (const uint32_t length : pull.length()) sum += length;
  // Without a fault, and with a corrupted byte, which is fetched again.
  for (const char* fault : {"", "kv.before_pull=corrupt"}) {
    ASSERT_TRUE(fault::Arm(fault).ok());
    std::copy(before.begin(), before.end(), store.kv().begin());
    const auto pulled = store.KvPull(pull, world_.Addresses(target_), &progress_, {});
    ASSERT_TRUE(pulled.ok()) << pulled.status().message();
    EXPECT_EQ(*pulled, sum);
    EXPECT_EQ(progress_.corrupt, *fault == 0 || GetParam() ? 0U : 1U);
    EXPECT_TRUE(std::equal(want.begin(), want.end(), store.kv().begin()));
  }
}

// After an abort, pages belong to others: an open connection must return nothing more.
TEST_P(KvPullTest, RejectsPullOverOpenConnectionAfterSourceAborts) {
  ASSERT_TRUE(world_.Prepare(target_).ok());
  ASSERT_TRUE(world_.Stage(target_).ok());
  RankStore& store = *world_.members[0]->store;
  const auto pull = [&](uint64_t to) {
    v1::KvPull pull;
    Add(&pull, 1, 32768, to, 512);
    return store.KvPull(pull, world_.Addresses(target_), &progress_, {});
  };
  const auto first = pull(0);
  ASSERT_TRUE(first.ok()) << first.status().message();
  world_.unreachable.insert(world_.members[1]->id);  // no new tokens
  const auto second = pull(512);
  ASSERT_TRUE(second.ok()) << "over the same connection: " << second.status().message();
  world_.members[1]->store->Abort();
  const std::vector<std::byte> before(store.kv().begin(), store.kv().end());
  EXPECT_FALSE(pull(1024).ok());
  // On one node bytes are copied first, and count only if the source then confirms them.
  const bool same = std::equal(before.begin(), before.end(), store.kv().begin());
  EXPECT_TRUE(same || GetParam());
}

// A driver that dies may leave an attempt that one agent has and another never learns of.
TEST_P(KvPullTest, StopsWaitForSourceWithoutAttempt) {
  RankStore& store = *world_.members[0]->store;
  world_.unheard.insert(world_.members[1]->id);
  std::stop_source stop;
  auto pulled = std::async(std::launch::async, [&] {
    v1::KvPull pull;
    Add(&pull, 1, 32768, 0, 512);
    return store.KvPull(pull, world_.Addresses(target_), &progress_, stop.get_token());
  });
  EXPECT_EQ(pulled.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  stop.request_stop();
  EXPECT_EQ(pulled.get().status().code(), Code::kUnavailable);
  store.Abort();  // waits for pulls
}

// Abort, Resolve and Release wait for the memory, but an unresponsive source delays them only by
// the time that a stop takes. Nothing else stops the pull here.
TEST_P(KvPullTest, StopsPullWhenAttemptEnds) {
  struct End {
    const char* name;
    void (*call)(RankStore&);
  };
  const std::vector<End> ends{{"Abort", [](RankStore& store) { store.Abort(); }},
                              {"Keep", [](RankStore& store) { store.Keep(); }},
                              {"Retire",
                               [](RankStore& store) {
                                 ASSERT_TRUE(store.Commit().ok());
                                 ASSERT_TRUE(store.Retire().ok());
                               }},
                              {"Reset", [](RankStore& store) { store.Reset("another"); }}};
  for (const End& end : ends) {
    for (const bool hangs : {false, true}) {
      SCOPED_TRACE(std::string(end.name) + (hangs ? ", it hangs" : ", it never heard of it"));
      World world(OptionsOf(GetParam()));
      for (int i = 0; i < 3; ++i) world.AddMember();
      const v1::Layout target = world.First(1);
      ASSERT_TRUE(world.Prepare(target).ok());
      ASSERT_TRUE(world.Stage(target).ok());
      RankStore& store = *world.members[0]->store;
      std::set<std::string>& how = hangs ? world.silent : world.unheard;
      how.insert(world.members[1]->id);
      const size_t before = world.opens;
      auto pulled = std::async(std::launch::async, [&] {
        v1::KvPull pull;
        Add(&pull, 1, 32768, 0, 512);
        return store.KvPull(pull, world.Addresses(target), &progress_, {});
      });
      EXPECT_TRUE(tangram::testing::Eventually([&] { return world.opens > before; }));
      auto ended = std::async(std::launch::async, [&] { end.call(store); });
      const bool stopped = ended.wait_for(tangram::testing::kHang) == std::future_status::ready;
      EXPECT_TRUE(stopped) << "it waits for the pull";
      if (!stopped) how.clear();  // otherwise the test would never end
      const Status status = pulled.get().status();
      if (stopped) EXPECT_EQ(status.code(), Code::kUnavailable) << status.message();
      ended.get();
    }
  }
}

TEST_P(KvPullTest, RejectsInvalidRangesAndUnknownRanks) {
  RankStore& store = *world_.members[0]->store;
  const std::vector<std::byte> before(store.kv().begin(), store.kv().end());
  const uint64_t size = store.kv().size();
  for (const uint32_t rank : {0U, 1U, 2U}) {
    v1::KvPull outside;
    Add(&outside, rank, size - 10, 0, 11);
    EXPECT_FALSE(store.KvPull(outside, world_.Addresses(target_), &progress_, {}).ok()) << rank;
    v1::KvPull wraps;
    Add(&wraps, rank, ~uint64_t{0} - 4, 0, 8);
    EXPECT_FALSE(store.KvPull(wraps, world_.Addresses(target_), &progress_, {}).ok()) << rank;
    v1::KvPull beyond;
    Add(&beyond, rank, 0, size - 10, 11);
    EXPECT_EQ(store.KvPull(beyond, world_.Addresses(target_), &progress_, {}).status().code(),
              Code::kInvalid);
  }
  v1::KvPull unknown;
  Add(&unknown, 7, 0, 0, 8);
  EXPECT_EQ(store.KvPull(unknown, world_.Addresses(target_), &progress_, {}).status().code(),
            Code::kInvalid);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), store.kv().begin()));
}

}  // namespace
}  // namespace tangram::store
