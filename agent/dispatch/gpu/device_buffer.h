// One member's buffers for dispatch and combine in a device's memory: the calls of Buffer and
// Exchange (agent/dispatch), put on a queue. Kernels choose, send, wait, pack and add up. Between
// Send and Finish they need no host, so a graph can hold any number of pairs. Data that changes
// between two worlds is in a table that a graph reads again at each replay (kernels/dispatch.h).
//
// If ranks reach each other's memory, the kernels write directly into it. Otherwise their data for
// a peer is sent over comm channels (agent/device/wire.h: NCCL), which the host drives and waits
// for. The results are the same, but slower and not in graphs.
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
  uint32_t most_ranks = 8;   // ranks of a world; at most 64
  uint32_t most_locals = 0;  // choices with pieces on one rank, in a layer
  uint32_t moe_layers = 1;
  // Maximum rows by expert; further ones are left out and reported. 0: room for the worst case.
  uint64_t packed_capacity = 0;
  std::chrono::nanoseconds timeout = std::chrono::seconds(10);
  uint32_t most_blocks = 64;  // per launch

  // kInvalid names the option.
  Status Check() const;
};

// A rank's input (Rows), by device addresses.
struct DeviceRows {
  uint32_t count = 0;
  uint64_t x = 0, experts = 0, weights = 0;
};

// Received rows (Packed), by device addresses: valid once the queue has done the work.
struct DevicePacked {
  uint64_t x = 0, scales = 0;        // [rows][hidden] of wire; FP8: float [rows][ScalesOf(hidden)]
  uint64_t counts = 0, offsets = 0;  // uint32_t [choices], [choices + 1]
  uint64_t rows = 0;                 // uint32_t
  uint64_t capacity = 0;             // of x
  std::vector<uint32_t> choices;     // those with pieces here
};

// Sent rows (Plan), by device addresses.
struct SentRows {
  uint64_t choices = 0;  // int32_t [count][top_k]; negative: no available replica
  uint64_t counts = 0;   // uint32_t [ranks]
  uint64_t rows = 0;     // uint32_t [ranks][most_tokens]: row numbers, ascending
  uint64_t routed = 0;   // uint32_t [experts]: rows of this rank, for any destination
};

// Between two members whose ranks do not reach each other's memory: an open comm channel per lane.
struct LaneWires {
  std::string name;  // the library: "nccl"
  std::array<std::unique_ptr<device::Wire>, kLanes> lanes;
};

// For one thread. All calls of a pair use one queue. Another pair may use another queue only if its
// Send comes after this one's there too.
class DeviceBuffer {
 public:
  // Bytes that a member takes from its device, without the lists of a layout (some words per expert
  // and replica). `wires`: it reaches others by comm channels. Each range is rounded up to the
  // device's mapping unit.
  static uint64_t GetBufferSizeHint(const DeviceOptions& options, bool wires = false);
  // Bytes of a message of one lane, for WireOptions::buffer_bytes of its comm channels.
  static uint64_t WireBytes(const DeviceOptions& options);

  // `memory` outlives it. kNoMemory with the numbers.
  static Result<std::unique_ptr<DeviceBuffer>> Create(MemberId self, const DeviceOptions& options,
                                                      device::Device& memory, device::Queue& queue);

  const MemberId& self() const { return self_; }
  // Memory that only that member may write, created by the first call: an address for ranks of this
  // process, descriptors for others.
  Result<uint64_t> Grant(const MemberId& to, device::Queue& queue);
  Result<device::Export> ExportTo(const MemberId& to, device::Queue& queue);
  // Stores that member's grant to this one, permanently.
  Status Attach(const MemberId& to, uint64_t inbox);
  Status Attach(const MemberId& to, device::Device& importer, const device::Export& inbox);
  Status Attach(const MemberId& to, LaneWires wires);
  // As Buffer::UpdateMembers. Waits until the queue is done. Memory of members that stay is kept,
  // and graphs continue in the new world. A member that was not attached is masked from the start.
  Status UpdateMembers(uint64_t epoch, std::span<const MemberId> members,
                       std::shared_ptr<const Routes> routes, device::Queue& queue);
  // The former member's process is known to have ended, so its memory is freed. Until then it may
  // write there, so the memory is not reused.
  void Ended(const MemberId& id);
  uint64_t quarantined() const;  // bytes of former members not reported as ended

  // Put a pair's parts on the queue. Handles have the errors of Exchange; ReportOf returns those
  // that only the device detects. With comm channels Receive and Finish block, so they cannot be
  // captured.
  Result<Handle> Send(uint32_t moe_ordinal, const DeviceRows& rows, device::Queue& queue);
  // The hook: waits (on the device), and packs.
  Status Receive(const Handle& handle, device::Queue& queue);
  SentRows sent(const Handle& handle) const;
  DevicePacked packed(const Handle& handle) const;
  // Memory for the experts' outputs, [capacity][hidden] of the format's outputs.
  uint64_t NextCombineBuffer(const Handle& handle) const;
  Status SendBack(const Handle& handle, uint64_t outputs, device::Queue& queue);
  // `y` [count][hidden]: F32, BF16 or int64.
  Status Finish(const Handle& handle, uint64_t y, device::Queue& queue);
  // Waits, and returns the missing contributions of a finished pair; in a graph, of its last
  // replay. kInvalid: it had rows of a nonexistent expert; kInternal: a sum overflows 64-bit fixed
  // point. Valid until the second next Send.
  Result<Report> ReportOf(const Handle& handle, device::Queue& queue);

  // [ranks], 0: masked; state of the last Refresh, ReportOf or channel error.
  std::span<const uint8_t> active_ranks() const { return active_; }
  const std::string& cause(uint32_t rank) const { return causes_[rank]; }
  Status Refresh(device::Queue& queue);
  // Masks a rank that the caller knows to be lost, even during a pair, by another queue.
  Status Mask(uint32_t rank, std::string cause, device::Queue& queue);
  // "here", "peer memory", a channel's library; empty: none.
  std::string path(uint32_t rank) const;

 private:
  enum class Stage { kFree, kDispatching, kArrived, kCombining };
  struct Peer {
    DeviceMemory inbox;     // in this rank's memory; the peer writes it
    DeviceMemory imported;  // the peer's memory, if of another process
    DeviceMemory outbox;    // from which channels send
    uint64_t out = 0;
    std::optional<LaneWires> wires;
    bool gone = false;  // its channels are closed
  };
  struct Pair {
    Stage stage = Stage::kFree;
    uint64_t number = 0, epoch = 0;
    bool finished = false;
    kernels::DispatchParameters parameters;
    uint64_t outputs = 0;
    std::array<bool, kLanes> under_way{};  // on channels
  };

  DeviceBuffer(MemberId self, const DeviceOptions& options, device::Device& memory)
      : self_(std::move(self)), options_(options), memory_(memory) {}
  Status Place(device::Queue& queue);
  Result<Peer*> PeerOf(const MemberId& id, device::Queue& queue);
  Status PutRoutes(device::Queue& queue);
  Result<Pair*> At(const Handle& handle, Stage stage, const char* doing);
  Status Launch(std::initializer_list<const char*> names, Pair& pair, device::Queue& queue);
  // The part of a lane that is sent over channels.
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
