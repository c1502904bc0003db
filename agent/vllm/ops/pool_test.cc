#include "agent/vllm/ops/pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace tangram::experts {
namespace {

TEST(Pool, RunsEveryItemOnceBeforeReturning) {
  for (uint32_t threads : {1U, 2U, 5U}) {
    Pool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (uint32_t round = 0; round < 200; ++round) {
      const uint32_t count = round % 9;
      std::vector<std::atomic<uint32_t>> done(count);
      std::atomic<uint32_t> strangers{0};
      pool.Run(count, [&](uint32_t item, uint32_t thread) {
        ++done[item];
        if (thread >= threads) ++strangers;
      });
      for (const std::atomic<uint32_t>& times : done) ASSERT_EQ(times, 1U);
      ASSERT_EQ(strangers, 0U);
    }
  }
}

}  // namespace
}  // namespace tangram::experts
