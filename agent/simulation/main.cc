// tangram-simulate-agents: runs histories of a simulated world (README.md). At the first violated
// claim it prints the seed and the trace, and exits with 1.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "agent/simulation/history.h"

namespace {

void Tell(const tangram::simulation::Played& played) {
  for (const std::string& line : played.trace) fmt::print("{}\n", line);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Histories of shipping agent code in a simulated world");
  uint64_t seed = 1, count = 1'000;
  bool trace = false, shown = false;
  app.add_option("--seed", seed, "of the first history");
  app.add_option("--count", count, "of histories, with seeds that follow one another");
  app.add_flag("--trace", trace, "tell what happens in each");
  app.add_flag("--shown", shown, "tell what the ranks of each show, for tests/model to follow");
  CLI11_PARSE(app, argc, argv);
  std::map<std::string, uint64_t> reached;
  uint64_t turns = 0;
  double seconds = 0;
  for (uint64_t n = 0; n < count; ++n) {
    const auto played = tangram::simulation::Play(seed + n, trace, shown);
    if (trace) Tell(played);
    for (const std::string& part : played.shown) fmt::print("shown {}\n{}", seed + n, part);
    if (!played.wrong.empty()) {
      if (!trace) Tell(tangram::simulation::Play(seed + n, true));
      for (const std::string& wrong : played.wrong) fmt::print("{}\n", wrong);
      fmt::print("seed {}: make simulate-agents SEED={} COUNT=1 plays it again\n", seed + n,
                 seed + n);
      return 1;
    }
    turns += played.turns;
    seconds += played.seconds;
    for (const auto& [what, times] : played.reached) reached[what] += times;
  }
  for (const auto& [what, times] : reached) fmt::print("{:8} {}\n", times, what);
  fmt::print("{} histories from seed {}, {} turns, {:.0f} simulated seconds\n", count, seed, turns,
             seconds);
  return 0;
}
