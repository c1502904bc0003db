// Histories: most are the same every day, some change by day (DATE, as make test prints it).
// SIMULATE_COUNT=n plays as many from today's seeds.
#include "agent/simulation/history.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <map>

namespace tangram::simulation {
namespace {

// Days since 1970 of DATE=YYYY-MM-DD, or of today.
uint64_t Day() {
  std::tm date{};
  if (const char* text = std::getenv("DATE");
      text != nullptr && strptime(text, "%Y-%m-%d", &date)) {
    return static_cast<uint64_t>(timegm(&date) / 86'400);
  }
  return static_cast<uint64_t>(std::time(nullptr) / 86'400);
}

uint64_t Count(uint64_t by_day) {
  const char* count = std::getenv("SIMULATE_COUNT");
  return count == nullptr ? by_day : std::strtoull(count, nullptr, 10);
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

TEST(Simulation, HoldsItsClaimsInTheSameHistoriesEveryDay) {
  const auto reached = PlayAll(1, 1350);
  // Histories that reach nothing would prove nothing.
  for (const char* what :
       {"retired FLIP_KIND_FIRST", "retired FLIP_KIND_JOIN", "retired FLIP_KIND_LAYOUT",
        "retired FLIP_KIND_LEAVE", "retired FLIP_KIND_REPAIR", "flip", "flip by words",
        "flip forward", "fence stay", "fence forward", "decline", "stop", "abort: not",
        "abort: flipped", "released", "gate armed to idle by abort",
        "gate armed to idle by resolve", "gate latched to idle by resolve"}) {
    EXPECT_TRUE(reached.contains(what)) << "no history has: " << what;
  }
}

TEST(Simulation, HoldsItsClaimsInTodaysHistories) {
  const uint64_t first = Day() << 24, count = Count(50);
  fmt::print("seeds from {}\n", first);
  (void)PlayAll(first, count);
}

TEST(Simulation, PlaysASeedAgain) {
  for (const uint64_t seed : {3, 4, 5}) {
    const Played once = Play(seed, true), again = Play(seed, true);
    EXPECT_GT(once.trace.size(), 50u);
    EXPECT_EQ(once.trace, again.trace);
    EXPECT_NE(once.trace, Play(seed + 1, true).trace);
  }
}

}  // namespace
}  // namespace tangram::simulation
