#include "e2e/engine/scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <set>

#include "e2e/engine/kv/page_store.h"

namespace tangram::engine {
namespace {

// One layer, 2 KV heads; `ranks` ranks in one group, or one group per rank.
struct Fixture {
  explicit Fixture(uint32_t ranks = 1, bool together = false, SchedulerLimits limits = Limits(),
                   uint32_t pages = 80)
      : scheduler(limits) {
    kv::LayerGroups groups;
    if (together) {
      kv::Group& group = groups.emplace_back();
      for (uint32_t r = 0; r < ranks; ++r) group.ranks.push_back(r);
      for (uint32_t r = 0; r <= ranks; ++r) group.query_head_bounds.push_back(4 * r / ranks);
    } else {
      for (uint32_t r = 0; r < ranks; ++r) groups.push_back({{r}, {0, 4}});
    }
    held = HeldMap({groups}, {4, 2, 4, 64}, ranks);
    scheduler.SetLayout(&held, 0);
    figures.resize(ranks);
    for (HomeFigures& figure : figures) figure.total_pages = pages;
    scheduler.SetFigures(figures);
  }
  static SchedulerLimits Limits() {
    SchedulerLimits limits;
    limits.block_tokens = 4;
    limits.max_batch_tokens = 8;
    limits.max_model_len = 100;
    limits.vocabulary = 50;
    limits.max_running = 3;
    limits.max_waiting = 4;
    limits.headroom = 0.25;
    return limits;
  }
  std::optional<v1::Refused> Submit(const std::string& id, std::vector<uint32_t> prompt,
                                    uint32_t tokens, const std::string& salt = "") {
    v1::Submit submit;
    submit.set_request(id);
    submit.mutable_prompt()->Add(prompt.begin(), prompt.end());
    submit.set_max_tokens(tokens);
    submit.set_cache_salt(salt);
    return scheduler.Submit("gw", submit, ++arrival);
  }
  // Runs one step; every finished position samples token 7.
  void Step() {
    for (const Chunk& chunk : scheduler.Next()) {
      const bool samples = chunk.Samples();
      scheduler.Computed(chunk);
      if (samples) (void)scheduler.Append(chunk.sequence, 7);
    }
  }

  HeldMap held;
  Scheduler scheduler;
  std::vector<HomeFigures> figures;
  uint64_t arrival = 0;
};

TEST(SchedulerTest, DecodesComeFirstAndPrefillFillsTheBudget) {
  Fixture f;
  ASSERT_FALSE(f.Submit("a", {1, 2}, 5));
  f.Step();
  ASSERT_FALSE(f.Submit("b", std::vector<uint32_t>(20, 3), 5));
  const std::vector<Chunk> chunks = f.scheduler.Next();
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(chunks[0].sequence->id(), "a");
  EXPECT_EQ(chunks[0].start, 2u);
  EXPECT_EQ(chunks[0].count, 1u);
  EXPECT_EQ(chunks[1].count, 7u);
  EXPECT_FALSE(chunks[1].Samples());
}

TEST(SchedulerTest, EndsContinuedAnswerAtOriginalLimit) {
  Fixture f;
  v1::Submit submit;
  submit.set_request("a");
  for (const uint32_t token : {1, 2, 7, 7, 7}) submit.add_prompt(token);
  submit.set_generated(3);
  submit.set_max_tokens(99);
  const auto refused = f.scheduler.Submit("gw", submit, 1);
  ASSERT_TRUE(refused.has_value());
  EXPECT_NE(refused->message().find("together are 101, this model takes 100"), std::string::npos);
  submit.set_max_tokens(5);
  ASSERT_FALSE(f.scheduler.Submit("gw", submit, 1));
  EXPECT_EQ(f.scheduler.reserved_tokens(), 0u);
  f.Step();
  EXPECT_EQ(f.scheduler.reserved_tokens(), 8u)
      << "2 of the prompt, 5 of the answer, in blocks of 4";
  f.Step();
  EXPECT_EQ(f.scheduler.running(), 0u);
}

TEST(SchedulerTest, ReturnsUncomputedBatchAgain) {
  Fixture f;
  ASSERT_FALSE(f.Submit("a", {1, 2, 3, 4, 5}, 5));
  const auto first = f.scheduler.Next();
  const std::vector<uint32_t> blocks = first[0].sequence->blocks;
  const auto again = f.scheduler.Next();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].start, 0u);
  EXPECT_EQ(again[0].sequence->blocks, blocks);
}

