// Interface of the recording UCX (libfakeucp.so) for tests.
#pragma once

#include <cstdint>

namespace tangram::device::testing {

class FakeUcp {
 public:
  // Resets it as if just loaded.
  static void Reset();
  // Changes the node's interfaces: an earlier context can create no more workers.
  static void ChangeInterfaces();
  // Changes them between each context and its first worker.
  static void ChangeInterfacesForEver();
  // The next worker fails with UCS_ERR_NO_MEMORY.
  static void FailNextWorker();
  // Since Reset.
  static uint64_t contexts_made();
  // Made and not destroyed.
  static uint64_t contexts();
  static uint64_t workers();
};

}  // namespace tangram::device::testing
