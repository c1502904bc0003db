// One history of a simulated world. It depends only on its seed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tangram::simulation {

struct Played {
  std::vector<std::string> wrong;  // violated claims; empty: none
  std::vector<std::string> trace;  // if requested
  std::vector<std::string> shown;  // the same, in parts
  std::map<std::string, uint64_t> reached;
  uint64_t turns = 0;
  double seconds = 0;  // of simulated time
};

// The same result for the same seed, on any machine and in any repetition.
Played Play(uint64_t seed, bool trace, bool shown = false);

}  // namespace tangram::simulation
