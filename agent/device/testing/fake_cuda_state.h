// State of the recording driver. Private to its sources.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "agent/base/unique_fd.h"
#include "agent/device/testing/fake_cuda.h"

namespace tangram::device::testing {

// Physical memory: a memfd, mapped here only for the copies of this driver. The addresses where a
// process maps it have no access for processors, like those of a GPU.
class Physical {
 public:
  // On this process's device, whose free memory it reduces until its destructor. Null: out of
  // memory.
  static std::shared_ptr<Physical> Make(size_t bytes);
  static std::shared_ptr<Physical> Import(UniqueFd memory, size_t bytes);
  ~Physical();

  size_t bytes() const { return bytes_; }
  int memory() const { return memory_.get(); }
  std::byte* base() const { return base_; }
  uint64_t identity() const { return identity_; }  // of the memory, the same in every process

 private:
  Physical() = default;
  static std::shared_ptr<Physical> Of(UniqueFd memory, size_t bytes);

  UniqueFd memory_;
  size_t bytes_ = 0;
  std::byte* base_ = nullptr;
  uint64_t identity_ = 0;
  bool counted_ = false;
};

struct FakeMapping {
  size_t bytes = 0;
  std::shared_ptr<Physical> physical;
  CUmemAccess_flags access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
};

// One side of a copy: lines of `bytes`, `pitch` apart.
struct Lines {
  uint64_t address = 0, lines = 0, bytes = 0, pitch = 0;
  bool Touches(uint64_t begin, uint64_t end) const;
};

// Bytes of a memory, or (memory 0) of the process's own addresses.
struct Segment {
  uint64_t memory = 0, begin = 0, end = 0;
};

// Work on a stream: a copy, or another action.
struct FakeWork {
  uint64_t number = 0;  // on its stream, from 1 on
  // For a copy.
  Lines to, from;
  std::vector<Segment> writes, reads;  // sorted
  // For other work; false: it made an illegal access.
  std::function<bool()> does;
  // For work that takes time.
  std::function<FakeRun()> goes_on;
};

// By the names of streams: the number of items of each.
using Clock = std::map<uint64_t, uint64_t>;

// Work runs only on request: a query of an event runs one item, a wait runs all items before it. So
// code that forgets to wait finds missing bytes.
struct FakeStream {
  uint64_t name = 0, given = 0, done = 0;
  std::deque<FakeWork> work;
  Clock before;                            // items of other streams that all later work waits for
  std::vector<FakeWork>* graph = nullptr;  // the graph that captures it, and its name
  CUgraph graph_name = nullptr;
};

struct FakeEvent {
  std::shared_ptr<FakeStream> stream;  // null: it was never recorded
  uint64_t number = 0;                 // the last work before it
  Clock before;                        // the items that it waited for
  bool timed = false;
};

// Reports for a whole process, in the file FAKE_CUDA_REPORT: a line "refused" with the reason of
// each rejection, written immediately. At the end of the process, "ended", or "leaked" with the
// remaining resources.
class FakeReport {
 public:
  FakeReport();
  void Write(const std::string& line) const;

 private:
  std::string file_;  // empty: not requested
};

// Faults for a whole process: the file FAKE_CUDA_FAULTS, with a line "NAME RESULT SKIP TIMES" for
// each (FakeCuda::Fail; RESULT is a number). Each call looks for it, reads it and removes it.
class FakeFaults {
 public:
  FakeFaults();
  void Take() const;

 private:
  std::string file_;
};

struct FakeState {
  std::mutex mu;
  FakeMachine machine;
  bool begun = false;              // after cuInit
  CUresult broken = CUDA_SUCCESS;  // error after an access without permission: permanent
  std::map<std::string, uint64_t> calls;
  struct Failing {
    uint64_t from = 0, to = 0;  // these calls, counted from the first one
    CUresult result = CUDA_SUCCESS;
  };
  std::map<std::string, Failing> failing;
  std::string complaint;
  FakeReport report;
  FakeFaults faults;

  uint64_t used_bytes = 0;
  uint64_t next = 1;  // name of the next handle, stream, event or context
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<Physical>> handles;
  std::map<uint64_t, uint64_t> reservations;  // address -> bytes
  std::map<uint64_t, FakeMapping> mappings;   // by address
  // From cuMemAlloc: a reservation with one mapping, of these bytes. And pinned memory.
  std::map<uint64_t, uint64_t> buffers, pinned;
  std::map<CUstream, std::shared_ptr<FakeStream>> streams;
  std::map<CUevent, FakeEvent> events;
  std::set<CUmodule> modules;
  std::map<CUgraph, std::vector<FakeWork>> graphs;
  std::map<CUgraphExec, std::vector<FakeWork>> executables;
  uint64_t retained = 0;  // reference count of the primary context

  // Includes destroyed streams to which an event still refers.
  std::vector<std::weak_ptr<FakeStream>> all_streams;

  uint64_t total_bytes() const;
  uint64_t granularity() const;
  // The mapping that contains the address; end(): none.
  std::map<uint64_t, FakeMapping>::const_iterator Find(uint64_t address) const;
  bool Reserved(uint64_t address, uint64_t bytes) const;
};

// The only instance. Never destroyed: threads of the process may outlive main.
FakeState& State();
// The primary context's name: always the same.
CUcontext Primary();
// The calling thread's context.
CUcontext& Current();

// A call of an entry point: counts it, holds the lock, and knows whether it has to fail.
class Call {
 public:
  enum Needs { kNothing, kBegun, kContext };
  explicit Call(const char* name, Needs needs = kBegun);
  // The injected error, before any work is done.
  CUresult failure() const { return failure_; }
  // Rejects the call and stores the reason.
  CUresult Refuse(CUresult result, const std::string& why) const;
  // Releases the lock for a moment.
  void Rest();

 private:
  const char* const name_;
  std::unique_lock<std::mutex> lock_;
  CUresult failure_ = CUDA_SUCCESS;
};

// Unused addresses, without access for processors, as a reservation of `bytes`; 0: none left.
uint64_t ReserveAddresses(uint64_t bytes, uint64_t alignment);
void FreeAddresses(uint64_t address);
// Whether work that has not run yet uses any of these addresses.
bool InUse(uint64_t begin, uint64_t end);
// Puts work on a stream, or into the graph that captures it.
CUresult Give(const Call& call, CUstream stream, FakeWork work);
// Runs the work of a stream up to that number. The first illegal access makes the context unusable.
// False: earlier work is not finished.
bool RunUntil(FakeStream* stream, uint64_t number);

}  // namespace tangram::device::testing
