// Dispatch and combine over real connections, a thread per rank, compared with sums made serially.
#include "agent/engine/rows/rows.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include "agent/dispatch/testing/layout.h"
#include "agent/net/testing/certs.h"

namespace tangram::engine {
namespace {

using dispatch::Arrived;
using dispatch::Element;
using dispatch::LayerRoutes;
using dispatch::LocalPiece;
using dispatch::Routes;
using dispatch::testing::Layout;
using dispatch::testing::Placed;

constexpr uint32_t kHidden = 5, kTopK = 3, kExperts = 6, kGranules = 7;

dispatch::Format Small(uint32_t experts) {
  return {.hidden = 1,
          .top_k = 1,
          .experts = experts,
          .x = Element::kF32,
          .wire = Element::kF32,
          .sums = Element::kF32};
}

template <typename T>
dispatch::Format FormatOf(Element element) {
  return {.hidden = kHidden,
          .top_k = kTopK,
          .experts = kExperts,
          .x = element,
          .wire = element,
          .sums = std::is_same_v<T, int64_t> ? Element::kFixed : Element::kF32};
}

struct Node {
  std::unique_ptr<Mesh> mesh;
  std::unique_ptr<Patience> patience;
  std::vector<std::string> names;
  Communicator At(uint64_t epoch, uint32_t rank) {
    return {mesh.get(), epoch, rank, names, patience.get()};
  }
};

// Nodes, connected to one another.
std::vector<Node> World(uint32_t ranks) {
  static const net::testing::TestCa ca;
  std::vector<Node> nodes(ranks);
  std::vector<PeerAddress> peers;
  std::vector<std::string> names;
  for (Node& node : nodes) {
    names.push_back(std::string(1, static_cast<char>('a' + names.size())));
    node.mesh = std::move(Mesh::Listen("127.0.0.1:0")).value();
    node.mesh->SetSelf("w", names.back(), ca.Open("w", "engine", "pod-" + names.back()));
    peers.push_back(
        {names.back(), "127.0.0.1:" + std::to_string(node.mesh->port()), "pod-" + names.back()});
    node.patience = std::make_unique<Patience>(
        Patience::Bounds{.least = std::chrono::seconds(20), .most = std::chrono::seconds(20)});
  }
  for (Node& node : nodes) {
    node.names = names;
    node.mesh->Want(peers);
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < until) {
    bool all = true;
    for (Node& node : nodes) {
      node.mesh->Progress(1);
      all = all && node.mesh->Connected(names);
    }
    if (all) return nodes;
  }
  ADD_FAILURE() << nodes[0].mesh->Missing(names);
  return nodes;
}

void OnEach(std::vector<Node>& nodes, const std::function<void(uint32_t)>& run) {
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < nodes.size(); ++r) threads.emplace_back([&run, r] { run(r); });
  for (std::thread& thread : threads) thread.join();
}

// An expert for these tests: small whole numbers, so that sums are exact in any order and any
// wrong, lost or doubled piece is visible.
float OfGranule(uint32_t expert, uint32_t granule, float x) {
  return static_cast<float>((expert + 1) * (granule + 1)) * x;
}

// Whole experts, groups of uneven slices, copies of either, on ranks drawn at random.
Layout Drawn(uint32_t ranks, std::mt19937& draw) {
  Layout layout(ranks, kExperts);
  for (int l = 0; l < 2; ++l) {
    std::vector<Placed> experts(kExperts);
    for (Placed& expert : experts) {
      for (uint32_t a = 0; a <= draw() % 3; ++a) {
        auto& alternative = expert.emplace_back();
        for (uint32_t g = 0; g < kGranules;) {
          const uint32_t count = 1 + draw() % (kGranules - g);
          alternative.push_back({static_cast<uint32_t>(draw() % ranks), g, count});
          g += count;
        }
      }
    }
    layout.AddLayer(std::move(experts));
  }
  return layout;
}

struct Own {
  std::vector<float> x, weights;
  std::vector<int32_t> experts;
  uint32_t count = 0;
};

Own DrawnRows(std::mt19937& draw) {
  Own own;
  own.count = draw() % 4 == 0 ? 0 : draw() % 9;
  for (uint32_t i = 0; i < own.count * kHidden; ++i)
    own.x.push_back(static_cast<float>(static_cast<int>(draw() % 17) - 8));
  for (uint32_t i = 0; i < own.count * kTopK; ++i) {
    own.experts.push_back(static_cast<int32_t>(draw() % kExperts));
    own.weights.push_back(static_cast<float>(1 + draw() % 4));
  }
  return own;
}

std::vector<uint16_t> Halves(const std::vector<float>& x) {
  std::vector<uint16_t> out;
  for (const float v : x) out.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(v) >> 16));
  return out;
}

