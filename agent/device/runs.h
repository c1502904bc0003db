// Bytes that are no range (Memory::shape), for devices that the CPU reaches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "agent/device/memory.h"

namespace tangram::device {

// What of a plane belongs to one unit: `lines` pieces of `bytes`, `pitch` apart.
struct Strip {
  uint64_t address = 0, lines = 0, bytes = 0, pitch = 0;
};

// Calls `each` for the strips of a memory, in the order of its bytes. One without a shape is cut as
// `shape` cuts it, if that is given, else is a strip of one line.
template <typename Each>
void EachStrip(const Memory& memory, const Shape* shape, Each&& each) {
  const Shape* const cut = memory.shape != nullptr ? memory.shape : shape;
  if (cut == nullptr) {
    each(Strip{memory.address, 1, memory.bytes, memory.bytes});
    return;
  }
  const uint64_t units = memory.bytes / cut->unit_bytes();
  uint64_t in_order = memory.address;  // of a range
  for (uint64_t u = 0; u < units; ++u) {
    uint64_t plane_at = memory.address;  // of a slab
    for (const Shape::Plane& plane : cut->planes) {
      if (memory.shape == nullptr) {
        each(Strip{in_order, plane.lines, plane.bytes, plane.bytes});
        in_order += plane.lines * plane.bytes;
        continue;
      }
      const uint64_t pitch = cut->units * plane.bytes;
      each(Strip{plane_at + (memory.unit + u) * plane.bytes, plane.lines, plane.bytes, pitch});
      plane_at += plane.lines * pitch;
    }
  }
}

// Copies lines of one size, as many of either, that lie apart from each other.
void CopyLines(const Strip& to, const Strip& from);
// Copies between memories of one size that the CPU reaches, one of which at least has a shape; two
// shapes have the same planes. `hash`: HashOf what was written, in order. False: they have not.
bool CopyStrips(const Memory& to, const Memory& from, uint64_t* hash = nullptr);
// The bytes in order, into a buffer of this size.
void Gather(const Memory& from, std::span<std::byte> to);
// HashOf the bytes in order.
uint64_t HashStrips(const Memory& memory);

}  // namespace tangram::device
