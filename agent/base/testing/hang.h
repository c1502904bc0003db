// Limits of waits in tests. A test waits for a condition and fails only if the program hangs, so
// there is one limit, far above what the slowest machine needs.
#pragma once

#include <chrono>
#include <thread>

namespace tangram::testing {

inline constexpr std::chrono::seconds kHang{60};
inline constexpr int kHangMs = 60'000;  // for functions with a timeout in milliseconds

// Looks until the condition holds. False if it still does not after kHang.
template <typename Condition>
bool Eventually(Condition&& condition) {
  const auto end = std::chrono::steady_clock::now() + kHang;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace tangram::testing
