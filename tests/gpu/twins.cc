// Every kernel against its twin on the host: the same source compiled by two compilers, run by
// thousands of threads and by one.
#include <map>

#include "tests/gpu/acts.h"
#include "tests/gpu/twin_case.h"

namespace tangram::gpu {

void RunTwins(const Task& task) {
  const Gpu gpu(task.driver);
  const Kernels kernels(gpu);
  const uint32_t seeds = task.small ? 1 : 6;
  std::map<std::string, uint64_t> right;
  for (uint32_t seed = 1; seed <= seeds; ++seed) {
    // The last seed has large cases.
    const uint64_t scale = task.small ? 1 : seed == seeds ? 64 : 8;
    for (const TwinCase& twin : TwinCases(100 * seed, scale)) {
      const auto difference = Difference(gpu, kernels, twin);
      if (difference) {
        task.out->Wrong(*difference + " (seed " + std::to_string(seed) + ")");
      } else {
        ++right[twin.kernel];
      }
    }
  }
  for (const auto& [kernel, cases] : right) task.out->Right("cases of " + kernel, cases);
}

}  // namespace tangram::gpu
