// The executor over real stores, with unfortunate interleavings of calls.
#include "agent/transition/executor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <future>
#include <latch>
#include <thread>

#include "agent/base/testing/no_threads.h"
#include "agent/transition/testing/agent.h"

namespace tangram::testing {
namespace {

#define ASSERT_OK(expr)                                              \
  do {                                                               \
    const Status status_ = (expr);                                   \
    ASSERT_TRUE(status_.ok()) << #expr << ": " << status_.message(); \
  } while (false)

// The result of a call that may block; if it does, abort(), since its threads cannot end.
template <typename T>
T Within(std::future<T> call, const char* what) {
  if (call.wait_for(std::chrono::minutes(1)) != std::future_status::ready) {
    std::fprintf(stderr, "%s hangs\n", what);
    std::abort();
  }
  return call.get();
}

// The stager of the previous attempt may still query a slow peer for a permit.
TEST(Executor, SlowPeerDelaysOnlyNextStage) {
  OneAgent agent(1, std::chrono::milliseconds(1));
  agent.peers.Hang(true);
  ASSERT_OK(agent.Prepare(v1::FLIP_KIND_FIRST, 1, agent.First()));
  ASSERT_OK(agent.Stage(1));
  agent.AwaitPhase(v1::PHASE_STAGED);
  agent.peers.AwaitAsked(1);
  ASSERT_OK(agent.executor->Permit(agent.Header(1)));
  agent.AwaitEpoch(1);
  ASSERT_OK(agent.Retire(1));
  ASSERT_OK(agent.Prepare(v1::FLIP_KIND_LAYOUT, 2, agent.Again()));
  auto staged = std::async(std::launch::async, [&] { return agent.Stage(2); });
  // Whether or not Stage has begun, no other call waits for the peer.
  auto looked = std::async(std::launch::async, [&] {
    for (int i = 0; i < 1000; ++i) (void)agent.GetStatus();
    return true;
  });
  Within(std::move(looked), "Status");
  agent.peers.Hang(false);
  ASSERT_OK(Within(std::move(staged), "Stage"));
  agent.AwaitPhase(v1::PHASE_STAGED);
}

// A release checks whether the attempt has flipped, and ends it. No flip may come between the two.
TEST(Executor, DetectsFlipDuringRelease) {
  OneAgent agent(2);
  std::atomic<bool> over{false};
  std::vector<std::jthread> lookers;  // so that the thread that unlocks does not lock again first
  for (int i = 0; i < 2; ++i) {
    lookers.emplace_back([&] {
      while (!over) (void)agent.GetStatus();
    });
  }
  for (uint64_t attempt = 1; attempt <= 20; ++attempt) {
    ASSERT_OK(agent.Prepare(v1::FLIP_KIND_FIRST, attempt, agent.First()));
    ASSERT_OK(agent.Stage(attempt));
    agent.AwaitPhase(v1::PHASE_STAGED);
    ASSERT_OK(agent.executor->Permit(agent.Header(attempt)));
    ASSERT_OK(agent.Release(agent.stores.members[1]->id));
    for (const auto& member : agent.stores.members) {
      EXPECT_EQ(member->store->Retire().code(), Code::kWrongPhase)
          << "attempt " << attempt << " is over for the executor, and not for the store";
    }
    ASSERT_OK(agent.Release(""));
    for (const auto& member : agent.stores.members) {
      ASSERT_OK(member->store->Audit());
      EXPECT_EQ(member->store->Memory().mapped, 0u);
    }
  }
  over = true;
}

// An agent died after it had sent its vote to only some agents, and they flipped. An agent without
// the vote learns from their flip that all voted. (Regression: it waited 10 s for the vote, and the
// driver for its reply.)
TEST(Executor, FollowsFlippedPeerWhenVoteMissing) {
  OneAgent agent(2, std::chrono::hours(1), 1);
  const v1::Layout first = agent.First();
  ASSERT_OK(agent.Prepare(v1::FLIP_KIND_FIRST, 1, first));
  ASSERT_OK(agent.Stage(1));
  {
    // The other rank has the pieces that this one may have to fetch.
    store::testing::Member& other = *agent.stores.members[1];
    ASSERT_OK(other.store->Prepare(1, first, 1, agent.stores.PartOf(other, first)));
    StageProgress progress;
    ASSERT_OK(other.store->Stage(agent.Header(1), agent.stores.OriginsOf(first), &progress, {}));
  }
  agent.AwaitPhase(v1::PHASE_STAGED);
  ASSERT_OK(agent.executor->Permit(agent.Header(1)));
  EXPECT_EQ(agent.executor->GetStatus(nullptr).epoch(), 0U) << "a word is missing";
  agent.peers.says.emplace().set_flipped(true);
  const auto flipped = agent.executor->Abort(agent.Header(1), "a test");
  ASSERT_TRUE(flipped.ok()) << flipped.status().message();
  EXPECT_TRUE(*flipped);
  EXPECT_EQ(agent.executor->GetStatus(nullptr).epoch(), 1U);
}

// An engine destroys its page between its own flip and the agent's. The attempt ends, and the next
// one begins.
TEST(Executor, AcceptsNextAttemptAfterGatePageDestroyed) {
  OneAgent agent(1);
  ASSERT_OK(agent.Take(v1::FLIP_KIND_FIRST, 1, agent.First()));
  ASSERT_OK(agent.Retire(1));
  const v1::Layout target = agent.Again();
  ASSERT_OK(agent.Prepare(v1::FLIP_KIND_LAYOUT, 2, target));
  ASSERT_OK(agent.Stage(2));
  agent.AwaitPhase(v1::PHASE_STAGED);
  ASSERT_OK(agent.executor->Permit(agent.Header(2)));
  v1::EngineFlip flip;
  *flip.mutable_header() = agent.Header(2);
  flip.set_target_hash(layout::HashOf(target));
  (void)EngineGate(agent.page(0)).Word(2, target.epoch(), flip.target_hash());
  agent.hooks.before_commit = [&] { agent.page(0)->state = 0; };
  EXPECT_EQ(agent.executor->Flip(0, flip).code(), Code::kWrongPhase);
  agent.hooks.before_commit = nullptr;
  agent.peers.says.emplace().set_phase(v1::PHASE_IDLE);  // the others aborted it
  const auto flipped = agent.executor->Abort(agent.Header(2), "a test");
  ASSERT_TRUE(flipped.ok()) << flipped.status().message();
  EXPECT_FALSE(*flipped);
  ASSERT_OK(agent.Prepare(v1::FLIP_KIND_LAYOUT, 3, target));
}

// Engines consent to a later flip of a run only in its turn. Completed flips stay.
TEST(Executor, EndsRunWhenEngineRejectsLaterFlip) {
  OneAgent agent(1);
  ASSERT_OK(agent.Take(v1::FLIP_KIND_FIRST, 1, agent.First()));
  ASSERT_OK(agent.Retire(1));
  agent.engines.prepare = [](const v1::EnginePrepare& asked) -> Status {
    if (asked.header().attempt() != 3) return OkStatus();
    return {Code::kEngine, "not this layout"};
  };
  const v1::Layout target = agent.Again();
  v1::Layout last = target;
  last.set_epoch(target.epoch() + 1);
  ASSERT_OK(agent.Prepare(v1::FLIP_KIND_LAYOUT, 2, target, {last}));
  ASSERT_OK(agent.Stage(2));
  agent.AwaitPhase(v1::PHASE_STAGED);
  ASSERT_OK(agent.executor->Permit(agent.Header(2)));
  v1::EngineFlip flip;
  *flip.mutable_header() = agent.Header(2);
  flip.set_target_hash(layout::HashOf(target));
  EngineGate gate(agent.page(0));
  const GateVote vote = gate.Word(2, target.epoch(), flip.target_hash());
  ASSERT_TRUE(gate.Decide(std::span(&vote, 1), 1));
  ASSERT_OK(agent.executor->Flip(0, flip));
  agent.page(0)->steps = 1;
  agent.AwaitPhase(v1::PHASE_FAILED);
  const v1::StatusResponse status = agent.GetStatus();
  EXPECT_EQ(status.epoch(), 2u);
  EXPECT_EQ(status.ranks(0).transition().attempt(), 3u);
  EXPECT_EQ(status.ranks(0).transition().error(), "device 0: not this layout");
  agent.stores.layout = status.layout();
  const auto flipped = agent.executor->Abort(agent.Header(3), "a test");
  ASSERT_TRUE(flipped.ok()) << flipped.status().message();
  EXPECT_FALSE(*flipped);
  ASSERT_OK(agent.Prepare(v1::FLIP_KIND_LAYOUT, 4, agent.Again()));
}

// While memory switches to the target, read calls are answered. Calls that would end the attempt
// wait until it has flipped.
TEST(Executor, SlowFlipDelaysOnlyCallsEndingAttempt) {
  OneAgent agent(2);
  ASSERT_OK(agent.Take(v1::FLIP_KIND_FIRST, 1, agent.First()));
  ASSERT_OK(agent.Retire(1));
  const v1::Layout target = agent.Again();
  ASSERT_OK(agent.Prepare(v1::FLIP_KIND_LAYOUT, 2, target));
  ASSERT_OK(agent.Stage(2));
  agent.AwaitPhase(v1::PHASE_STAGED);
  ASSERT_OK(agent.executor->Permit(agent.Header(2)));
  v1::EngineFlip flip;
  *flip.mutable_header() = agent.Header(2);
  flip.set_target_hash(layout::HashOf(target));
  for (uint32_t device = 0; device < 2; ++device) {
    EngineGate gate(agent.page(device));
    (void)gate.Word(2, target.epoch(), flip.target_hash());
    ASSERT_TRUE(gate.latched());
  }

  std::latch committing(1), go(1);
  agent.hooks.before_commit = [&] {
    if (!committing.try_wait()) committing.count_down();
    go.wait();
  };
  auto flipped = std::async(std::launch::async, [&] { return agent.executor->Flip(0, flip); });
  Within(std::async(std::launch::async, [&] { return committing.wait(), true; }), "Commit");
  auto aborted = std::async(std::launch::async,
                            [&] { return agent.executor->Abort(agent.Header(2), "a test"); });
  Within(std::async(std::launch::async,
                    [&] {
                      EXPECT_EQ(agent.GetStatus().epoch(), 1u);
                      EXPECT_EQ(agent.executor->Current().attempt(), 2u);
                      v1::QueryRequest query;
                      *query.mutable_header() = agent.Header(2);
                      const auto seen = agent.executor->Query(query);
                      EXPECT_TRUE(seen.ok() && seen->voted() && !seen->flipped());
                      agent.executor->EngineGone(1);
                      return true;
                    }),
         "a look");
  go.count_down();
  ASSERT_OK(Within(std::move(flipped), "Flip"));
  const Result<bool> outcome = Within(std::move(aborted), "Abort");
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_TRUE(*outcome);
  EXPECT_EQ(agent.executor->Flip(1, flip).code(), Code::kWrongPhase) << "it gave the step up";
  EXPECT_EQ(agent.GetStatus().ranks(0).transition().phase(), v1::PHASE_FLIPPED);
}

// A pull ahead may wait for an agent that never gets the attempt, because the driver died.
TEST(Executor, StopsKvPullOnAbort) {
  OneAgent agent(2);
  ASSERT_OK(agent.Take(v1::FLIP_KIND_FIRST, 1, agent.First()));
  ASSERT_OK(agent.Retire(1));
  ASSERT_OK(agent.Prepare(v1::FLIP_KIND_LAYOUT, 2, agent.Again()));

  std::latch waits(1);
  agent.hooks.before_kv_pull = [&](const std::stop_token& stop) {
    waits.count_down();
    while (!stop.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  auto pulled = std::async(std::launch::async, [&] {
    v1::KvPull pull;
    *pull.mutable_header() = agent.Header(2);
    pull.set_ahead(true);
    return agent.executor->KvPull(0, pull, {});
  });
  Within(std::async(std::launch::async, [&] { return waits.wait(), true; }), "KvPull");
  const Result<bool> flipped = agent.executor->Abort(agent.Header(2), "a test");
  ASSERT_TRUE(flipped.ok()) << flipped.status().message();
  EXPECT_FALSE(*flipped);
  (void)Within(std::move(pulled), "the pull's end");
}

// An engine cannot map memory that cannot be exported. The attempt fails before any engine steps in
// the new layout.
TEST(Executor, FailsAttemptWhenMemoryExportFails) {
  OneAgent agent(1);
  agent.hooks.before_new_mappings = [] {
    return Status{Code::kInternal, "no descriptors are left"};
  };
  ASSERT_OK(agent.Prepare(v1::FLIP_KIND_FIRST, 1, agent.First()));
  ASSERT_OK(agent.Stage(1));
  agent.AwaitPhase(v1::PHASE_FAILED);
  const v1::StatusResponse status = agent.GetStatus();
  EXPECT_EQ(status.ranks(0).transition().error(), "device 0: no descriptors are left");
}

// At a pod's process limit no thread starts. Calls return the reason, and attempts end.
TEST(Executor, ReportsErrorAndContinuesWhenThreadCannotStart) {
  OneAgent agent(1);
  const auto lacks = [](const std::string& text) {
    return text.find("cannot start a thread") != std::string::npos;
  };
  ASSERT_OK(agent.Prepare(v1::FLIP_KIND_FIRST, 1, agent.First()));
  WithoutThreads([&] { ASSERT_OK(agent.Stage(1)); });
  EXPECT_EQ(agent.GetStatus().ranks(0).transition().phase(), v1::PHASE_FAILED);
  EXPECT_PRED1(lacks, agent.GetStatus().ranks(0).transition().error());
  ASSERT_TRUE(agent.executor->Abort(agent.Header(1), "it failed").ok());

  ASSERT_OK(agent.Prepare(v1::FLIP_KIND_FIRST, 2, agent.First()));
  ASSERT_OK(agent.Stage(2));
  agent.AwaitPhase(v1::PHASE_STAGED);
  WithoutThreads([&] { EXPECT_PRED1(lacks, agent.executor->Permit(agent.Header(2)).message()); });
  agent.peers.says.emplace().set_phase(v1::PHASE_IDLE);  // no votes came, and all aborted
  ASSERT_TRUE(agent.executor->Abort(agent.Header(2), "a test").ok());
  agent.peers.says.reset();

  ASSERT_OK(agent.Take(v1::FLIP_KIND_FIRST, 3, agent.First()));
  ASSERT_OK(agent.Retire(3));
  WithoutThreads([&] {
    const Status asked = agent.Prepare(v1::FLIP_KIND_LAYOUT, 4, agent.Again());
    EXPECT_PRED1(lacks, asked.message());
  });
  ASSERT_OK(agent.Prepare(v1::FLIP_KIND_LAYOUT, 4, agent.Again()));
}

// Only a status request with inventories waits for memory.
TEST(Executor, SlowStatusDoesNotDelayFlip) {
  OneAgent agent(1);
  std::latch telling(1), go(1);
  agent.hooks.before_held = [&] {
    if (!telling.try_wait()) telling.count_down();
    go.wait();
  };
  auto status = std::async(std::launch::async, [&] { return agent.GetStatus(); });
  Within(std::async(std::launch::async, [&] { return telling.wait(), true; }), "Held");
  const auto flip = [&] { return agent.Take(v1::FLIP_KIND_FIRST, 1, agent.First()); };
  ASSERT_OK(Within(std::async(std::launch::async, flip), "a flip"));
  go.count_down();
  EXPECT_EQ(Within(std::move(status), "Status").epoch(), 1u)
      << "what memory has now is no part of what was before";
}

// A layout whose heads are shared by both ranks in the layers for which `in` is true.
v1::Layout SharedHeads(v1::Layout layout, uint32_t query_heads, bool (*in)(uint32_t layer)) {
  for (v1::LayerLayout& layer : *layout.mutable_layers()) {
    if (!in(layer.layer())) continue;
    layer.set_attention_group_size(2);
    layer.clear_attention();
    v1::AttentionGroup* group = layer.add_attention();
    for (const uint32_t rank : {0U, 1U}) group->add_ranks(rank);
    for (const uint32_t bound : {0U, query_heads / 2, query_heads}) {
      group->add_query_head_bounds(bound);
    }
  }
  return layout;
}

// A large status is sent once: a caller that names what it knows gets only changes.
TEST(Executor, OmitsKnownLayoutAndInventoriesFromStatus) {
  OneAgent agent(2);
  const auto known = [](const v1::StatusResponse& status) {
    v1::StatusRequest asked;
    asked.set_known_layout(status.layout_hash());
    for (const v1::RankStatus& rank : status.ranks()) {
      (*asked.mutable_known_inventories())[rank.member().id()] = rank.inventory_version();
    }
    return asked;
  };
  v1::StatusRequest asked = known(agent.GetStatus());
  EXPECT_FALSE(agent.executor->GetStatus(&asked).has_layout());
  ASSERT_OK(agent.Take(v1::FLIP_KIND_FIRST, 1, agent.First()));
  v1::StatusResponse status = agent.executor->GetStatus(&asked);
  EXPECT_TRUE(status.has_layout()) << "there is a first one";
  for (const v1::RankStatus& rank : status.ranks()) EXPECT_TRUE(rank.has_inventory());
  asked = known(status);
  ASSERT_OK(agent.Retire(1));
  status = agent.executor->GetStatus(&asked);
  for (const v1::RankStatus& rank : status.ranks()) {
    EXPECT_TRUE(rank.has_inventory()) << "a retire may drop pieces";
  }

  status = agent.GetStatus();
  asked = known(status);
  const v1::StatusResponse again = agent.executor->GetStatus(&asked);
  EXPECT_FALSE(again.has_layout());
  EXPECT_EQ(again.layout_hash(), status.layout_hash());
  for (const v1::RankStatus& rank : again.ranks()) {
    EXPECT_FALSE(rank.has_inventory());
    EXPECT_NE(rank.inventory_version(), 0U);
  }
  // Only the inventory that the caller does not know is sent.
  asked.mutable_known_inventories()->erase(status.ranks(1).member().id());
  const v1::StatusResponse one = agent.executor->GetStatus(&asked);
  EXPECT_FALSE(one.ranks(0).has_inventory());
  EXPECT_EQ(one.ranks(1).inventory().SerializeAsString(),
            status.ranks(1).inventory().SerializeAsString());
}

// An engine that does not split attention heads never gets a layout that does.
TEST(Executor, RejectsSplitAttentionWhenEngineLacksSupport) {
  OneAgent agent(2);
  agent.engines.capabilities.set_mixed_layouts(true);
  ASSERT_OK(agent.Take(v1::FLIP_KIND_FIRST, 1, agent.First()));
  ASSERT_OK(agent.Retire(1));
  const uint32_t heads = agent.stores.geometry().proto().query_heads();
  const v1::Layout all = SharedHeads(agent.Again(), heads, [](uint32_t) { return true; });
  const v1::Layout last = SharedHeads(agent.Again(), heads, [](uint32_t l) { return l == 1; });

  agent.engines.capabilities.set_attention_data_only(true);
  EXPECT_TRUE(agent.executor->GetStatus(nullptr).ranks(0).engine().attention_data_only());
  const std::string before = agent.GetStatus().SerializeAsString();
  for (const v1::Layout* target : {&all, &last}) {
    const Status refused = agent.Prepare(v1::FLIP_KIND_LAYOUT, 2, *target);
    EXPECT_EQ(refused.code(), Code::kEngine);
    EXPECT_NE(refused.message().find("an attention group has 2 ranks"), std::string::npos)
        << refused.message();
    EXPECT_NE(refused.message().find(target == &all ? "layer 0" : "layer 1"), std::string::npos);
    EXPECT_EQ(agent.GetStatus().SerializeAsString(), before) << "nothing happened";
  }
  ASSERT_OK(agent.Prepare(v1::FLIP_KIND_LAYOUT, 2, agent.Again()));
  ASSERT_TRUE(agent.executor->Abort(agent.Header(2), "a test").ok());

  agent.engines.capabilities.set_attention_data_only(false);
  EXPECT_FALSE(agent.executor->GetStatus(nullptr).ranks(0).engine().attention_data_only());
  ASSERT_OK(agent.Prepare(v1::FLIP_KIND_LAYOUT, 3, all));
}

// A layer without experts has no expert sharding, so it does not make a layout mixed.
TEST(Executor, DoesNotCountLayersWithoutExpertsAsMixed) {
  OneAgent agent(2, std::chrono::hours(1), 0, Small(1));
  ASSERT_EQ(agent.First().layers(0).expert_group_size(), 0U);
  ASSERT_OK(agent.Take(v1::FLIP_KIND_FIRST, 1, agent.First()));
  ASSERT_OK(agent.Retire(1));
  const uint32_t heads = agent.stores.geometry().proto().query_heads();
  const v1::Layout mixed = SharedHeads(agent.Again(), heads, [](uint32_t l) { return l == 1; });
  const Status refused = agent.Prepare(v1::FLIP_KIND_LAYOUT, 2, mixed);
  EXPECT_EQ(refused.code(), Code::kEngine);
  EXPECT_NE(refused.message().find("layers with different sharding"), std::string::npos)
      << refused.message();
}

// Step times are read from the page during staging. Any value gives a valid share.
TEST(Executor, SlowsWorkersWhenStepsTooLong) {
  using std::chrono::nanoseconds;
  OneAgent agent(1);
  std::vector<double> shares;
  agent.hooks.before_stage = [&](const Origins& origins) {
    ASSERT_EQ(origins.share == nullptr, !origins.serving);
    if (!origins.share) return;
    GatePage& page = *agent.page(0);
    const auto ask = [&](uint64_t ns) {
      page.step_ns = ns;
      ++page.steps;
      shares.push_back(origins.share());
    };
    page.usual_step_ns = 20'000'000;
    for (const uint64_t ms : {20, 24, 26, 40, 0, 20}) ask(ms * 1'000'000);
    ask(UINT64_MAX);
  };
  ASSERT_OK(agent.Take(v1::FLIP_KIND_FIRST, 1, agent.First()));
  ASSERT_OK(agent.Retire(1));
  EXPECT_TRUE(shares.empty()) << "nobody steps in a first layout";
  ASSERT_OK(agent.Prepare(v1::FLIP_KIND_LAYOUT, 2, agent.Again()));
  ASSERT_OK(agent.Stage(2));
  agent.AwaitPhase(v1::PHASE_STAGED);
  ASSERT_EQ(shares.size(), 7U);
  EXPECT_EQ(shares[0], 1);
  EXPECT_EQ(shares[1], 1);
  EXPECT_LT(shares[2], 1);
  EXPECT_LT(shares[3], shares[2]);
  EXPECT_EQ(shares[4], 1) << "there is no work";
  EXPECT_GT(shares[5], shares[3]);
  EXPECT_LT(shares[6], shares[5]);
}

// Pulls of KV ahead rest by the same bound. Pulls in the flip, or while no step is computed, do
// not.
TEST(Executor, DefersKvAheadWhenStepsTooLong) {
  using std::chrono::milliseconds;
  OneAgent agent(1);
  ASSERT_OK(agent.Take(v1::FLIP_KIND_FIRST, 1, agent.First()));
  ASSERT_OK(agent.Retire(1));
  GatePage& page = *agent.page(0);
  page.usual_step_ns = 20'000'000;
  page.step_ns = 20'000'000;
  const auto pass = [&](milliseconds time) { agent.later = agent.later.load() + time; };
  int pulls = 0;
  agent.hooks.before_kv_pull = [&](const std::stop_token&) {
    ++pulls;
    pass(milliseconds(1000));
  };
  const auto pull = [&](bool ahead) {
    v1::KvPull asked;
    *asked.mutable_header() = agent.Header(2);
    asked.set_ahead(ahead);
    ++page.steps;
    const auto bytes = agent.executor->KvPull(0, asked, {});
    EXPECT_TRUE(bytes.ok()) << bytes.status().message();
    return bytes.ok() && bytes->has_value();
  };
  ASSERT_OK(agent.Prepare(v1::FLIP_KIND_LAYOUT, 2, agent.Again()));
  EXPECT_TRUE(pull(true));
  EXPECT_TRUE(pull(true)) << "steps are as short as ever";
  page.step_ns = 40'000'000;
  EXPECT_TRUE(pull(true));
  EXPECT_FALSE(pull(true)) << "it had a second and less than all of its time";
  EXPECT_EQ(pulls, 3) << "nothing moved";
  pass(milliseconds(4000));
  EXPECT_TRUE(pull(true));
  EXPECT_FALSE(pull(true));
  page.step_ns = 0;  // no request is left
  pass(milliseconds(4000));
  EXPECT_TRUE(pull(true));
  EXPECT_TRUE(pull(true));
  page.step_ns = 40'000'000;
  EXPECT_TRUE(pull(true));
  EXPECT_FALSE(pull(true));
  ASSERT_OK(agent.Stage(2));
  agent.AwaitPhase(v1::PHASE_STAGED);
  ASSERT_OK(agent.executor->Permit(agent.Header(2)));
  EXPECT_TRUE(pull(true)) << "the flip waits for it";
  EXPECT_TRUE(pull(true));
  ASSERT_TRUE(agent.executor->Abort(agent.Header(2), "a test").ok());
}

class ResumeTest : public ::testing::Test {
 protected:
  void Begin() {
    ASSERT_OK(agent_.Take(v1::FLIP_KIND_FIRST, 1, agent_.First()));
    ASSERT_OK(agent_.Retire(1));
    agent_.Die();
  }
  OneAgent agent_{2};
};

TEST_F(ResumeTest, ResumesRankWithRetainedMemory) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  const v1::Layout layout = agent_.stores.layout;
  for (uint32_t device = 0; device < 2; ++device) ASSERT_OK(agent_.Resume(device));
  EXPECT_FALSE(agent_.executor->Resuming());
  const v1::StatusResponse status = agent_.GetStatus();
  EXPECT_EQ(status.epoch(), 1u);
  EXPECT_EQ(status.layout_hash(), layout::HashOf(layout));
  for (const auto& member : agent_.stores.members) ASSERT_OK(member->store->Audit());
}

// The engine writes the control page: its content may cause a rejection, but nothing worse.
TEST_F(ResumeTest, RejectsInvalidControlPageWithoutSideEffects) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  void* mapped =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, agent_.kept[0].control(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* page = static_cast<GatePage*>(mapped);
  page->magic = 0;
  const std::string before = agent_.GetStatus().SerializeAsString();
  EXPECT_EQ(agent_.Resume(0).code(), Code::kInvalid);
  EXPECT_EQ(agent_.GetStatus().SerializeAsString(), before);
  EXPECT_EQ(agent_.executor->Counters(0, TokenCount::kRouted).size(),
            agent_.stores.geometry().moe_layers() * agent_.stores.geometry().experts());
  EXPECT_TRUE(agent_.executor->Resuming()) << "it may come again";
  page->magic = GatePage::kMagic;
  munmap(mapped, 4096);
  ASSERT_OK(agent_.Resume(0));
  EXPECT_EQ(agent_.GetStatus().epoch(), 1u);
}

// Verifying three ranks of gigabytes takes a while. Meanwhile no call waits and no timeout expires.
TEST(Resume, AnswersCallsDuringVerificationOfAllRanks) {
  OneAgent agent(3);
  ASSERT_OK(agent.Take(v1::FLIP_KIND_FIRST, 1, agent.First()));
  ASSERT_OK(agent.Retire(1));
  agent.Die();
  std::latch all(3), go(1);
  agent.hooks.before_examine = [&] {
    all.count_down();
    go.wait();
  };
  std::vector<std::future<Status>> resumed;
  for (uint32_t device = 0; device < 3; ++device) {
    resumed.push_back(std::async(std::launch::async, [&, device] { return agent.Resume(device); }));
  }
  Within(std::async(std::launch::async, [&] { return all.wait(), true; }),
         "verifying side by side");
  agent.later = std::chrono::hours(1);  // far beyond resume_wait
  Within(std::async(std::launch::async,
                    [&] {
                      std::string why;
                      EXPECT_TRUE(agent.executor->Resuming(&why));
                      EXPECT_EQ(why,
                                "resuming after the previous agent died: verifying the pieces that "
                                "engines retained on devices 0 1 2");
                      EXPECT_EQ(agent.GetStatus().epoch(), 0u);
                      EXPECT_EQ(agent.executor->GetLoad().ranks_size(), 3);
                      EXPECT_EQ(agent.Resume(1).code(), Code::kWrongPhase) << "one at a time";
                      return true;
                    }),
         "a call");
  go.count_down();
  for (auto& call : resumed) ASSERT_OK(Within(std::move(call), "Resume"));
  EXPECT_FALSE(agent.executor->Resuming());
  EXPECT_EQ(agent.GetStatus().epoch(), 1u);
}

// A member that lacks a piece of its layout cannot stay: it is rejected, and becomes a new member.
TEST_F(ResumeTest, RejectsOnlyRankWithChangedByte) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  const std::string path =
      "/proc/self/fd/" +
      std::to_string(agent_.kept[0].of(agent_.kept[0].resume.mappings(0).extents(0)));
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  const uint64_t at = agent_.kept[0].resume.mappings(0).extents(0).offset();
  char byte = 0;
  ASSERT_EQ(pread(fd.get(), &byte, 1, static_cast<off_t>(at)), 1);
  byte = static_cast<char>(byte ^ 1);
  ASSERT_EQ(pwrite(fd.get(), &byte, 1, static_cast<off_t>(at)), 1);
  const std::string before = agent_.GetStatus().SerializeAsString();
  EXPECT_EQ(agent_.Resume(0).code(), Code::kCorrupt);
  EXPECT_EQ(agent_.GetStatus().SerializeAsString(), before);
  ASSERT_OK(agent_.Resume(1));
  EXPECT_TRUE(agent_.executor->Resuming());
  agent_.later = std::chrono::hours(1);
  EXPECT_FALSE(agent_.executor->Resuming());
  const v1::StatusResponse status = agent_.GetStatus();
  EXPECT_FALSE(status.ranks(0).in_world());
  EXPECT_TRUE(status.ranks(1).in_world());
}

TEST_F(ResumeTest, ReadsCountersDuringResume) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  std::atomic<bool> over{false};
  std::latch reading(1);
  std::jthread reader([&] {
    for (bool first = true; !over; first = false) {
      for (uint32_t device = 0; device < 2; ++device)
        (void)agent_.executor->Counters(device, TokenCount::kRouted);
      if (first) reading.count_down();
    }
  });
  reading.wait();
  for (uint32_t device = 0; device < 2; ++device) EXPECT_TRUE(agent_.Resume(device).ok());
  over = true;
}

}  // namespace
}  // namespace tangram::testing