// The result without any exchange: each row through all granules of its experts.
std::vector<float> Serial(const Own& own) {
  std::vector<float> y(own.x.size(), 0);
  for (uint32_t row = 0; row < own.count; ++row)
    for (uint32_t k = 0; k < kTopK; ++k)
      for (uint32_t g = 0; g < kGranules; ++g)
        for (uint32_t h = 0; h < kHidden; ++h)
          y[row * kHidden + h] += own.weights[row * kTopK + k] *
                                  OfGranule(static_cast<uint32_t>(own.experts[row * kTopK + k]), g,
                                            own.x[row * kHidden + h]);
  return y;
}

template <typename T>
std::vector<T> Computed(const LayerRoutes& layer, const Arrived& came) {
  std::vector<T> out(size_t{came.rows} * kHidden, 0);
  for (uint32_t row = 0; row < came.rows; ++row)
    for (uint32_t k = 0; k < kTopK; ++k) {
      const int32_t choice = came.choices[row * kTopK + k];
      if (choice == dispatch::kNone) continue;
      for (const LocalPiece& piece : layer.PiecesOf(static_cast<uint32_t>(choice)))
        for (uint32_t g = 0; g < piece.granule_count; ++g)
          for (uint32_t h = 0; h < kHidden; ++h)
            out[row * kHidden + h] += static_cast<T>(
                came.weights[row * kTopK + k] *
                OfGranule(piece.expert, piece.granule_start + g, came.x[row * kHidden + h]));
    }
  return out;
}

std::shared_ptr<const Routes> Of(Layout& layout, uint32_t rank) {
  auto routes = Routes::Of(layout.Maps(rank), layout.model());
  EXPECT_TRUE(routes.ok()) << routes.status().message();
  return std::make_shared<const Routes>(std::move(*routes));
}

// Runs it in floats or in fixed point, with or without a removed rank.
template <typename T>
void Plays(Element element, uint32_t ranks, bool leave_one_out, uint32_t seed) {
  std::vector<Node> nodes = World(ranks);
  std::mt19937 draw(seed);
  std::vector<std::unique_ptr<ExpertRows>> exchanges;
  for (uint32_t r = 0; r < ranks; ++r)
    exchanges.push_back(std::make_unique<ExpertRows>(FormatOf<T>(element)));
  for (uint64_t epoch = 1; epoch <= 15; ++epoch) {
    Layout layout = Drawn(ranks, draw);
    std::vector<uint8_t> active;
    if (leave_one_out) {
      active.assign(ranks, 1);
      active[ranks - 1] = 0;
      // The experts of the removed rank have a replica elsewhere.
      Layout spare(ranks, kExperts);
      for (size_t l = 0; l < 2; ++l) {
        std::vector<Placed> experts = layout.layer(l);
        for (Placed& expert : experts)
          expert.push_back({{static_cast<uint32_t>(draw() % (ranks - 1)), 0, kGranules}});
        spare.AddLayer(std::move(experts));
      }
      layout = std::move(spare);
    }
    for (uint32_t r = 0; r < ranks; ++r) exchanges[r]->Enter(Of(layout, r));
    std::vector<std::vector<Own>> rows(ranks);
    for (auto& of : rows)
      for (int i = 0; i < 4; ++i) of.push_back(DrawnRows(draw));
    OnEach(nodes, [&](uint32_t r) {
      if (!active.empty() && active[r] == 0) return;
      Communicator comm = nodes[r].At(epoch, r);
      for (uint32_t step = 0; step < 4; ++step) {
        const Own& own = rows[r][step];
        const uint32_t layer = step % 2;
        const std::vector<uint16_t> halves = Halves(own.x);
        const void* x = own.x.data();
        if (element == Element::kBf16) x = halves.data();
        const Status sent = exchanges[r]->Dispatch(
            comm, step, 1, layer, {own.count, x, own.experts.data(), own.weights.data()}, active);
        ASSERT_TRUE(sent.ok()) << sent.message();
        const auto results =
            Computed<T>(exchanges[r]->routes().Layer(layer), exchanges[r]->arrived());
        std::vector<T> y(own.x.size(), 99);
        const Status back = exchanges[r]->Combine(results.data(), y.data());
        ASSERT_TRUE(back.ok()) << back.message();
        const std::vector<float> expected = Serial(own);
        ASSERT_EQ(y, std::vector<T>(expected.begin(), expected.end()))
            << "seed " << seed << " epoch " << epoch << " rank " << r << " step " << step;
      }
    });
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(ExpertRows, MatchesSerialSumForAnyLayout) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    Plays<float>(Element::kF32, 4, false, seed);
    Plays<float>(Element::kBf16, 3, false, seed);
  }
}

