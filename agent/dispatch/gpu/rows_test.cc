// The bits of sums equal those of the host's exchange, for numbers of any size, in any layout.
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "agent/dispatch/gpu/testing/device_world.h"
#include "agent/dispatch/testing/grid.h"

namespace tangram::dispatch {
namespace {

using namespace testing;

constexpr uint32_t kRanks = 3, kExperts = 7, kTopK = 4;

// Numbers whose sums are rounded, so that another order shows. If `any`, also some NaNs, and
// numbers that do not fit in FP8 or in fixed point.
Own AnyRows(const Format& format, uint32_t count, std::mt19937& draw, bool any) {
  Own own = DrawnRows(format, count, draw);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < own.x.size(); ++i) {
    own.x[i] = std::ldexp(normal(draw), static_cast<int>(draw() % 12) - 8);
    if (any && draw() % 199 == 0) own.x[i] = std::bit_cast<float>(static_cast<uint32_t>(draw()));
    if (draw() % 61 == 0) own.x[i] = -0.0f;
    own.halves[i] = testing::ToBf16(own.x[i]);
  }
  // Blocks of zeros, and of numbers too small for a scale.
  for (size_t i = 0; i + 256 < own.x.size(); i += 7 * 128)
    for (size_t n = i; n < i + 140; ++n) {
      own.x[n] = i % 2 == 0 ? 0 : 1e-35f;
      own.halves[n] = testing::ToBf16(own.x[n]);
    }
  for (float& weight : own.weights) weight = std::abs(normal(draw));
  return own;
}

struct Result {
  std::vector<uint8_t> y;
  std::vector<Contribution> missing;
  bool operator==(const Result&) const = default;
};

class Bits : public ::testing::TestWithParam<std::tuple<size_t, uint32_t>> {
 protected:
  void SetUp() override {
    kind_ = kKinds[std::get<0>(GetParam())];
    format_ = FormatOf(kind_, kExperts, std::get<1>(GetParam()), kTopK);
  }

  // Results by the host's exchange: [rank][step].
  std::vector<std::vector<Result>> ByHost(Layout& layout,
                                          const std::vector<std::vector<Own>>& own) {
    SocketFolder folder;
    std::vector<std::unique_ptr<Buffer>> buffers;
    for (uint32_t r = 0; r < kRanks; ++r)
      buffers.push_back(std::move(
          Buffer::Create(MemberOf(folder, Path::kSharedMemory, std::string(1, 'a' + r), 1),
                         {.format = format_, .geometry = {}, .exchange = {}},
                         net::Credentials::Insecure())
              .value()));
    Meet(buffers);
    std::vector<std::shared_ptr<const Routes>> routes;
    for (uint32_t r = 0; r < kRanks; ++r) routes.push_back(RoutesOf(layout, r));
    std::vector<std::vector<Result>> out(kRanks);
    OnEach(kRanks, [&](uint32_t r) {
      Exchange& exchange = buffers[r]->exchange();
      ASSERT_TRUE(buffers[r]->UpdateMembers(1, IdsOf(buffers), routes[r]).ok());
      for (size_t i = 0; i < own[r].size(); ++i) {
        const auto handle = buffers[r]->Dispatch(i % 2, own[r][i].rows(format_.x));
        ASSERT_TRUE(handle.ok());
        void* const outputs = exchange.NextCombineBuffer(*handle);
        testing::Compute(exchange, routes[r]->Layer(i % 2), *handle, outputs);
        Result result;
        result.y.resize(own[r][i].count * format_.hidden * BytesOf(format_.sums) + 8, 0x5a);
        ASSERT_TRUE(buffers[r]->Combine(*handle, outputs, result.y.data()).ok());
        result.missing = exchange.report().missing;
        out[r].push_back(std::move(result));
      }
    });
    return out;
  }

  std::vector<std::vector<Result>> ByDevice(Layout& layout,
                                            const std::vector<std::vector<Own>>& own) {
    DeviceOptions options{.format = format_};
    options.most_ranks = kRanks;
    options.most_locals = 3 * kExperts;
    options.moe_layers = 2;
    options.most_blocks = 5;
    DeviceWorld world(testing::Where::kHost, kRanks, options);
    world.Enter(1, layout);
    std::vector<std::shared_ptr<const Routes>> routes;
    for (uint32_t r = 0; r < kRanks; ++r) routes.push_back(RoutesOf(layout, r));
    std::vector<std::vector<Result>> out(kRanks);
    OnEach(kRanks, [&](uint32_t r) {
      DeviceRank& rank = world[r];
      DeviceBuffer& buffer = rank.buffer();
      for (size_t i = 0; i < own[r].size(); ++i) {
        const auto handle = buffer.Send(i % 2, rank.Put(own[r][i]), rank.queue());
        ASSERT_TRUE(handle.ok());
        ASSERT_TRUE(buffer.Receive(*handle, rank.queue()).ok());
        rank.Compute(routes[r]->Layer(i % 2), *handle, rank.outputs());
        ASSERT_TRUE(buffer.SendBack(*handle, rank.outputs(), rank.queue()).ok());
        rank.ClearY(own[r][i].count);
        ASSERT_TRUE(buffer.Finish(*handle, rank.y(), rank.queue()).ok());
        const auto report = buffer.ReportOf(*handle, rank.queue());
        ASSERT_TRUE(report.ok()) << report.status().message();
        out[r].push_back({rank.Y(own[r][i].count), report->missing});
      }
    });
    return out;
  }

  Kind kind_;
  Format format_;
};

TEST_P(Bits, MatchHostExchange) {
  std::mt19937 draw(static_cast<uint32_t>(std::get<0>(GetParam())) * 7 + 1);
  size_t missing = 0;
  for (int round = 0; round < 2; ++round) {
    Layout layout = Drawn(kRanks, kExperts, draw);
    std::vector<std::vector<Own>> own(kRanks);
    for (uint32_t r = 0; r < kRanks; ++r)
      for (int i = 0; i < 3; ++i)
        own[r].push_back(AnyRows(format_, draw() % 65, draw, round % 2 == 1));
    const auto expected = ByHost(layout, own), found = ByDevice(layout, own);
    for (uint32_t r = 0; r < kRanks; ++r) {
      ASSERT_EQ(found[r].size(), expected[r].size());
      for (size_t i = 0; i < found[r].size(); ++i) {
        ASSERT_EQ(found[r][i].missing, expected[r][i].missing) << "rank " << r << " step " << i;
        // Incomplete rows have no defined value.
        const size_t bytes = format_.hidden * BytesOf(format_.sums);
        for (uint32_t row = 0; row < own[r][i].count; ++row) {
          if (std::ranges::any_of(found[r][i].missing,
                                  [&](const Contribution& c) { return c.row == row; }))
            continue;
          ASSERT_EQ(std::memcmp(&found[r][i].y[row * bytes], &expected[r][i].y[row * bytes], bytes),
                    0)
              << kind_.name << " round " << round << " rank " << r << " step " << i << " row "
              << row;
        }
        missing += found[r][i].missing.size();
      }
    }
  }
  EXPECT_EQ(missing > 0, kind_.sums == Element::kFixed) << "what has no place in fixed point";
}

INSTANTIATE_TEST_SUITE_P(Dispatch, Bits,
                         ::testing::Combine(::testing::Range(size_t{0}, std::size(kKinds)),
                                            ::testing::Values(131, 384)),
                         [](const auto& info) {
                           return std::string(kKinds[std::get<0>(info.param)].name) +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace tangram::dispatch
