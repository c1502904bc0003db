// The recording driver: memory without handles, of the device (cuMemAlloc) and of the host
// (pinned).
#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>
#include <utility>

#include "agent/device/testing/fake_cuda_state.h"

using namespace tangram::device::testing;

CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  Call call("cuMemAlloc", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (bytes == 0) return call.Refuse(CUDA_ERROR_INVALID_VALUE, "0 bytes");
  FakeState& state = State();
  auto physical = Physical::Make(bytes);
  if (physical == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  // Not zeros, so that no code relies on them.
  std::memset(physical->base(), 0xcd, bytes);
  *address = ReserveAddresses(bytes, state.granularity());
  if (*address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  state.mappings[*address] = {bytes, std::move(physical), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  state.buffers[*address] = bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr address) {
  Call call("cuMemFree", Call::kNothing);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  FakeState& state = State();
  const auto it = state.buffers.find(address);
  if (it == state.buffers.end()) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE, "it is gone already, or never was");
  }
  if (InUse(address, address + it->second)) {
    return call.Refuse(CUDA_ERROR_ILLEGAL_STATE, "work that did not run yet uses it");
  }
  state.buffers.erase(it);
  state.mappings.erase(address);
  FreeAddresses(address);
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned int flags) {
  Call call("cuMemHostAlloc", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (bytes == 0 || (flags & ~unsigned{CU_MEMHOSTALLOC_PORTABLE}) != 0) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE, "0 bytes, or flags that were not recorded");
  }
  // Separate pages: a use after the free crashes.
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  State().pinned[reinterpret_cast<uint64_t>(at)] = bytes;
  *out = at;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void* at) {
  Call call("cuMemFreeHost", Call::kNothing);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  FakeState& state = State();
  const auto it = state.pinned.find(reinterpret_cast<uint64_t>(at));
  if (it == state.pinned.end()) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE, "it is gone already, or never was");
  }
  if (InUse(it->first, it->first + it->second)) {
    return call.Refuse(CUDA_ERROR_ILLEGAL_STATE, "work that did not run yet uses it");
  }
  munmap(at, it->second);
  state.pinned.erase(it);
  return CUDA_SUCCESS;
}
