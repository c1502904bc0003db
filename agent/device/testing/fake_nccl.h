// Interface of the recording NCCL (libfakenccl.so) for tests. Tests with several processes use
// environment variables of the same meaning: FAKE_NCCL_VERSION, _ROOM, _HANG_AT, _FAIL_AT, _DEAF
// (1).
#pragma once

#include <cstdint>
#include <string>

namespace tangram::device::testing {

struct FakeNcclOptions {
  int version = 22809;
  // Maximum concurrent kernels of the device. Further ones wait until others end, as if spinning
  // blocks filled the multiprocessors.
  uint64_t room = UINT64_MAX;
  uint64_t hang_at = 0;  // this kernel of the process (from 1 on) never ends
  uint64_t fail_at = 0;  // at this kernel its communicator fails
  bool deaf = false;     // does not detect the loss of the other end
};

class FakeNccl {
 public:
  // Resets it as if just loaded.
  static void Become(const FakeNcclOptions& options);
  // The last rejected or undefined call, as text; empty: none. Clears it.
  static std::string Complaint();
  // Number of communicators created and not aborted.
  static uint64_t Open();
  // Number of kernels that hung so far, of all communicators.
  static uint64_t Hangs();
  // Maximum number of concurrent kernels since Become, of all communicators.
  static uint64_t MostAtOnce();
};

}  // namespace tangram::device::testing
