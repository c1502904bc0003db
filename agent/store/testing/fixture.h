// For tests: small worlds, and a common start.
#pragma once

#include <gtest/gtest.h>

#include "agent/base/fault.h"
#include "agent/store/testing/world.h"

#define ASSERT_OK(expr)                                              \
  do {                                                               \
    const Status status_ = (expr);                                   \
    ASSERT_TRUE(status_.ok()) << #expr << ": " << status_.message(); \
  } while (false)

namespace tangram::store::testing {

// 3 layers, 7 experts of 5 granules. `paged`: whole pages per expert; else neighbours share them.
inline World::Options Small(bool paged, uint64_t seed) {
  World::Options options;
  options.shape.layers = 3;
  options.shape.experts = 7;
  options.shape.moe_inner = 40;
  options.shape.hidden = paged ? 512 : 16;
  options.shape.head_dim = 8;
  options.seed = seed;
  if (paged) options.pool_pages = 4096;
  return options;
}

// The same with experts of another family.
inline World::Options Small(loader::testing::Family family, uint64_t seed) {
  World::Options options = Small(false, seed);
  options.shape.family = family;
  // For families with such layers: one without experts, and one that is not served.
  options.shape.first_dense = 1;
  options.shape.interleave = 2;
  options.shape.ahead = family == loader::testing::Family::kDeepSeekV3;
  if (BlockScaled(family)) {
    options.granule_rows = 128;  // a block of scales
    options.shape.moe_inner = 5 * 128;
    options.shape.scales = seed % 2 == 0 ? "F32" : "BF16";
    options.pool_pages = 1024;
  }
  return options;
}

class StoreTest : public ::testing::Test {
 protected:
  void TearDown() override { ASSERT_TRUE(fault::Arm("").ok()); }
  // `ranks` members in Expert (group = 1) or Tensor layout.
  static void Begin(World& world, uint32_t ranks, uint32_t group) {
    for (uint32_t i = 0; i < ranks; ++i) world.AddMember();
    ASSERT_OK(world.Flip(world.First(group)));
    ASSERT_OK(world.Check());
  }
};

}  // namespace tangram::store::testing
