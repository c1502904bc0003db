// The state of a world after a rank dies, is stopped or is slow, and the reports of its peers.
#include <gtest/gtest.h>

#include <cmath>

#include "agent/base/testing/hang.h"
#include "agent/dispatch/testing/world.h"

namespace tangram::dispatch {
namespace {

using namespace testing;
using std::chrono::duration_cast;
using std::chrono::milliseconds;

constexpr uint32_t kRanks = 3, kGranules = 4, kHidden = 40, kExperts = 6;
// For tests without a silent rank: too long for a busy machine to reach.
constexpr auto kNever = duration_cast<milliseconds>(tangram::testing::kHang);

// Expert e is on rank e % 3; those from 3 on have a replica on the rank after it.
Layout Copied() {
  Layout layout(kRanks, kExperts);
  std::vector<Placed> experts;
  for (uint32_t e = 0; e < kExperts; ++e) {
    experts.push_back({{{e % kRanks, 0, kGranules}}});
    if (e >= 3) experts.back().push_back({{(e + 1) % kRanks, 0, kGranules}});
  }
  layout.AddLayer(experts);
  return layout;
}

struct Setting {
  const char* name;
  Element x, wire, sums;
  Path path;
};
constexpr Setting kSettings[] = {
    {"F32InSharedMemory", Element::kF32, Element::kF32, Element::kF32, Path::kSharedMemory},
    {"FixedOverTcp", Element::kF32, Element::kF32, Element::kFixed, Path::kTcp},
    {"Bf16InSharedMemory", Element::kBf16, Element::kBf16, Element::kBf16, Path::kSharedMemory},
    {"Bf16OverTcp", Element::kBf16, Element::kBf16, Element::kBf16, Path::kTcp},
    {"Fp8InSharedMemory", Element::kBf16, Element::kFp8, Element::kBf16, Path::kSharedMemory},
};

class Failures : public ::testing::TestWithParam<Setting> {
 protected:
  explicit Failures(milliseconds timeout = kNever) : timeout_(timeout) {
    format_ = {.hidden = kHidden,
               .top_k = 2,
               .experts = kExperts,
               .x = GetParam().x,
               .wire = GetParam().wire,
               .sums = GetParam().sums,
               .most_tokens = 64};
    BufferOptions options{.format = format_, .geometry = {}, .exchange = {.timeout = timeout_}};
    for (uint32_t r = 0; r < kRanks; ++r)
      buffers_.push_back(
          std::move(Buffer::Create(MemberOf(folder_, GetParam().path, std::string(1, 'a' + r), 1),
                                   options, net::Credentials::Insecure()))
              .value());
    Meet(buffers_);
    for (uint32_t r = 0; r < kRanks; ++r)
      EXPECT_TRUE(buffers_[r]->UpdateMembers(1, IdsOf(buffers_), RoutesOf(layout_, r)).ok());
    std::mt19937 draw(7);
    for (uint32_t r = 0; r < kRanks; ++r)
      for (int i = 0; i < 4; ++i) own_[r].push_back(DrawnRows(format_, 48, draw));
  }

