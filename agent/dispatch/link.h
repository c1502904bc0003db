// The interface of a transport: slots of bytes between two ranks, in order, in two independent
// lanes. One thread.
#pragma once

#include <cstdint>
#include <span>

#include "agent/base/status.h"

namespace tangram::dispatch {

enum class Lane : uint32_t { kDispatch = 0, kCombine = 1 };
constexpr size_t kLanes = 2;

// This rank's end of the connection with one peer.
class Link {
 public:
  virtual ~Link() = default;

  // Room for the next slot, at a multiple of 8: at most `want` bytes, and never less than the
  // smallest slot (LeastSlot) if that is wanted. Empty while the peer has not taken earlier slots.
  virtual std::span<uint8_t> Room(Lane lane, size_t want) = 0;
  // Publishes the first `bytes` of that room as a slot.
  virtual void Publish(Lane lane, size_t bytes) = 0;
  // The oldest published slot of the peer that this rank has not popped; empty: none. The peer may
  // be hostile and may still write to it: copy data before you check it.
  virtual std::span<const uint8_t> Front(Lane lane) = 0;
  virtual void Pop(Lane lane) = 0;
  // Sends a heartbeat to the peer; counts the peer's heartbeats.
  virtual void Beat() = 0;
  virtual uint64_t Beats() = 0;
  // Work that no other thread does for the link. An error: the peer is lost or invalid, with the
  // reason.
  virtual Status Work() = 0;
  // Disconnects from the peer, which detects that. Afterwards no data arrives, and there is no
  // room.
  virtual void HangUp() = 0;
  virtual const char* path() const = 0;  // "shared memory", "TCP"
};

// The links of this rank in a world.
class Links {
 public:
  virtual ~Links() = default;
  virtual uint32_t ranks() const = 0;
  virtual uint32_t rank() const = 0;
  // Null for this rank itself, and for ranks without a link.
  virtual Link* at(uint32_t rank) = 0;
  // This rank has published all data for this lane's exchange. A transport that moves an exchange
  // as a whole does so now; its error ends the exchange.
  virtual Status Settle(Lane /*lane*/) { return OkStatus(); }
};

}  // namespace tangram::dispatch
