// Interface of the recording driver (libfakecuda.so) for tests.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace tangram::device::testing {

// The simulated machine.
struct FakeMachine {
  int version = 13000;  // CUDA version
  int devices = 1;
  std::string name = "NVIDIA H200 (recorded)";
  uint64_t memory_mib = 0;   // per device; 0: FAKE_CUDA_MIB if set, else 4096
  uint64_t granularity = 0;  // of handles, in bytes; 0: FAKE_CUDA_GRANULARITY if set, else 2 MiB
  int capability = 90;       // compute capability, in tenths
  bool memory_management = true;
  bool posix_descriptors = true;
  std::string missing;  // an entry point that this driver lacks
};

// Work that another recording library puts on a stream, like a kernel of any duration. Only later
// work of that stream waits for it.
enum class FakeRun { kRunning, kDone, kFailed };
struct FakeLongKernel {
  uint64_t address = 0, bytes = 0;  // device memory that it reads or writes
  bool writes = false;
  // Called repeatedly, with the bytes as parts in address order. Must not block or call CUDA.
  std::function<FakeRun(std::span<const std::span<std::byte>>)> runs;
};

class FakeCuda {
 public:
  // Rejects what a launch rejects, and memory without such access.
  static CUresult Put(CUstream stream, FakeLongKernel kernel);
  // Resets the driver as if just loaded. The process must have freed all its resources (Leaks).
  static void Become(const FakeMachine& machine);

  // Number of calls of an entry point since Become.
  static uint64_t Calls(const std::string& name);
  // After `skip` calls of an entry point, the next `times` calls fail with `result` and do nothing.
  static void Fail(const std::string& name, CUresult result, uint64_t skip = 0, uint64_t times = 1);
  // The reason of the last rejection; empty: none. Clears it.
  static std::string Complaint();
  // Resources that were created and not freed, as text; empty: none.
  static std::string Leaks();
  // Number of items on streams that have not run yet.
  static uint64_t Waiting();
};

}  // namespace tangram::device::testing