TEST(SchedulerTest, ReservesWorstCaseInFifoOrder) {
  Fixture f;                             // 80 pages, 60 for admission, 2 a block: 30 blocks
  ASSERT_FALSE(f.Submit("a", {1}, 79));  // 20 blocks
  ASSERT_FALSE(f.Submit("b", {2}, 79));  // 20: waits
  ASSERT_FALSE(f.Submit("c", {3}, 3));   // 1: would fit, but waits its turn
  f.Step();
  EXPECT_EQ(f.scheduler.running(), 1u);
  EXPECT_EQ(f.scheduler.waiting(), 2u);
  EXPECT_EQ(f.scheduler.Figures().head_arrival, 2u);
  EXPECT_EQ(f.scheduler.Figures().head_blocks, 20u);
  EXPECT_EQ(f.scheduler.Figures().reserved_blocks, 20u);
  EXPECT_TRUE(f.scheduler.Cancel("a"));
  EXPECT_FALSE(f.scheduler.Cancel("a"));
  f.Step();
  EXPECT_EQ(f.scheduler.running(), 2u);
}

TEST(SchedulerTest, LiveRequestsShareFullBlocksOfTheirPrefix) {
  SchedulerLimits limits = Fixture::Limits();
  limits.prefix_cache = false;
  Fixture f(1, false, limits);
  ASSERT_FALSE(f.Submit("a", {1, 2, 3, 4, 5, 6, 7, 8}, 8));
  f.Step();
  ASSERT_FALSE(f.Submit("b", {1, 2, 3, 4, 5, 6, 7, 8}, 8));  // the last position is computed again
  ASSERT_FALSE(f.Submit("c", {1, 2, 3, 9, 5, 6, 7, 8}, 8));  // other tokens
  const auto chunks = f.scheduler.Next();
  ASSERT_EQ(chunks.size(), 3u);
  const Sequence &a = *chunks[0].sequence, &b = *chunks[1].sequence, &c = *chunks[2].sequence;
  EXPECT_EQ(b.computed, 4u);
  EXPECT_EQ(b.blocks[0], a.blocks[0]);
  EXPECT_NE(b.blocks[1], a.blocks[1]);
  EXPECT_NE(c.blocks[0], a.blocks[0]);
  const uint32_t shared = a.blocks[0];
  EXPECT_TRUE(f.scheduler.Cancel("a"));
  for (const uint32_t block : f.scheduler.TakeFreed()) EXPECT_NE(block, shared);
  EXPECT_TRUE(f.scheduler.Cancel("b"));
  const auto freed = f.scheduler.TakeFreed();
  EXPECT_EQ(std::count(freed.begin(), freed.end(), shared), 1);
}

// Neither while both run nor after one ended, and gateways receive different hashes.
TEST(SchedulerTest, SeparatesSalts) {
  Fixture f;
  const std::vector<uint32_t> prompt{1, 2, 3, 4, 5, 6, 7, 8};
  ASSERT_FALSE(f.Submit("a", prompt, 2, "mine"));
  f.Step();
  ASSERT_FALSE(f.Submit("b", prompt, 2, "theirs"));
  ASSERT_FALSE(f.Submit("c", prompt, 2));
  while (f.scheduler.running() + f.scheduler.waiting() > 0) f.Step();
  v1::RankTelemetry told;
  f.scheduler.Measure(0, &told);
  EXPECT_EQ(told.reused_tokens(), 0u);
  v1::Prefixes prefixes;
  f.scheduler.TakePrefixes(&prefixes);
  EXPECT_EQ(prefixes.block_tokens(), 4u);
  const std::set<uint64_t> hashes(prefixes.here().begin(), prefixes.here().end());
  EXPECT_EQ(hashes.size(), 6u) << "two blocks of each";
  ASSERT_FALSE(f.Submit("d", prompt, 2, "mine"));
  f.Step();
  f.scheduler.Measure(0, &told);
  EXPECT_EQ(told.reused_tokens(), 4u);
  EXPECT_TRUE(f.Submit("e", prompt, 2, std::string(257, 's')).has_value());
}

// The control exchange between the homes of a group.
void Exchange(Fixture* f) {
  f->figures[0] = f->scheduler.Figures();
  f->figures[0].total_pages = f->figures[1].total_pages;
  f->scheduler.SetFigures(f->figures);
}

