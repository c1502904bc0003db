// What a transport is: slots of bytes between two ranks, in order, by two lanes that do not hold
// each other up. One thread.
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

  // Room for the next slot, at a multiple of 8: no more than `want`, and never less than the
  // smallest slot (LeastSlot) if that is wanted; empty while the peer has not taken what it has.
  virtual std::span<uint8_t> Room(Lane lane, size_t want) = 0;
  // The first `bytes` of that room are a slot.
  virtual void Publish(Lane lane, size_t bytes) = 0;
  // The oldest slot that the peer published and this rank has not popped; empty: none. Its bytes
  // are the peer's, who may be hostile and may write on: what is checked is copied first.
  virtual std::span<const uint8_t> Front(Lane lane) = 0;
  virtual void Pop(Lane lane) = 0;
  // Tells the peer that this rank lives and waits, and how often the peer told so.
  virtual void Beat() = 0;
  virtual uint64_t Beats() = 0;
  // Work that nobody else does for it. An error: the peer is gone, or is none of ours; why.
  virtual Status Work() = 0;
  // This rank has nothing to do with the peer any more, and the peer learns it. Nothing comes from
  // here then, and there is no room.
  virtual void HangUp() = 0;
  virtual const char* path() const = 0;  // "shared memory", "TCP"
};

// The links of this rank in a world.
class Links {
 public:
  virtual ~Links() = default;
  virtual uint32_t ranks() const = 0;
  virtual uint32_t rank() const = 0;
  // Null for this rank itself, and where there is none (any more).
  virtual Link* at(uint32_t rank) = 0;
  // This rank published all that it has for the peers in this lane's exchange: a transport that
  // moves an exchange as a whole does so now, and its error ends the exchange.
  virtual Status Settle(Lane /*lane*/) { return OkStatus(); }
};

}  // namespace tangram::dispatch
