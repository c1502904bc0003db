// The timeout of waits in tests. A test waits for a condition and fails only if the program blocks
// forever, so one timeout far above the needs of the slowest machine is enough.
#pragma once

#include <chrono>
#include <thread>

namespace tangram::testing {

inline constexpr std::chrono::seconds kHang{60};
inline constexpr int kHangMs = 60'000;  // for functions with a timeout in milliseconds

// Polls until the condition holds. False: it does not hold after kHang.
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
