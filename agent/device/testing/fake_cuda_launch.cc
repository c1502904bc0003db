// The recording driver: modules, launches of kernels, graphs.
//
// A launch runs the kernel's source (kernels/list.h), thread after thread. Its memory looks up
// every access in the mappings, as a device does: an address of the host, one without access or an
// unaligned one is an illegal address.
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "agent/device/testing/fake_cuda_state.h"
#include "kernels/list.h"

namespace tangram::device::testing {
namespace {

struct IllegalAddress {};
// Thrown by a kernel that waits for another rank; it is restarted after others have run.
struct StillWaits {};

// The kernels' memory (kernels/memory.h).
class FakeMemory {
 public:
  void Round() {}
  void Request(uint32_t) {}
  template <typename T>
  T Load(uint64_t address) {
    T out;
    std::memcpy(static_cast<void*>(&out), At(address, sizeof(T), sizeof(T), false), sizeof(T));
    return out;
  }
  template <typename T>
  void Store(uint64_t address, const T& value) {
    std::memcpy(At(address, sizeof(T), sizeof(T), true), &value, sizeof(T));
  }
  template <typename T>
  T Read(uint64_t address) {
    T out;
    std::memcpy(static_cast<void*>(&out), At(address, sizeof(T), alignof(T), false), sizeof(T));
    return out;
  }
  template <typename T>
  T Add(uint64_t address, T value) {
    const T before = Load<T>(address);
    Store<T>(address, static_cast<T>(before + value));
    return before;
  }
  void Least(uint64_t address, uint64_t value) {
    if (value < Load<uint64_t>(address)) Store<uint64_t>(address, value);
  }
  void Fence() {}
  template <typename T>
  T Look(uint64_t address) {
    return Load<T>(address);
  }
  template <typename T>
  void Publish(uint64_t address, T value) {
    Store<T>(address, value);
  }
  uint64_t Now() { return kernels::DirectMemory().Now(); }
  void Pause() { throw StillWaits{}; }

 private:
  struct Window {
    uint64_t begin = 0, end = 0;
    std::byte* base = nullptr;
    bool writable = false;
  };

  std::byte* At(uint64_t address, uint64_t bytes, uint64_t alignment, bool writes) {
    if (address % alignment != 0) throw IllegalAddress{};
    for (const Window& window : seen_) {
      if (address >= window.begin && address + bytes <= window.end) {
        if (writes && !window.writable) throw IllegalAddress{};
        return window.base + (address - window.begin);
      }
    }
    const auto it = State().Find(address);
    if (it == State().mappings.end() || it->second.access == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
        address + bytes > it->first + it->second.bytes) {
      throw IllegalAddress{};
    }
    seen_[next_++ % seen_.size()] = {it->first, it->first + it->second.bytes,
                                     it->second.physical->base(),
                                     it->second.access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return At(address, bytes, alignment, writes);
  }

  std::array<Window, 6> seen_{};  // the last mappings looked up
  size_t next_ = 0;
};

template <typename Parameters, typename Body>
void Execute(kernels::Launch launch, const void* what, Body&& body) {
  const Parameters parameters = *static_cast<const Parameters*>(what);
  FakeMemory memory;
  for (uint32_t b = 0; b < launch.blocks; ++b) {
    for (uint32_t t = 0; t < launch.threads; ++t) {
      body({b, launch.blocks, t, launch.threads}, parameters, memory);
    }
  }
}

struct FakeKernel {
  const char* name;
  size_t parameter_bytes;
  void (*run)(kernels::Launch, const void* parameters);
};
#define TANGRAM_FAKE_KERNEL(name, Parameters, Body)                                   \
  {#name, sizeof(kernels::Parameters), [](kernels::Launch launch, const void* what) { \
     Execute<kernels::Parameters>(launch, what, kernels::Body<FakeMemory>);           \
   }},
constexpr FakeKernel kKernels[] = {TANGRAM_KERNELS(TANGRAM_FAKE_KERNEL)};
#undef TANGRAM_FAKE_KERNEL

// Whether it starts like the output of nvcc, or like an empty image (a build without it).
bool IsImage(const void* image) {
  uint32_t magic = 0;
  std::memcpy(&magic, image, sizeof magic);
  return magic == 0xba55ed50 || magic == 0;
}

const FakeKernel* Find(CUfunction function) {
  const auto* kernel = reinterpret_cast<const FakeKernel*>(function);
  return kernel >= std::begin(kKernels) && kernel < std::end(kKernels) ? kernel : nullptr;
}

}  // namespace
}  // namespace tangram::device::testing

