// One history of a simulated world, from its seed alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tangram::simulation {

struct Played {
  std::vector<std::string> wrong;  // claims that did not hold; empty: all did
  std::vector<std::string> trace;  // if it was asked for
  std::vector<std::string> shown;  // the same, in parts
  std::map<std::string, uint64_t> reached;
  uint64_t turns = 0;
  double seconds = 0;  // of simulated time
};

// The same for the same seed, on any machine and as often as one likes.
Played Play(uint64_t seed, bool trace, bool shown = false);

}  // namespace tangram::simulation
