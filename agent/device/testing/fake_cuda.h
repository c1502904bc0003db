// What a test may ask of the recording driver (libfakecuda.so) and tell it.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace tangram::device::testing {

// What machine it plays.
struct FakeMachine {
  int version = 13000;  // of CUDA
  int devices = 1;
  std::string name = "NVIDIA H200 (recorded)";
  uint64_t memory_mib = 0;   // of each device; 0: what FAKE_CUDA_MIB says, else 4096
  uint64_t granularity = 0;  // of handles, in bytes; 0: what FAKE_CUDA_GRANULARITY says, else 2 MiB
  int capability = 90;       // to compute, in tenths
  bool memory_management = true;
  bool posix_descriptors = true;
  std::string missing;  // an entry point that this driver does not have
};

// What another recording library puts on a stream, as a kernel that runs for as long as it likes:
// nothing of this process waits for it but what comes behind it there.
enum class FakeRun { kRunning, kDone, kFailed };
struct FakeLongKernel {
  uint64_t address = 0, bytes = 0;  // of the device: what it reads, or writes
  bool writes = false;
  // Asked again and again, with the bytes as they lie, in parts. Does not block, and calls nothing
  // of CUDA.
  std::function<FakeRun(std::span<const std::span<std::byte>>)> runs;
};

class FakeCuda {
 public:
  // Refuses what a launch refuses, and memory without such access.
  static CUresult Put(CUstream stream, FakeLongKernel kernel);
  // As if it had just been loaded. What the process still has of it must be gone (Leaks).
  static void Become(const FakeMachine& machine);

  // How often an entry point was called since Become.
  static uint64_t Calls(const std::string& name);
  // Calls of an entry point that come after `skip` others, `times` of them, fail so and do nothing.
  static void Fail(const std::string& name, CUresult result, uint64_t skip = 0, uint64_t times = 1);
  // What it refused last, and why, in words; empty if nothing. Forgets it.
  static std::string Complaint();
  // What was made and not ended, in words; empty: nothing.
  static std::string Leaks();
  // What was put on streams and did not run yet.
  static uint64_t Waiting();
};

}  // namespace tangram::device::testing
