// What a test may tell the recording UCX (libfakeucp.so), and ask of it.
#pragma once

#include <cstdint>

namespace tangram::device::testing {

class FakeUcp {
 public:
  // As if it had just been loaded.
  static void Reset();
  // The interfaces of the node change: a context that was made before makes no more workers.
  static void ChangeInterfaces();
  // They change between each context and its first worker.
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
