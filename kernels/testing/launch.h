// Launches by name on memory of the test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"

namespace tangram::kernels::testing {

template <typename T>
uint64_t AddressOf(const std::vector<T>& items) {
  return reinterpret_cast<uint64_t>(items.data());
}

enum class Order { kForwards, kBackwards };

// Runs the kernel of this name, which must have these parameters, with its threads in an order that
// must not matter.
template <typename Parameters>
void Run(std::string_view name, Launch launch, const Parameters& parameters,
         Order order = Order::kForwards) {
  const Kernel* kernel = Find(name);
  ASSERT_NE(kernel, nullptr) << name;
  ASSERT_EQ(kernel->parameter_bytes, sizeof(Parameters)) << name;
  if (order == Order::kForwards) return kernel->twin(launch.blocks, launch.threads, &parameters);
  kernel->count(launch.blocks, launch.threads, &parameters);
}

}  // namespace tangram::kernels::testing