  // Checks that the result lacks exactly the reported contributions.
  void Judge(uint32_t r, const Own& own, const void* y) {
    const Report& report = buffers_[r]->exchange().report();
    const std::vector<double> expected = Serial(format_, kGranules, own, report.missing);
    const std::vector<double> found = Doubles(format_, y, expected.size());
    const bool exact = format_.sums != Element::kBf16;
    const double bound = exact ? 0 : 900 * (format_.wire == Element::kFp8 ? .08 : .012);
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_LE(std::abs(found[i] - expected[i]), bound) << "rank " << r << " number " << i;
  }
  void Combine(uint32_t r, const Own& own, const Handle& handle) {
    Exchange& exchange = buffers_[r]->exchange();
    void* const outputs = exchange.NextCombineBuffer(handle);
    Compute(exchange, exchange.routes()->Layer(0), handle, outputs);
    std::vector<uint8_t> y(own.x.size() * 8);
    const Status back = buffers_[r]->Combine(handle, outputs, y.data());
    ASSERT_TRUE(back.ok()) << back.message();
    Judge(r, own, y.data());
  }
  void Pair(uint32_t r, const Own& own) {
    const auto handle = buffers_[r]->Dispatch(0, own.rows(format_.x));
    ASSERT_TRUE(handle.ok()) << handle.status().message();
    Combine(r, own, *handle);
  }
  bool Lacks(uint32_t r, int32_t expert) const {
    for (const Contribution& c : buffers_[r]->exchange().report().missing)
      if (c.expert == expert) return true;
    return false;
  }
  // Rank 2 stays masked: no rank waits for it, and only its contributions without a replica are
  // missing.
  void ExpectMasked(uint32_t r, const Own& own, tg_cause found, uint32_t doing, const char* cause) {
    Exchange& exchange = buffers_[r]->exchange();
    EXPECT_EQ(exchange.active_ranks()[2], 0);
    EXPECT_THAT(exchange.cause(2), ::testing::HasSubstr(cause));
    EXPECT_EQ(exchange.found(2).cause, found);
    EXPECT_EQ(exchange.found(2).doing, doing);
    const auto begin = std::chrono::steady_clock::now();
    Pair(r, own);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, timeout_ / 2) << "it is waited for again";
    EXPECT_EQ(exchange.report().masked, (std::vector<uint32_t>{2}));
    EXPECT_FALSE(exchange.report().whole());
    for (int32_t e = 0; e < static_cast<int32_t>(kExperts); ++e) EXPECT_EQ(Lacks(r, e), e == 2);
  }

