// One member's buffers for dispatch and combine in a device's memory: the calls of Buffer and
// Exchange (agent/dispatch), put on a queue. Kernels choose, send, wait, pack and add up; the host
// is asked for nothing between Send and Finish, so a graph can hold any number of pairs, and what
// changes between two worlds lies in a table that a graph reads anew (kernels/dispatch.h).
//
// Where ranks reach each other's memory the kernels write straight into it. Where not, what they
// wrote for a peer goes by wires (agent/device/wire.h: NCCL), which the host moves and waits for:
// the same results, slower, and in no graph.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/device/wire.h"
#include "agent/dispatch/exchange.h"
#include "agent/dispatch/gpu/device_memory.h"
#include "agent/dispatch/hello.h"
#include "kernels/dispatch.h"

namespace tangram::dispatch {

struct DeviceOptions {
  Format format;             // with most_tokens
  uint32_t most_ranks = 8;   // of a world; 64 at most
  uint32_t most_locals = 0;  // choices with pieces on one rank, in a layer
  uint32_t moe_layers = 1;
  // Of rows by expert; what more comes is left out and reported. 0: room for the worst case.
  uint64_t packed_capacity = 0;
  std::chrono::nanoseconds timeout = std::chrono::seconds(10);
  uint32_t most_blocks = 64;  // of a launch

  // kInvalid, by name.
  Status Check() const;
};

// What a rank brings, by addresses of the device (Rows).
struct DeviceRows {
  uint32_t count = 0;
  uint64_t x = 0, experts = 0, weights = 0;
};

// What came (Packed), by addresses of the device: good once the queue has done it.
struct DevicePacked {
  uint64_t x = 0, scales = 0;        // [rows][hidden] of wire; FP8: float [rows][ScalesOf(hidden)]
  uint64_t counts = 0, offsets = 0;  // uint32_t [choices], [choices + 1]
  uint64_t rows = 0;                 // uint32_t
  uint64_t capacity = 0;             // of x
  std::vector<uint32_t> choices;     // those with pieces here
};

// What goes (Plan), by addresses of the device.
struct SentRows {
  uint64_t choices = 0;  // int32_t [count][top_k]; negative: no copy is on ranks that are there
  uint64_t counts = 0;   // uint32_t [ranks]
  uint64_t rows = 0;     // uint32_t [ranks][most_tokens]: which, ascending
  uint64_t routed = 0;   // uint32_t [experts]: rows of this rank, wherever they go
};

// Between two members whose ranks do not reach each other's memory: a wire for each lane, open.
struct LaneWires {
  std::string name;  // of the library: "nccl"
  std::array<std::unique_ptr<device::Wire>, kLanes> lanes;
};

// One thread. All calls of one pair are put on one queue; those of another on another one only if
// its Send comes behind this one's there, too.
class DeviceBuffer {
 public:
  // Bytes of memory that a member takes from its device, but for the lists of a layout (some words
  // for each expert and copy); `wires`: it reaches others by wires. Each range is rounded up to
  // what the device maps.
  static uint64_t GetBufferSizeHint(const DeviceOptions& options, bool wires = false);
  // Of a message of one lane, with which wires are made (WireOptions::buffer_bytes).
  static uint64_t WireBytes(const DeviceOptions& options);

  // `memory` outlives it. kNoMemory with the numbers.
  static Result<std::unique_ptr<DeviceBuffer>> Create(MemberId self, const DeviceOptions& options,
                                                      device::Device& memory, device::Queue& queue);

  const MemberId& self() const { return self_; }
  // Memory that this member alone may write, made when it is first asked for: an address for ranks
  // of this process, descriptors for others.
  Result<uint64_t> Grant(const MemberId& to, device::Queue& queue);
  Result<device::Export> ExportTo(const MemberId& to, device::Queue& queue);
  // What that member granted this one; for good.
  Status Attach(const MemberId& to, uint64_t inbox);
  Status Attach(const MemberId& to, device::Device& importer, const device::Export& inbox);
  Status Attach(const MemberId& to, LaneWires wires);
  // As Buffer::UpdateMembers. Waits until the queue is done; nothing is built for those that stay,
  // and graphs go on in the new world. A member that was not attached is masked from the start.
  Status UpdateMembers(uint64_t epoch, std::span<const MemberId> members,
                       std::shared_ptr<const Routes> routes, device::Queue& queue);
  // It is no rank any more, and its process is known to have ended: its memory is free again.
  // Until then it may write there, so nothing else lies there.
  void Ended(const MemberId& id);
  uint64_t quarantined() const;  // bytes of members that are no ranks and were not told ended

