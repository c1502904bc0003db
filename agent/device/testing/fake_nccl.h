// What a test may ask of the recording NCCL (libfakenccl.so) and tell it. Tests of several
// processes tell it by variables of the environment, of the same meaning: FAKE_NCCL_VERSION, _ROOM,
// _HANG_AT, _FAIL_AT, _DEAF (1).
#pragma once

#include <cstdint>
#include <string>

namespace tangram::device::testing {

struct FakeNcclOptions {
  int version = 22809;
  // Kernels that the device has room for at once: one that finds none waits for the end of others,
  // as where blocks of a grid that spins fill the multiprocessors.
  uint64_t room = UINT64_MAX;
  uint64_t hang_at = 0;  // that kernel of the process (from 1 on) never ends
  uint64_t fail_at = 0;  // that one is the first that its communicator has an error at
  bool deaf = false;     // does not notice that the other end is gone
};

class FakeNccl {
 public:
  // As if it had just been loaded.
  static void Become(const FakeNcclOptions& options);
  // What it refused last, or would have been undefined, in words; empty if nothing. Forgets it.
  static std::string Complaint();
  // Communicators that were made and not aborted.
  static uint64_t Open();
  // Kernels that hung so far, of all communicators.
  static uint64_t Hangs();
  // Most kernels that were under way at once since Become, of all communicators.
  static uint64_t MostAtOnce();
};

}  // namespace tangram::device::testing