  const milliseconds timeout_;
  SocketFolder folder_;
  Format format_;
  Layout layout_ = Copied();
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<Own> own_[kRanks];
};

// Ranks that are silent, so the timeout ends the wait.
class FailuresRealTime : public Failures {
 protected:
  FailuresRealTime() : Failures(milliseconds(1200)) {}
};

INSTANTIATE_TEST_SUITE_P(Dispatch, Failures, ::testing::ValuesIn(kSettings),
                         [](const auto& info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(Dispatch, FailuresRealTime, ::testing::ValuesIn(kSettings),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Failures, MasksRankImmediatelyWhenItDiesBeforeDispatch) {
  OnEach(kRanks, [&](uint32_t r) {
    Pair(r, own_[r][0]);
    EXPECT_TRUE(buffers_[r]->exchange().report().whole());
    if (r == 2) {
      buffers_[2].reset();  // as the kernel does for a process that ends
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    Pair(r, own_[r][1]);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, timeout_ / 2) << "its end is seen";
    EXPECT_FALSE(buffers_[r]->exchange().report().whole());
    EXPECT_TRUE(Lacks(r, 2));
    ExpectMasked(r, own_[r][2], TG_GONE, TG_IN_DISPATCH, "");
  });
}

TEST_P(Failures, MissesOnlyResultsOfRankWhenItDiesBeforeCombine) {
  OnEach(kRanks, [&](uint32_t r) {
    const auto handle = buffers_[r]->Dispatch(0, own_[r][0].rows(format_.x));
    ASSERT_TRUE(handle.ok()) << handle.status().message();
    EXPECT_TRUE(buffers_[r]->exchange().report().whole());
    if (r == 2) {
      buffers_[2].reset();
      return;
    }
    Combine(r, own_[r][0], *handle);
    EXPECT_FALSE(buffers_[r]->exchange().report().whole());
    EXPECT_TRUE(Lacks(r, 2));
    EXPECT_FALSE(Lacks(r, 0));
    ExpectMasked(r, own_[r][1], TG_GONE, TG_IN_COMBINE, "");
  });
}

TEST_P(FailuresRealTime, MasksUnresponsiveRankOnceAfterTimeout) {
  OnEach(kRanks, [&](uint32_t r) {
    if (r == 2) return;  // it is alive, but sends nothing
    const auto begin = std::chrono::steady_clock::now();
    Pair(r, own_[r][0]);
    const auto took = std::chrono::steady_clock::now() - begin;
    EXPECT_GE(took, timeout_);
    EXPECT_TRUE(Lacks(r, 2));
    ExpectMasked(r, own_[r][1], TG_SILENT, TG_IN_DISPATCH, "");
  });
}

TEST_P(FailuresRealTime, WaitsForSlowRank) {
  OnEach(kRanks, [&](uint32_t r) {
    for (int i = 0; i < 2; ++i) {
      if (r == 2) std::this_thread::sleep_for(timeout_ / 2);
      Pair(r, own_[r][i]);
      EXPECT_TRUE(buffers_[r]->exchange().report().whole());
    }
  });
}

TEST_P(FailuresRealTime, DoesNotMaskPeerWaitingForUnresponsiveRank) {
  // Rank 2 is stopped; rank 1 starts its dispatch when rank 0 has almost reached its timeout. Rank
  // 0 continues, and in the next pair waits for rank 1 almost as long again.
  OnEach(kRanks, [&](uint32_t r) {
    if (r == 2) return;
    if (r == 1) std::this_thread::sleep_for(timeout_ * 3 / 4);
    Pair(r, own_[r][0]);
    Pair(r, own_[r][1]);
    EXPECT_EQ(buffers_[r]->exchange().active_ranks()[1 - r], 1)
        << buffers_[r]->exchange().cause(1 - r);
  });
}

TEST_P(Failures, SkipsRankMaskedByCallerWithoutWaiting) {
  OnEach(kRanks, [&](uint32_t r) {
    if (r == 2) return;
    buffers_[r]->exchange().Mask(2, "its agent said so");
    ExpectMasked(r, own_[r][0], TG_TOLD, 0, "its agent said so");
  });
}

TEST_P(Failures, MasksDeadRankFromStartOfNextWorld) {
  buffers_[2].reset();
  const std::vector<MemberId> ids{{"a", 1}, {"b", 1}, {"c", 1}};
  for (uint32_t r = 0; r < 2; ++r)
    ASSERT_TRUE(buffers_[r]->UpdateMembers(2, ids, RoutesOf(layout_, r)).ok());
  OnEach(2, [&](uint32_t r) {
    ExpectMasked(r, own_[r][0], TG_GONE, 0, "there is no connection with it");
  });
}

TEST_P(Failures, CompletesWithoutLostRankAndQuarantinesItsMemory) {
  Layout two(2, kExperts);
  two.AddLayer(std::vector<Placed>(kExperts, Placed{{{0, 0, 1}, {1, 1, kGranules - 1}}}));
  OnEach(kRanks, [&](uint32_t r) {
    if (r == 2) return;
    buffers_[r]->exchange().Mask(2, "its agent said so");
    Pair(r, own_[r][0]);
  });
  std::vector<std::shared_ptr<const Routes>> routes{RoutesOf(two, 0), RoutesOf(two, 1)};
  OnEach(2, [&](uint32_t r) {
    const std::vector<MemberId> ids{{"a", 1}, {"b", 1}};
    ASSERT_TRUE(buffers_[r]->UpdateMembers(2, ids, routes[r]).ok());
    Pair(r, own_[r][1]);
    EXPECT_TRUE(buffers_[r]->exchange().report().whole());
    const bool shared = GetParam().path == Path::kSharedMemory;
    EXPECT_EQ(buffers_[r]->peers().quarantined() > 0, shared);
    buffers_[r]->Ended({"c", 1});
    EXPECT_EQ(buffers_[r]->peers().quarantined(), 0u);
  });
}

}  // namespace
}  // namespace tangram::dispatch
