#include "agent/device/host_queue.h"

#include <cstring>
#include <string>

#include "kernels/kernels.h"

namespace tangram::device {
namespace {

class HostQueue final : public Queue {
 public:
  Status Launch(std::string_view name, kernels::Launch grid, const void* parameters) override {
    const kernels::Kernel* const kernel = kernels::Find(name);
    if (kernel == nullptr) return {Code::kInvalid, "there is no kernel " + std::string(name)};
    kernel->twin(grid.blocks, grid.threads, parameters);
    return OkStatus();
  }
  Status Copy(uint64_t to, uint64_t from, uint64_t bytes) override {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return OkStatus();
  }
  Result<bool> Done() override { return true; }
  Status Wait() override { return OkStatus(); }
};

}  // namespace

std::unique_ptr<Queue> MakeHostQueue() { return std::make_unique<HostQueue>(); }

}  // namespace tangram::device