TEST(SchedulerTest, AdmitsOldestHeadsOfHomesSharingRanks) {
  Fixture f(2, true);  // 60 pages for admission, 1 a block at each rank
  ASSERT_FALSE(f.Submit("a", {1}, 79));
  EXPECT_TRUE(f.scheduler.Next().empty()) << "the other home has not heard of it";
  Exchange(&f);
  EXPECT_EQ(f.scheduler.Next().size(), 1u);
  EXPECT_TRUE(f.scheduler.Cancel("a"));

  f.arrival = 10;
  ASSERT_FALSE(f.Submit("b", {1}, 79));  // 20 blocks
  f.figures[1].reserved_blocks = 30;
  f.figures[1].head_arrival = 5;
  f.figures[1].head_blocks = 11;
  Exchange(&f);
  EXPECT_TRUE(f.scheduler.Next().empty()) << "an older head takes the room at the other home";
  f.figures[1].head_blocks = 31;
  Exchange(&f);
  EXPECT_TRUE(f.scheduler.Next().empty()) << "an older head waits for room";
  f.figures[1].head_arrival = 20;
  Exchange(&f);
  EXPECT_EQ(f.scheduler.Next().size(), 1u) << "a younger one waits";
}

TEST(SchedulerTest, HoldsHeadUntilOthersReceiveItsNeed) {
  Fixture f(2, true);
  ASSERT_FALSE(f.Submit("a", {1}, 3));
  Exchange(&f);
  EXPECT_TRUE(f.scheduler.Cancel("a"));
  ASSERT_FALSE(f.Submit("b", {1}, 7));  // 2 blocks, of which the other home counts 1
  EXPECT_TRUE(f.scheduler.Next().empty());
  Exchange(&f);
  EXPECT_EQ(f.scheduler.Next().size(), 1u);
}

TEST(SchedulerTest, RejectsImpossibleAndExcessRequests) {
  Fixture f(1, false, Fixture::Limits(), 20);  // 15 pages: 7 blocks
  const auto code = [](const std::optional<v1::Refused>& refused) {
    return refused ? refused->code() : v1::Refused::CODE_UNSPECIFIED;
  };
  EXPECT_EQ(code(f.Submit("a", {}, 1)), v1::Refused::CODE_INVALID);
  EXPECT_EQ(code(f.Submit("a", {1}, 0)), v1::Refused::CODE_INVALID);
  EXPECT_EQ(code(f.Submit("a", {50}, 1)), v1::Refused::CODE_INVALID);
  EXPECT_EQ(code(f.Submit("a", {1}, 100)), v1::Refused::CODE_INVALID);
  EXPECT_EQ(code(f.Submit("a", {1}, 28)), v1::Refused::CODE_INVALID) << "8 blocks of KV";
  for (const char* id : {"a", "b", "c", "d"}) EXPECT_FALSE(f.Submit(id, {1}, 27)) << id;
  EXPECT_EQ(code(f.Submit("a", {1}, 1)), v1::Refused::CODE_RUNNING);
  EXPECT_EQ(code(f.Submit("e", {1}, 1)), v1::Refused::CODE_BUSY);
  f.scheduler.SetLayout(nullptr, 0);
  EXPECT_EQ(code(f.Submit("f", {1}, 1)), v1::Refused::CODE_NOT_READY);
}

// One rank with `heads` KV heads in `layers` layers.
HeldMap Alone(uint32_t layers, uint32_t heads) {
  return {
      std::vector<kv::LayerGroups>(layers, {kv::Group{{0}, {0, heads}}}), {heads, heads, 4, 64}, 1};
}

TEST(PageStoreTest, AllocatesPagesOnceAndFreesThem) {
  const HeldMap held = Alone(3, 2);  // 6 pages a block
  PageStore store(10);
  ASSERT_TRUE(store.Ensure(0, 1, held, 0).ok());
  const kv::Strip* first = store.Find(0, 1).data();
  EXPECT_EQ(store.Ensure(0, 1, held, 0)->data(), first) << "a second time: the same";
  EXPECT_EQ(store.Ensure(0, 2, held, 0).status().code(), Code::kNoMemory);
  EXPECT_EQ(store.free(), 4u);
  EXPECT_TRUE(store.Audit().ok());
  store.Drop(0, 1);
  store.Drop(0, 1);
  EXPECT_EQ(store.free(), 10u);
  EXPECT_TRUE(store.Audit().ok()) << store.Audit().message();
  EXPECT_TRUE(store.Find(0, 1).empty());
}