TEST(ExpertRows, FixedPointSumsAreExact) { Plays<int64_t>(Element::kF32, 3, false, 4); }

TEST(ExpertRows, SkipsExcludedRankWithoutWaiting) { Plays<float>(Element::kF32, 4, true, 5); }

TEST(ExpertRows, WorksInWorldOfOneRank) { Plays<float>(Element::kBf16, 1, false, 6); }

TEST(ExpertRows, SumsInRankOrderRegardlessOfArrival) {
  // Rank 0 dispatches to all three; their results are 1, 1e8 and -1e8, in floats: another order
  // gives another sum.
  std::vector<Node> nodes = World(3);
  Layout layout(3, kExperts);
  layout.AddLayer(std::vector<Placed>(kExperts, Placed{{{0, 0, 1}, {1, 1, 1}, {2, 2, 1}}}));
  for (uint32_t slow = 0; slow < 3; ++slow) {
    std::vector<std::shared_ptr<const Routes>> routes;
    for (uint32_t r = 0; r < 3; ++r) routes.push_back(Of(layout, r));
    OnEach(nodes, [&](uint32_t r) {
      Communicator comm = nodes[r].At(slow + 1, r);
      ExpertRows exchange(Small(kExperts));
      exchange.Enter(routes[r]);
      const float x = 1, weight = 1;
      const int32_t expert = 0;
      ASSERT_TRUE(exchange.Dispatch(comm, 0, 1, 0, {r == 0, &x, &expert, &weight}).ok());
      ASSERT_EQ(exchange.arrived().rows, 1u);
      if (r == slow) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const float part = std::vector<float>{1, 1e8f, -1e8f}[r];
      float y = 0;
      ASSERT_TRUE(exchange.Combine(&part, &y).ok());
      if (r == 0) EXPECT_EQ(y, (1.0f + 1e8f) - 1e8f);
    });
  }
}

TEST(ExpertRows, ReturnsMeshErrorWhenPeerDies) {
  for (const bool in_combine : {false, true}) {
    std::vector<Node> nodes = World(3);
    Layout layout(3, kExperts);
    layout.AddLayer(std::vector<Placed>(kExperts, Placed{{{0, 0, 1}, {1, 1, 1}, {2, 2, 1}}}));
    std::vector<std::shared_ptr<const Routes>> routes;
    for (uint32_t r = 0; r < 3; ++r) routes.push_back(Of(layout, r));
    OnEach(nodes, [&](uint32_t r) {
      Communicator comm = nodes[r].At(1, r);
      ExpertRows exchange(Small(kExperts));
      exchange.Enter(routes[r]);
      const float x = 1, weight = 1;
      const int32_t expert = 0;
      float y = 0;
      if (r == 2 && !in_combine) {
        nodes[r].mesh->HangUpAll();
        return;
      }
      Status status = exchange.Dispatch(comm, 0, 1, 0, {1, &x, &expert, &weight});
      if (in_combine) {
        ASSERT_TRUE(status.ok()) << status.message();
        if (r == 2) {
          nodes[r].mesh->HangUpAll();
          return;
        }
        status = exchange.Combine(exchange.arrived().x.data(), &y);
      }
      EXPECT_EQ(status.code(), Code::kUnavailable) << status.message();
      EXPECT_EQ(exchange.Combine(&x, &y).code(), Code::kInvalid) << "the pair is over";
      const auto& missed = comm.missed();
      const auto of = std::find_if(missed.begin(), missed.end(),
                                   [](const tg_missed& one) { return one.rank == 2; });
      // The first rank to abandon the step is lost for the other, which need not look further.
      if (of == missed.end()) {
        EXPECT_FALSE(missed.empty());
        return;
      }
      EXPECT_EQ(of->cause, static_cast<uint32_t>(TG_GONE));
      EXPECT_EQ(of->doing, static_cast<uint32_t>(in_combine ? TG_IN_COMBINE : TG_IN_DISPATCH));
      EXPECT_EQ(of->layer, 0u);
    });
  }
}

