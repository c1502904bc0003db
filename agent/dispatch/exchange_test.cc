// The grid of dispatch and combine: elements, ways to wait, buffers, paths and layouts, compared
// with serial sums.
#include "agent/dispatch/exchange.h"

#include <gtest/gtest.h>

#include <cmath>

#include "agent/dispatch/testing/grid.h"
#include "agent/dispatch/testing/world.h"

namespace tangram::dispatch {
namespace {

using namespace testing;

constexpr uint32_t kHidden = 131, kTopK = 3;

enum class How { kWait, kHook, kAsync };

Format FormatOf(const Kind& kind, uint32_t experts) {
  return testing::FormatOf(kind, experts, kHidden, kTopK);
}

// Runs pairs one after another on one rank, in one of the ways to wait.
void Step(Buffer& buffer, uint32_t layer, const Own& own, How how, bool zero_copy,
          const Kind& kind) {
  Exchange& exchange = buffer.exchange();
  const Format& format = exchange.format();
  const auto sent = exchange.Send(layer, own.rows(format.x));
  ASSERT_TRUE(sent.ok()) << sent.status().message();
  if (how == How::kAsync) {
    while (true) {
      const auto came = exchange.TryReceive(*sent);
      ASSERT_TRUE(came.ok()) << came.status().message();
      if (*came) break;
      std::this_thread::yield();
    }
  } else {
    const Status came = exchange.Receive(*sent);
    ASSERT_TRUE(came.ok()) << came.message();
  }
  const size_t bytes = exchange.packed(*sent).rows * RowBytes(format.outputs(), kHidden);
  std::vector<uint8_t> mine(zero_copy ? 0 : bytes + 16);
  void* const outputs = zero_copy ? exchange.NextCombineBuffer(*sent) : mine.data();
  Compute(exchange, exchange.routes()->Layer(layer), *sent, outputs);
  ASSERT_TRUE(exchange.SendBack(*sent, outputs).ok());
  std::vector<uint8_t> y(own.count * kHidden * 8 + 8, 0x5a);
  if (how == How::kWait) {
    ASSERT_TRUE(exchange.Finish(*sent, y.data()).ok());
  } else {
    while (true) {
      const auto done = exchange.TryFinish(*sent, y.data());
      ASSERT_TRUE(done.ok()) << done.status().message();
      if (*done) break;
      std::this_thread::yield();
    }
  }
  ASSERT_TRUE(exchange.report().whole());
  Own magnitudes = own;
  for (float& v : magnitudes.x) v = std::abs(v);
  const std::vector<double> expected = Serial(format, kGranules, own);
  const std::vector<double> sizes = Serial(format, kGranules, magnitudes);
  const std::vector<double> found = Doubles(format, y.data(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_LE(std::abs(found[i] - expected[i]), kind.bound * sizes[i])
        << kind.name << " row " << i / kHidden << ": " << found[i] << " for " << expected[i];
  EXPECT_EQ(y[expected.size() * BytesOf(kind.sums)], 0x5a) << "nothing is written behind y";
}

class Grid : public ::testing::TestWithParam<std::tuple<size_t, Path, bool>> {};

TEST_P(Grid, MatchesSerialSumForAnyLayout) {
  const auto [number, path, small] = GetParam();
  const Kind& kind = kKinds[number];
  const uint32_t ranks = 3, experts = 7;  // not a multiple of the ranks
  std::mt19937 draw(static_cast<uint32_t>(number) + 17);
  SocketFolder folder;
  BufferOptions options{.format = FormatOf(kind, experts), .geometry = {}, .exchange = {}};
  // Or the smallest rings, so that every message goes around many times.
  if (small) options.geometry = {2, (LeastSlot(options.format) + 63) / 64 * 64 + 64};
  std::vector<std::unique_ptr<Buffer>> buffers;
  for (uint32_t r = 0; r < ranks; ++r) {
    auto buffer = Buffer::Create(MemberOf(folder, path, std::string(1, 'a' + r), 1), options,
                                 net::Credentials::Insecure());
    ASSERT_TRUE(buffer.ok()) << buffer.status().message();
    buffers.push_back(std::move(*buffer));
  }
  Meet(buffers);
  uint64_t epoch = 0;
  for (const How how : {How::kWait, How::kHook, How::kAsync}) {
    for (const bool zero_copy : {false, true}) {
      Layout layout = Drawn(ranks, experts, draw);
      ++epoch;
      std::vector<std::vector<Own>> own(ranks);
      std::vector<std::shared_ptr<const Routes>> routes;
      for (uint32_t r = 0; r < ranks; ++r) {
        routes.push_back(RoutesOf(layout, r));
        own[r].push_back(DrawnRows(options.format, draw() % 20, draw));
        own[r].push_back(DrawnRows(options.format, r == 1 ? 0 : 64, draw));
        own[r].push_back(DrawnRows(options.format, 33, draw, 5));  // all to one expert
      }
      OnEach(ranks, [&](uint32_t r) {
        ASSERT_TRUE(buffers[r]->UpdateMembers(epoch, IdsOf(buffers), routes[r]).ok());
        for (size_t i = 0; i < own[r].size(); ++i)
          Step(*buffers[r], i % 2, own[r][i], how, zero_copy, kind);
      });
      if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
  }
  for (uint32_t r = 0; r < ranks; ++r)
    EXPECT_STREQ(buffers[0]->peers().path(r), r == 0               ? "here"
                                              : path == Path::kTcp ? "TCP"
                                                                   : "shared memory");
}

INSTANTIATE_TEST_SUITE_P(Dispatch, Grid,
                         ::testing::Combine(::testing::Range(size_t{0}, std::size(kKinds)),
                                            ::testing::Values(Path::kSharedMemory, Path::kTcp),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(kKinds[std::get<0>(info.param)].name) +
                                  (std::get<1>(info.param) == Path::kTcp ? "OverTcp"
                                                                         : "InSharedMemory") +
                                  (std::get<2>(info.param) ? "SmallRings" : "WholeMessages");
                         });

struct Worlds {
  SocketFolder folder;
  BufferOptions options;
  std::vector<std::unique_ptr<Buffer>> buffers;
};

Worlds WorldOf(uint32_t ranks, BufferOptions options, Layout& layout) {
  Worlds world;
  world.options = options;
  for (uint32_t r = 0; r < ranks; ++r)
    world.buffers.push_back(std::move(Buffer::Create(MemberOf(world.folder, Path::kSharedMemory,
                                                              std::string(1, 'a' + r), 1),
                                                     options, net::Credentials::Insecure()))
                                .value());
  Meet(world.buffers);
  for (uint32_t r = 0; r < ranks; ++r)
    EXPECT_TRUE(world.buffers[r]->UpdateMembers(1, IdsOf(world.buffers), RoutesOf(layout, r)).ok());
  return world;
}

Layout OnePerRank(uint32_t ranks) {
  Layout layout(ranks, ranks);
  std::vector<Placed> experts;
  for (uint32_t r = 0; r < ranks; ++r) experts.push_back({{{r, 0, kGranules}}});
  layout.AddLayer(experts);
  return layout;
}

TEST(Dispatch, PacksRowsByExpertThenRankWithCounts) {
  Layout layout(2, 3);
  // Rank 0 has experts 0 and 2 and a replica of 1; rank 1 has expert 1.
  layout.AddLayer({{{{0, 0, 1}}}, {{{0, 0, 1}}, {{1, 0, 1}}}, {{{0, 0, 1}}}});
  const Format format{.hidden = 1,
                      .top_k = 2,
                      .experts = 3,
                      .x = Element::kF32,
                      .wire = Element::kF32,
                      .sums = Element::kF32,
                      .most_tokens = 8};
  Worlds world = WorldOf(2, {.format = format, .geometry = {}, .exchange = {}}, layout);
  OnEach(2, [&](uint32_t r) {
    const std::vector<float> x = r == 0 ? std::vector<float>{1, 2} : std::vector<float>{10, 20, 30};
    const std::vector<int32_t> experts =
        r == 0 ? std::vector<int32_t>{2, 0, 1, 2} : std::vector<int32_t>{0, 2, 1, 0, 2, 1};
    const std::vector<float> weights(experts.size(), 1);
    Exchange& exchange = world.buffers[r]->exchange();
    const auto handle = world.buffers[r]->Dispatch(
        0, {static_cast<uint32_t>(x.size()), x.data(), experts.data(), weights.data()});
    ASSERT_TRUE(handle.ok()) << handle.status().message();
    const Packed packed = exchange.packed(*handle);
    const auto* rows = static_cast<const float*>(packed.x);
    const std::vector<float> found(rows, rows + packed.rows);
    const std::vector<uint32_t> choices(packed.choices.begin(), packed.choices.end());
    const std::vector<uint32_t> counts(packed.counts.begin(), packed.counts.end());
    if (r == 0) {
      // Choices: 0 of expert 0; 1 (here) and 2 (rank 1) of expert 1; 3 of expert 2. Each rank's
      // rows for expert 1 go to its own replica.
      EXPECT_EQ(choices, (std::vector<uint32_t>{0, 1, 3}));
      EXPECT_EQ(counts, (std::vector<uint32_t>{3, 1, 4}));
      EXPECT_EQ(found, (std::vector<float>{1, 10, 20, 2, 1, 2, 10, 30}));
      const auto executed = exchange.executed(*handle);
      EXPECT_EQ(std::vector(executed.begin(), executed.end()), (std::vector<uint32_t>{3, 1, 4}));
      const auto by = exchange.executed_by_choice(*handle);
      EXPECT_EQ(std::vector(by.begin(), by.end()), (std::vector<uint32_t>{3, 1, 0, 4}));
    } else {
      EXPECT_EQ(choices, (std::vector<uint32_t>{2}));
      EXPECT_EQ(found, (std::vector<float>{20, 30}));
      const auto routed = exchange.routed(*handle);
      EXPECT_EQ(std::vector(routed.begin(), routed.end()), (std::vector<uint32_t>{2, 2, 2}));
    }
    std::vector<float> y(x.size());
    ASSERT_TRUE(world.buffers[r]->Combine(*handle, packed.x, y.data()).ok());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], 2 * x[i]);
  });
}

TEST(Dispatch, OverlapsWithCombineOfPreviousLayer) {
  Layout layout = OnePerRank(3);
  const Format format{.hidden = 16,
                      .top_k = 2,
                      .experts = 3,
                      .x = Element::kF32,
                      .wire = Element::kF32,
                      .sums = Element::kF32,
                      .most_tokens = 32};
  Worlds world = WorldOf(3, {.format = format, .geometry = {}, .exchange = {}}, layout);
  std::mt19937 draw(4);
  std::vector<std::vector<Own>> own(3);
  for (auto& of : own)
    for (int i = 0; i < 20; ++i) of.push_back(DrawnRows(format, draw() % 32, draw));
  OnEach(3, [&](uint32_t r) {
    Exchange& exchange = world.buffers[r]->exchange();
    const auto send = [&](size_t i) {
      return exchange.Send(0, own[r][i].rows(Element::kF32)).value();
    };
    Handle open = send(0);
    std::vector<std::vector<float>> outputs(2);
    for (size_t i = 0; i < own[r].size(); ++i) {
      ASSERT_TRUE(exchange.Receive(open).ok());
      auto& mine = outputs[i % 2];
      mine.assign(exchange.packed(open).rows * 16, 0);
      Compute(exchange, exchange.routes()->Layer(0), open, mine.data());
      ASSERT_TRUE(exchange.SendBack(open, mine.data()).ok());
      // Sends the next layer's rows before it waits for this one's results.
      const bool more = i + 1 < own[r].size();
      const Handle next = more ? send(i + 1) : open;
      std::vector<float> y(own[r][i].x.size());
      ASSERT_TRUE(exchange.Finish(open, y.data()).ok());
      EXPECT_EQ(Doubles(format, y.data(), y.size()), Serial(format, kGranules, own[r][i]));
      open = next;
    }
  });
}

TEST(Dispatch, ReportsOverflowWithCountsAndNeverWritesIt) {
  Layout layout = OnePerRank(2);
  const Format format{.hidden = 16,
                      .top_k = 1,
                      .experts = 2,
                      .x = Element::kF32,
                      .wire = Element::kF32,
                      .sums = Element::kF32,
                      .most_tokens = 32};
  BufferOptions options{.format = format, .geometry = {}, .exchange = {}};
  options.exchange.packed_capacity = 20;
  Worlds world = WorldOf(2, options, layout);
  std::mt19937 draw(5);
  // Both send twelve rows for expert 1: four too many, the last ones of rank 1.
  const std::vector<Own> own{DrawnRows(format, 12, draw, 1), DrawnRows(format, 12, draw, 1)};
  OnEach(2, [&](uint32_t r) {
    Exchange& exchange = world.buffers[r]->exchange();
    const auto handle = world.buffers[r]->Dispatch(0, own[r].rows(Element::kF32));
    ASSERT_TRUE(handle.ok());
    EXPECT_EQ(exchange.report().whole(), r == 0);
    if (r == 1) {
      ASSERT_TRUE(exchange.report().overflow.has_value());
      EXPECT_EQ(exchange.report().overflow->wanted, 24u);
      EXPECT_EQ(exchange.report().overflow->capacity, 20u);
      EXPECT_EQ(exchange.packed(*handle).rows, 20u);
    }
    void* const outputs = exchange.NextCombineBuffer(*handle);
    Compute(exchange, exchange.routes()->Layer(0), *handle, outputs);
    std::vector<float> y(own[r].x.size());
    ASSERT_TRUE(world.buffers[r]->Combine(*handle, outputs, y.data()).ok());
    std::vector<Contribution> missing;
    if (r == 1)
      for (uint32_t row = 8; row < 12; ++row) missing.push_back({row, 0, 1});
    EXPECT_EQ(exchange.report().missing, missing);
    EXPECT_EQ(Doubles(format, y.data(), y.size()), Serial(format, kGranules, own[r], missing));
  });
}

TEST(Dispatch, RejectsHandleOutsideItsPair) {
  Layout layout = OnePerRank(1);
  const Format format{.hidden = 1,
                      .top_k = 1,
                      .experts = 1,
                      .x = Element::kF32,
                      .wire = Element::kF32,
                      .sums = Element::kF32,
                      .most_tokens = 2};
  Worlds world = WorldOf(1, {.format = format, .geometry = {}, .exchange = {}}, layout);
  Buffer& buffer = *world.buffers[0];
  Exchange& exchange = buffer.exchange();
  const float x = 1, weight = 1;
  const int32_t expert = 0;
  const Rows rows{1, &x, &expert, &weight};
  float y = 0;
  const Handle first = buffer.Dispatch(0, rows).value();
  EXPECT_EQ(exchange.Finish(first, &y).message(),
            "Finish of pair 0 of epoch 1: its dispatch is not through yet");
  const Handle second = buffer.Dispatch(0, rows).value();
  EXPECT_EQ(exchange.Send(0, rows).status().message(),
            "two pairs are open: the combine of pair 0 comes first");
  EXPECT_EQ(exchange.SendBack(second, &x).message(), "the combine of pair 1 before that of pair 0");
  ASSERT_TRUE(exchange.SendBack(first, &x).ok());
  ASSERT_TRUE(exchange.SendBack(second, &x).ok());
  EXPECT_EQ(exchange.Finish(second, &y).message(), "Finish of pair 1 before that of pair 0");
  ASSERT_TRUE(exchange.Finish(first, &y).ok());
  EXPECT_EQ(
      buffer.Combine(first, &x, &y).message(),
      "Combine of pair 0 of epoch 1: it is over: a handle is for one dispatch and its combine");
  ASSERT_TRUE(exchange.Finish(second, &y).ok());
  const Handle third = buffer.Dispatch(0, rows).value();
  ASSERT_TRUE(buffer.UpdateMembers(2, IdsOf(world.buffers), RoutesOf(layout, 0)).ok());
  EXPECT_EQ(buffer.Combine(third, &x, &y).message(),
            "Combine of pair 2 of epoch 1: the epoch is 2 by now");
  EXPECT_EQ(buffer.UpdateMembers(2, IdsOf(world.buffers), RoutesOf(layout, 0)).message(),
            "epoch 2 after 2");
  EXPECT_EQ(exchange.Send(1, rows).status().message(), "no active layout has layer 1 of experts");
  const Rows many{3, &x, &expert, &weight};
  EXPECT_EQ(exchange.Send(0, many).status().message(),
            "3 rows in one dispatch, and the most are 2");
}

TEST(Dispatch, RejectsUnboundedOrUndersizedMemory) {
  SocketFolder folder;
  BufferOptions options{.format = FormatOf(kKinds[0], 3), .geometry = {}, .exchange = {}};
  options.format.most_tokens = 0;
  const auto why = [&] {
    return Buffer::Create(MemberOf(folder, Path::kTcp, "a", 1), options,
                          net::Credentials::Insecure())
        .status()
        .message();
  };
  EXPECT_EQ(why(), "format of rows: most_tokens is 0: memory has no bound then");
  options.format.most_tokens = 1;
  options.geometry = {1, 64};
  EXPECT_THAT(why(), ::testing::HasSubstr("1 slots of 64 bytes: at least one"));
}

TEST(Dispatch, SizeHintMatchesMemoryOfLinks) {
  BufferOptions options{.format = {.hidden = 7168,
                                   .top_k = 8,
                                   .experts = 256,
                                   .x = Element::kBf16,
                                   .wire = Element::kFp8,
                                   .sums = Element::kBf16,
                                   .most_tokens = 128},
                        .geometry = {},
                        .exchange = {}};
  const Buffer::SizeHint hint = Buffer::GetBufferSizeHint(options, 8, 32);
  // Two lanes of two slots, for the larger of both messages: 128 rows of BF16 are returned.
  EXPECT_GE(hint.per_peer, 4 * 128 * 7168 * 2u);
  EXPECT_LE(hint.per_peer, 4 * 128 * 7168 * 2u * 1.01);
  EXPECT_EQ(hint.links, 7 * hint.per_peer);
  EXPECT_EQ(hint.packed, 2u * 8 * 128 * 8 * (7168 + 56 * 4 + 7168 * 2));
}

}  // namespace
}  // namespace tangram::dispatch
