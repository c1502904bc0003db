// Work that a device does in order, while the host goes on: kernels of kernels/, and copies. On a
// GPU a stream; on the host, where kernels are their twins, all is done when it was given.
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

  // `parameters` points at the kernel's struct (kernels/kernels.h), which is taken now; what it
  // names is read when its turn comes. kInvalid: there is no such kernel here.
  virtual Status Launch(std::string_view kernel, kernels::Launch grid, const void* parameters) = 0;
  // Between memory of the device and memory of the device or of this process, which stays as it is
  // until the copy is done.
  virtual Status Copy(uint64_t to, uint64_t from, uint64_t bytes) = 0;
  // Whether all that was given is done. An error: the device's, for good.
  virtual Result<bool> Done() = 0;
  virtual Status Wait() = 0;
};

}  // namespace tangram::device