TEST(ExpertRows, FailsPairOnIncompleteMessage) {
  for (const size_t bytes : {0u, 30u, 64u}) {
    std::vector<Node> nodes = World(2);
    Layout layout(2, kExperts);
    layout.AddLayer(std::vector<Placed>(kExperts, Placed{{{0, 0, 1}, {1, 1, 1}}}));
    const auto routes = Of(layout, 0);
    OnEach(nodes, [&](uint32_t r) {
      Communicator comm = nodes[r].At(1, r);
      if (r == 1) {
        std::vector<Bytes> send(2), recv;
        send[0].resize(bytes);
        const dispatch::SlotHead head{.total = 5, .top_k = 1, .stride = 8};
        if (bytes == sizeof head) std::memcpy(send[0].data(), &head, sizeof head);
        const std::vector<uint32_t> both{0, 1};
        EXPECT_TRUE(comm.Exchange(0, 1, both, send, &recv).ok());
        return;
      }
      ExpertRows rows(Small(kExperts));
      rows.Enter(routes);
      const float x = 1, weight = 1;
      const int32_t expert = 0;
      const Status status = rows.Dispatch(comm, 0, 1, 0, {1, &x, &expert, &weight});
      EXPECT_EQ(status.code(), Code::kInternal) << status.message();
      ASSERT_EQ(comm.missed().size(), 1u);
      EXPECT_EQ(comm.missed()[0].rank, 1u);
      EXPECT_EQ(comm.missed()[0].cause, static_cast<uint32_t>(TG_HOSTILE));
      EXPECT_EQ(comm.missed()[0].doing, static_cast<uint32_t>(TG_IN_DISPATCH));
    });
  }
}

TEST(ExpertRows, RejectsInvalidCalls) {
  std::vector<Node> nodes = World(1);
  Communicator comm = nodes[0].At(1, 0);
  ExpertRows exchange(Small(2));
  const float x = 1, weight = 1;
  float y = 0;
  int32_t expert = 0;
  const dispatch::Rows rows{1, &x, &expert, &weight};
  EXPECT_EQ(exchange.Dispatch(comm, 0, 1, 0, rows).message(),
            "no active layout has layer 0 of experts");
  Layout layout(1, 2);
  layout.AddLayer({{{{0, 0, 1}}}, {{{0, 0, 1}}}});
  exchange.Enter(Of(layout, 0));
  EXPECT_EQ(exchange.Combine(&x, &y).message(), "combine called without a dispatch before it");
  expert = 2;
  EXPECT_EQ(exchange.Dispatch(comm, 0, 1, 0, rows).message(), "row 0 is for expert 2 of 2");
  expert = 1;
  const std::vector<uint8_t> nobody{0}, two{1, 1};
  const Status left = exchange.Dispatch(comm, 0, 1, 0, rows, nobody);
  EXPECT_EQ(left.code(), Code::kUnavailable);
  EXPECT_EQ(left.message(),
            "layer 0 of experts: expert 1 has no alternative without a rank that is left out");
  EXPECT_EQ(exchange.Dispatch(comm, 0, 1, 0, rows, two).message(),
            "of a world of 1 ranks 2 are said to be active or not");
}

TEST(ExpertRows, AlternatesReplicasAndCountsRows) {
  std::vector<Node> nodes = World(1);
  Communicator comm = nodes[0].At(1, 0);
  ExpertRows exchange(Small(2));
  Layout layout(1, 2);
  layout.AddLayer({{{{0, 0, 1}}, {{0, 0, 1}}}, {{{0, 0, 1}}}});
  exchange.Enter(Of(layout, 0));
  const std::vector<float> x(5, 1), weights(5, 1);
  const std::vector<int32_t> experts{0, 0, 1, 0, 0};
  ASSERT_TRUE(exchange.Dispatch(comm, 0, 1, 0, {5, x.data(), experts.data(), weights.data()}).ok());
  const auto choices = exchange.arrived().choices;
  EXPECT_EQ(std::vector(choices.begin(), choices.end()), (std::vector<int32_t>{0, 1, 2, 0, 1}));
  EXPECT_EQ(std::vector(exchange.routed().begin(), exchange.routed().end()),
            (std::vector<uint32_t>{4, 1}));
  EXPECT_EQ(std::vector(exchange.executed().begin(), exchange.executed().end()),
            (std::vector<uint32_t>{4, 1}));
}

}  // namespace
}  // namespace tangram::engine
