// What the recording driver knows. Private to its sources.
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

// Physical memory: a memfd, mapped here for the copies of this driver alone. The addresses that a
// process maps it at stay without any access for processors, as those of a GPU are.
class Physical {
 public:
  // Of this process's device, which has so much less until it goes; null: no memory.
  static std::shared_ptr<Physical> Make(size_t bytes);
  static std::shared_ptr<Physical> Import(UniqueFd memory, size_t bytes);
  ~Physical();

  size_t bytes() const { return bytes_; }
  int memory() const { return memory_.get(); }
  std::byte* base() const { return base_; }
  uint64_t identity() const { return identity_; }  // of the memory, whoever has it

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

// What a stream was given: a copy, or whatever else is done when its turn comes.
struct FakeWork {
  uint64_t number = 0;  // on its stream, from 1 on
  // Of a copy.
  Lines to, from;
  std::vector<Segment> writes, reads;  // sorted
  // Of all else; false: it touched what it may not.
  std::function<bool()> does;
  // Of what takes its time.
  std::function<FakeRun()> goes_on;
};

// By the names of streams: so much of each.
using Clock = std::map<uint64_t, uint64_t>;

// Nothing runs before somebody asks for it: an event that is queried runs one thing, one that is
// waited for all up to it. So whoever forgets to wait finds bytes that are not there.
struct FakeStream {
  uint64_t name = 0, given = 0, done = 0;
  std::deque<FakeWork> work;
  Clock before;  // what of other streams all that it is given now waits for
  std::vector<FakeWork>* graph = nullptr;  // which it is captured into, and its name
  CUgraph graph_name = nullptr;
};

struct FakeEvent {
  std::shared_ptr<FakeStream> stream;  // null: it was never recorded
  uint64_t number = 0;                 // the last work before it
  Clock before;                        // what that waited for
  bool timed = false;
};

// What a process as a whole is told about, in the file that FAKE_CUDA_REPORT names: a line
// "refused" with the reason for each refusal as it comes, whatever becomes of the process, and at
// its end "ended" or "leaked" with what it still had.
class FakeReport {
 public:
  FakeReport();
  void Write(const std::string& line) const;

 private:
  std::string file_;  // empty: nobody asked
};

// Faults for a process as a whole: a file that FAKE_CUDA_FAULTS names, with a line "NAME RESULT
// SKIP TIMES" for each (FakeCuda::Fail; RESULT is a number), is looked for at each call, and taken
// away.
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
  bool begun = false;              // cuInit
  CUresult broken = CUDA_SUCCESS;  // an address that was touched without access: all is lost
  std::map<std::string, uint64_t> calls;
  struct Failing {
    uint64_t from = 0, to = 0;  // these calls, counted from the first of all
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
  // What cuMemAlloc made: a reservation with one mapping, of these bytes. And pinned memory.
  std::map<uint64_t, uint64_t> buffers, pinned;
  std::map<CUstream, std::shared_ptr<FakeStream>> streams;
  std::map<CUevent, FakeEvent> events;
  std::set<CUmodule> modules;
  std::map<CUgraph, std::vector<FakeWork>> graphs;
  std::map<CUgraphExec, std::vector<FakeWork>> executables;
  uint64_t retained = 0;  // the primary context, by so many

  // Also the streams that are gone, as far as an event may still tell of them.
  std::vector<std::weak_ptr<FakeStream>> all_streams;

  uint64_t total_bytes() const;
  uint64_t granularity() const;
  // The mapping that has the address; end(): none.
  std::map<uint64_t, FakeMapping>::const_iterator Find(uint64_t address) const;
  bool Reserved(uint64_t address, uint64_t bytes) const;
};

// The one there is. It is never destroyed: threads of the process may outlive main.
FakeState& State();
// The primary context's name: the same whenever it is there.
CUcontext Primary();
// The calling thread's context.
CUcontext& Current();

// An entry point that is being called: counts it, holds the lock, and knows whether it shall fail.
class Call {
 public:
  enum Needs { kNothing, kBegun, kContext };
  explicit Call(const char* name, Needs needs = kBegun);
  // What it fails with before it did anything.
  CUresult failure() const { return failure_; }
  // Refuses, and remembers why.
  CUresult Refuse(CUresult result, const std::string& why) const;
  // Lets others have the lock for a moment.
  void Rest();

 private:
  const char* const name_;
  std::unique_lock<std::mutex> lock_;
  CUresult failure_ = CUDA_SUCCESS;
};

// Addresses that nobody has, without access for processors, as a reservation of so many bytes;
// 0: there are none.
uint64_t ReserveAddresses(uint64_t bytes, uint64_t alignment);
void FreeAddresses(uint64_t address);
// Work that did not run yet and touches any of these addresses.
bool InUse(uint64_t begin, uint64_t end);
// Puts work on a stream, or into the graph that it is captured into.
CUresult Give(const Call& call, CUstream stream, FakeWork work);
// Runs the work of a stream up to that number; the first touch without access breaks all. False:
// something before it takes its time.
bool RunUntil(FakeStream* stream, uint64_t number);

}  // namespace tangram::device::testing