TEST(PageStoreTest, PlacesLayersAdjacentlyWhenPagesAllow) {
  const HeldMap held = Alone(4, 1);
  PageStore store(12);
  for (uint32_t block = 0; block < 3; ++block) {
    const auto strips = store.Ensure(0, block, held, 0);
    ASSERT_TRUE(strips.ok());
    ASSERT_EQ(strips->size(), 1u);
    EXPECT_EQ((*strips)[0].layers, 4u);
  }
  // Two holes of four pages, and six layers.
  store.Drop(0, 0);
  store.Drop(0, 2);
  const auto strips = store.Ensure(0, 7, Alone(6, 1), 0);
  ASSERT_TRUE(strips.ok());
  ASSERT_EQ(strips->size(), 2u);
  EXPECT_EQ((*strips)[0].layers + (*strips)[1].layers, 6u);
  EXPECT_EQ((*strips)[1].layer, (*strips)[0].layers);
  EXPECT_EQ(store.State().strips.size(), 3u);
  EXPECT_TRUE(store.Audit().ok()) << store.Audit().message();
}

// The second and third of four layers change ranks; a strip of all four stays in place.
TEST(PageStoreTest, KeepsUnlistedLayersInPlace) {
  const HeldMap held = Alone(4, 1);
  PageStore store(12);
  const auto had = store.Ensure(0, 3, held, 0);
  ASSERT_TRUE(had.ok());
  const kv::Strip all = (*had)[0];
  const std::vector<bool> listed = {false, true, true, false};
  const kv::RankState state = store.State(listed);
  ASSERT_EQ(state.strips.size(), 1u);
  EXPECT_EQ(state.strips[0], (kv::Strip{0, 3, 0, 1, 2, all.page + 1, 1}));
  EXPECT_EQ(state.free_pages, 8u);
  std::vector<kv::PageCopy> copies;
  uint64_t ready = 0;
  const PageStore::Placed placed = {{{3, 0, 3, 4}}};
  kv::RankPlan plan;
  plan.moves.push_back({0, 3, 0, 1, 2, 0, all.page + 1, 1, 4});
  const auto after = store.After(plan, placed, held, 0, &copies, &ready, listed);
  ASSERT_TRUE(after.ok()) << after.status().message();
  EXPECT_TRUE(after->Audit().ok()) << after->Audit().message();
  const auto has = after->Find(0, 3);
  ASSERT_EQ(has.size(), 3u);
  EXPECT_EQ(has[0], (kv::Strip{0, 3, 0, 0, 1, all.page, 1}));
  EXPECT_EQ(has[2], (kv::Strip{0, 3, 0, 3, 1, all.page + 3, 1}));
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].pages, 2u);
  plan.moves[0].layers = 1;
  EXPECT_FALSE(store.After(plan, placed, held, 0, &copies, &ready, listed).ok())
      << "a layer that is listed and comes from nowhere";
}

TEST(PageStoreTest, RejectsPlanWithGapOrDuplicate) {
  const HeldMap held = Alone(1, 2);
  PageStore store(6);
  ASSERT_TRUE(store.Ensure(0, 0, held, 0).ok());
  std::vector<kv::PageCopy> copies;
  uint64_t ready = 0;
  const PageStore::Placed placed = {{{5, 0, 0, 4}}};
  kv::RankPlan plan;
  plan.kept.push_back({0, 5, 0, 0, 1, store.Find(0, 0)[0].page, 1, 4});
  EXPECT_FALSE(store.After(plan, placed, held, 0, &copies, &ready).ok()) << "head 1 is missing";
  plan.moves.push_back({0, 5, 1, 0, 1, 0, store.Find(0, 0)[1].page, 1, 4});
  const auto after = store.After(plan, placed, held, 0, &copies, &ready);
  ASSERT_TRUE(after.ok()) << after.status().message();
  EXPECT_TRUE(after->Audit().ok());
  EXPECT_EQ(after->free(), 4u);
  EXPECT_EQ(store.free(), 4u) << "the store is as it was";
  EXPECT_EQ(copies.size(), 1u);
  EXPECT_NE(copies[0].target_page, copies[0].source_page);
  plan.moves.push_back({0, 5, 1, 0, 1, 0, 1, 1, 4});
  EXPECT_FALSE(store.After(plan, placed, held, 0, &copies, &ready).ok()) << "head 1 twice";
  plan.moves.back() = {0, 5, 2, 0, 1, 0, 1, 1, 4};
  EXPECT_FALSE(store.After(plan, placed, held, 0, &copies, &ready).ok())
      << "a head that is not held";
  plan.moves.pop_back();
  plan.moves.back().layers = 5;
  EXPECT_EQ(store.After(plan, placed, held, 0, &copies, &ready).status().code(), Code::kNoMemory);
}

}  // namespace
}  // namespace tangram::engine