  // Puts a pair's parts on the queue. Errors as Exchange has them for handles; of what only the
  // device sees ReportOf tells. Over wires Receive and Finish wait, so nothing can be captured.
  Result<Handle> Send(uint32_t moe_ordinal, const DeviceRows& rows, device::Queue& queue);
  // The hook: waits (on the device), and packs.
  Status Receive(const Handle& handle, device::Queue& queue);
  SentRows sent(const Handle& handle) const;
  DevicePacked packed(const Handle& handle) const;
  // Room for what the experts give, [capacity][hidden] of the format's outputs.
  uint64_t NextCombineBuffer(const Handle& handle) const;
  Status SendBack(const Handle& handle, uint64_t outputs, device::Queue& queue);
  // `y` [count][hidden]: F32, BF16 or int64.
  Status Finish(const Handle& handle, uint64_t y, device::Queue& queue);
  // Waits, and says what a pair that was finished lacks; of one in a graph, what its last replay
  // did. kInvalid: it had rows of an expert that is none; kInternal: a sum leaves 64-bit fixed
  // point. Good until the next Send but one.
  Result<Report> ReportOf(const Handle& handle, device::Queue& queue);

  // [ranks], 0: masked, by what Refresh, ReportOf and wires saw last.
  std::span<const uint8_t> active_ranks() const { return active_; }
  const std::string& cause(uint32_t rank) const { return causes_[rank]; }
  Status Refresh(device::Queue& queue);
  // From outside: somebody knows that it is gone. Also in the middle of a pair, by another queue.
  Status Mask(uint32_t rank, std::string cause, device::Queue& queue);
  // "here", "peer memory", a wire's name; empty: none.
  std::string path(uint32_t rank) const;

 private:
  enum class Stage { kFree, kDispatching, kArrived, kCombining };
  struct Peer {
    DeviceMemory inbox;     // here; what it writes
    DeviceMemory imported;  // its memory, if another process made that
    DeviceMemory outbox;    // where wires take from
    uint64_t out = 0;
    std::optional<LaneWires> wires;
    bool gone = false;  // its wires are
  };
  struct Pair {
    Stage stage = Stage::kFree;
    uint64_t number = 0, epoch = 0;
    bool finished = false;
    kernels::DispatchParameters parameters;
    uint64_t outputs = 0;
    std::array<bool, kLanes> under_way{};  // by wires
  };

  DeviceBuffer(MemberId self, const DeviceOptions& options, device::Device& memory)
      : self_(std::move(self)), options_(options), memory_(memory) {}
  Status Place(device::Queue& queue);
  Result<Peer*> PeerOf(const MemberId& id, device::Queue& queue);
  Status PutRoutes(device::Queue& queue);
  Result<Pair*> At(const Handle& handle, Stage stage, const char* doing);
  Status Launch(std::initializer_list<const char*> names, Pair& pair, device::Queue& queue);
  // What of a lane goes by wires.
  bool Wired() const;
  struct LaneRange {
    uint64_t at = 0, bytes = 0;
  };
  static LaneRange RangeOf(const kernels::DispatchParameters& parameters, uint32_t lane);
  Status PostWires(Pair& pair, uint32_t lane, device::Queue& queue);
  Status AwaitWires(Pair& pair, uint32_t lane, device::Queue& queue);

  const MemberId self_;
  const DeviceOptions options_;
  device::Device& memory_;
  DeviceMemory own_, routes_memory_;
  uint64_t table_ = 0;
  std::array<Pair, 2> pairs_;
  std::map<MemberId, Peer> peers_;
  std::vector<MemberId> members_;
  std::shared_ptr<const Routes> routes_;
  uint32_t rank_ = 0;
  uint64_t epoch_ = 0, next_ = 0;
  std::vector<uint8_t> active_;
  std::vector<std::string> causes_;
};

}  // namespace tangram::dispatch