using namespace tangram::device::testing;

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  Call call("cuModuleLoadData", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (!IsImage(image)) return call.Refuse(CUDA_ERROR_INVALID_IMAGE, "this is no fat binary");
  *module = reinterpret_cast<CUmodule>(State().next++);
  State().modules.insert(*module);
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  Call call("cuModuleUnload",
            Call::kBegun);  // like all calls that free, it works even after an error
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (State().modules.erase(module) == 0) {
    return call.Refuse(CUDA_ERROR_INVALID_HANDLE, "it is gone already, or never was");
  }
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  Call call("cuModuleGetFunction", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (State().modules.count(module) == 0) {
    return call.Refuse(CUDA_ERROR_INVALID_HANDLE, "no such module");
  }
  for (const FakeKernel& kernel : kKernels) {
    if (std::strcmp(kernel.name, name) != 0) continue;
    *function = reinterpret_cast<CUfunction>(const_cast<FakeKernel*>(&kernel));
    return CUDA_SUCCESS;
  }
  return call.Refuse(CUDA_ERROR_NOT_FOUND, fmt::format("there is no kernel {}", name));
}

CUresult cuLaunchKernel(CUfunction function, unsigned blocks, unsigned blocks_y, unsigned blocks_z,
                        unsigned threads, unsigned threads_y, unsigned threads_z,
                        unsigned shared_bytes, CUstream stream, void** parameters, void** extra) {
  Call call("cuLaunchKernel", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  const FakeKernel* const kernel = Find(function);
  if (kernel == nullptr) return call.Refuse(CUDA_ERROR_INVALID_HANDLE, "no such kernel");
  if (blocks == 0 || blocks_y != 1 || blocks_z != 1 || threads == 0 || threads_y != 1 ||
      threads_z != 1 || threads > tangram::kernels::kMostThreads || shared_bytes != 0 ||
      parameters == nullptr || extra != nullptr) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE,
                       fmt::format("{}: {} blocks of {} threads, or not as its kernels are "
                                   "launched: one dimension, no shared memory, its parameters",
                                   kernel->name, blocks, threads));
  }
  // Copied at the launch.
  const auto* const from = static_cast<const std::byte*>(parameters[0]);
  const auto kept = std::make_shared<std::vector<std::byte>>(from, from + kernel->parameter_bytes);
  FakeWork work;
  work.goes_on = [kernel, blocks, threads, kept] {
    try {
      kernel->run({blocks, threads}, kept->data());
    } catch (const IllegalAddress&) {
      return FakeRun::kFailed;
    } catch (const StillWaits&) {
      return FakeRun::kRunning;
    }
    return FakeRun::kDone;
  };
  return Give(call, stream, std::move(work));
}

#if CUDA_VERSION >= 13000
// Copies in order, although a driver promises none.
CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                            CUmemcpyAttributes* attributes, size_t* first, size_t kinds,
                            CUstream stream) {
  Call call("cuMemcpyBatchAsync", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (count == 0 || kinds != 1 || first[0] != 0 ||
      attributes[0].srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || stream == nullptr) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE, "one kind of copies, in the stream's order");
  }
  for (size_t i = 0; i < count; ++i) {
    FakeWork copy;
    copy.to = {to[i], 1, bytes[i], bytes[i]};
    copy.from = {from[i], 1, bytes[i], bytes[i]};
    if (const CUresult given = Give(call, stream, std::move(copy)); given != CUDA_SUCCESS) {
      return given;
    }
  }
  return CUDA_SUCCESS;
}
#endif

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
  Call call("cuStreamBeginCapture", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  const auto it = State().streams.find(stream);
  if (it == State().streams.end() || it->second->graph != nullptr) {
    return call.Refuse(CUDA_ERROR_ILLEGAL_STATE, "no such stream, or it is captured already");
  }
  const auto graph = reinterpret_cast<CUgraph>(State().next++);
  it->second->graph = &State().graphs[graph];
  it->second->graph_name = graph;
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  Call call("cuStreamEndCapture", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  const auto it = State().streams.find(stream);
  if (it == State().streams.end() || it->second->graph == nullptr) {
    return call.Refuse(CUDA_ERROR_ILLEGAL_STATE, "no such stream, or it is not captured");
  }
  it->second->graph = nullptr;
  *graph = std::exchange(it->second->graph_name, nullptr);
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph,
                                     unsigned long long flags) {
  Call call("cuGraphInstantiateWithFlags", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  const auto it = State().graphs.find(graph);
  if (it == State().graphs.end() || flags != 0) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE, "no such graph, or flags");
  }
  *executable = reinterpret_cast<CUgraphExec>(State().next++);
  State().executables[*executable] = it->second;
  return CUDA_SUCCESS;
}

// Puts its work on the stream again; addresses are looked up when it runs.
CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  Call call("cuGraphLaunch", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  const auto it = State().executables.find(executable);
  if (it == State().executables.end()) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE, "no such graph");
  }
  for (const FakeWork& work : it->second) {
    if (const CUresult given = Give(call, stream, work); given != CUDA_SUCCESS) return given;
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
  Call call("cuGraphExecDestroy");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (State().executables.erase(executable) == 0) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE, "it is gone already, or never was");
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
  Call call("cuGraphDestroy");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (State().graphs.erase(graph) == 0) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE, "it is gone already, or never was");
  }
  return CUDA_SUCCESS;
}
