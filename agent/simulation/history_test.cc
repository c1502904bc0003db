// Most histories are fixed; the others use SEED (default 1), so that a commit's result is
// reproducible. TIER=nightly runs more, and SIMULATE_COUNT sets their number.
#include "agent/simulation/history.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

namespace tangram::simulation {
namespace {

uint64_t Number(const char* variable, uint64_t otherwise) {
  const char* number = std::getenv(variable);
  return number == nullptr ? otherwise : std::strtoull(number, nullptr, 10);
}

bool IsNightly() {
  const char* tier = std::getenv("TIER");
  return tier != nullptr && std::string_view(tier) == "nightly";
}

std::map<std::string, uint64_t> PlayAll(uint64_t first, uint64_t count) {
  std::map<std::string, uint64_t> reached;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Played played = Play(seed, false);
    for (const auto& [what, times] : played.reached) reached[what] += times;
    for (const std::string& wrong : played.wrong) {
      ADD_FAILURE() << wrong << "\nmake simulate-agents SEED=" << seed
                    << " COUNT=1 tells all of it";
    }
    if (!played.wrong.empty()) break;
  }
  return reached;
}

TEST(Simulation, SatisfiesClaimsInFixedHistories) {
  const auto reached = PlayAll(1, 1350);
  // Histories that never reach these situations would prove nothing.
  for (const char* what :
       {"retired FLIP_KIND_FIRST", "retired FLIP_KIND_JOIN", "retired FLIP_KIND_LAYOUT",
        "retired FLIP_KIND_LEAVE", "retired FLIP_KIND_REPAIR", "flip", "flip by words",
        "flip forward", "fence stay", "fence forward", "decline", "stop", "abort: not",
        "abort: flipped", "released", "gate armed to idle by abort",
        "gate armed to idle by resolve", "gate latched to idle by resolve"}) {
    EXPECT_TRUE(reached.contains(what)) << "no history has: " << what;
  }
}

TEST(Simulation, SatisfiesClaimsInHistoriesOfSeed) {
  const uint64_t seed = Number("SEED", 1);
  SCOPED_TRACE("SEED=" + std::to_string(seed));
  (void)PlayAll(seed << 24, Number("SIMULATE_COUNT", IsNightly() ? 2'000 : 50));
}

TEST(Simulation, RepeatsHistoryOfSameSeed) {
  for (const uint64_t seed : {3, 4, 5}) {
    const Played once = Play(seed, true), again = Play(seed, true);
    EXPECT_GT(once.trace.size(), 50u);
    EXPECT_EQ(once.trace, again.trace);
    EXPECT_NE(once.trace, Play(seed + 1, true).trace);
  }
}

}  // namespace
}  // namespace tangram::simulation
