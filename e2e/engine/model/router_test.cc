#include "e2e/engine/model/router.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "e2e/engine/model/rope.h"

namespace tangram::model {
namespace {

struct Chosen {
  std::vector<uint32_t> experts;
  std::vector<float> weights;
};

Chosen Choose(const Router& router, std::vector<float> logits, uint32_t top_k,
              const std::vector<float>& bias = {}) {
  Chosen out{std::vector<uint32_t>(top_k), std::vector<float>(top_k)};
  ChooseExperts(router, logits, bias, out.experts, out.weights);
  return out;
}

using Experts = std::vector<uint32_t>;

TEST(Router, SoftmaxPicksBestAndLowestIndexOnTie) {
  const Chosen all = Choose({}, {1, 3, 2, 3, 0}, 3);
  EXPECT_EQ(all.experts, (Experts{1, 3, 2}));
  EXPECT_NEAR(all.weights[0], std::exp(3) / (std::exp(1) + 2 * std::exp(3) + std::exp(2) + 1),
              1e-6);
  Router normal;
  normal.normalise = true;
  normal.scale = 2;
  const Chosen scaled = Choose(normal, {1, 3, 2, 3, 0}, 2);
  EXPECT_EQ(scaled.weights, (std::vector<float>{1, 1}));
}

// The best expert of all decides for its group; no expert of another group is chosen, however good.
TEST(Router, ChoosesOnlyFromBestGroups) {
  Router router;
  router.groups = 3;
  router.groups_kept = 1;
  const std::vector<float> logits = {5, 0, 4, 4, 1, 2};
  EXPECT_EQ(Choose(router, logits, 2).experts, (Experts{0, 1}));
  router.group_best = 2;
  EXPECT_EQ(Choose(router, logits, 2).experts, (Experts{0, 1}))
      << "softmax: e^5 is more than 2 e^4";
  router.sigmoid = true;
  EXPECT_EQ(Choose(router, logits, 2).experts, (Experts{2, 3})) << "two near 1 are more than one";
  router.groups_kept = 2;
  EXPECT_EQ(Choose(router, logits, 3).experts, (Experts{2, 3, 5}));
}

TEST(Router, BiasAffectsChoiceButNotWeights) {
  Router router;
  router.sigmoid = router.bias = router.normalise = true;
  const std::vector<float> logits = {2, 0, -2, 1};
  const Chosen chosen = Choose(router, logits, 2, {-1, 0, 2, 0});
  EXPECT_EQ(chosen.experts, (Experts{2, 3}));
  const double low = 1 / (1 + std::exp(2)), high = 1 / (1 + std::exp(-1));
  EXPECT_NEAR(chosen.weights[0], low / (low + high), 1e-6);
  EXPECT_NEAR(chosen.weights[1], high / (low + high), 1e-6);
}

// A group whose scores are all negative with their bias is ordered by these scores.
TEST(Router, OrdersGroupsWithNegativeScores) {
  Router router;
  router.sigmoid = router.bias = true;
  router.groups = 2;
  router.groups_kept = 1;
  router.group_best = 2;
  EXPECT_EQ(Choose(router, {0, 0, 0, 0}, 2, {-3, -4, -2, -1}).experts, (Experts{3, 2}));
  EXPECT_EQ(Choose(router, {0, 0, 0, 0}, 2, {-1, -2, -3, -4}).experts, (Experts{0, 1}));
}

// Fast angles stay, slow ones are divided, and the ramp between them is linear.
TEST(Rope, YarnStretchesSlowAnglesOnly) {
  Rope rope;
  rope.width = 64;
  rope.yarn = Yarn{40, 4096, 32, 1, 1, 0.5};
  Rope plain = rope;
  plain.yarn.reset();
  const std::vector<float> stretched = RopeTable(rope, 2), unstretched = RopeTable(plain, 2);
  const double scale = (0.1 * std::log(40) + 1) / (0.05 * std::log(40) + 1);
  EXPECT_NEAR(rope.yarn->TableScale(), scale, 1e-12);
  const auto turn = [](const std::vector<float>& table, uint32_t i) {
    return std::atan2(table[64 + 2 * i + 1], table[64 + 2 * i]);  // of position 1
  };
  // 32 turns within 4096 positions are frequency 10.47, one turn is 22.52: the ramp is 10 to 23.
  for (uint32_t i = 0; i < 32; ++i) {
    const double ramp = std::clamp((i - 10.0) / 13, 0.0, 1.0);
    EXPECT_NEAR(turn(stretched, i), turn(unstretched, i) * (1 - ramp + ramp / 40),
                2e-6 * turn(unstretched, i))
        << i;
    EXPECT_NEAR(std::hypot(stretched[64 + 2 * i], stretched[64 + 2 * i + 1]), scale, 1e-6);
  }
}

// The two pairings of elements are the same rotation at other places.
TEST(Rope, PairsAndHalvesAreTheSameRotation) {
  Rope halves;
  halves.width = 6;
  Rope pairs = halves;
  pairs.pairs = true;
  const std::vector<float> table = RopeTable(halves, 4);
  const std::vector<float> x = {1, 2, 3, 4, 5, 6}, turned = {1, 3, 5, 2, 4, 6};
  std::vector<float> a(6), b(6);
  Rotate(pairs, &table[18], x.data(), a.data());
  Rotate(halves, &table[18], turned.data(), b.data());
  EXPECT_EQ(a, b);
  EXPECT_NEAR(a[0], std::cos(3.0) - 2 * std::sin(3.0), 1e-6);
}

}  // namespace
}  // namespace tangram::model
