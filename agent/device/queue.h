// Ordered work of a device, in parallel with the host: kernels of kernels/, and copies. On a GPU
// this is a stream. On the host kernels are their twins, and every call completes before it
// returns.
#pragma once

#include <cstdint>
#include <string_view>

#include "agent/base/status.h"
#include "kernels/parameters.h"

namespace tangram::device {

// One thread at a time.
class Queue {
 public:
  virtual ~Queue() = default;

  // `parameters` points to the kernel's struct (kernels/kernels.h), which is copied now; memory
  // that it names is read when the kernel runs. kInvalid: no such kernel here.
  virtual Status Launch(std::string_view kernel, kernels::Launch grid, const void* parameters) = 0;
  // Between device memory and device memory or memory of this process, which must stay unchanged
  // until the copy is done.
  virtual Status Copy(uint64_t to, uint64_t from, uint64_t bytes) = 0;
  // Whether all work is done. An error is the device's, and permanent.
  virtual Result<bool> Done() = 0;
  virtual Status Wait() = 0;
};

}  // namespace tangram::device
