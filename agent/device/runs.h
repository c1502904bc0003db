// Bytes that are not one range (Memory::shape), for devices that the CPU reaches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "agent/device/memory.h"

namespace tangram::device {

// The part of a plane that belongs to one unit: `lines` lines of `bytes`, `pitch` apart.
struct Strip {
  uint64_t address = 0, lines = 0, bytes = 0, pitch = 0;
};

// Calls `each` for the strips of a memory, in the order of its bytes. Memory without a shape is cut
// by `shape` if given; otherwise it is a strip of one line.
template <typename Each>
void EachStrip(const Memory& memory, const Shape* shape, Each&& each) {
  const Shape* const cut = memory.shape != nullptr ? memory.shape : shape;
  if (cut == nullptr) {
    each(Strip{memory.address, 1, memory.bytes, memory.bytes});
    return;
  }
  const uint64_t units = memory.bytes / cut->unit_bytes();
  uint64_t in_order = memory.address;  // position in a range
  for (uint64_t u = 0; u < units; ++u) {
    uint64_t plane_at = memory.address;  // position in a slab
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

// Whether units of one may be copied to units of the other.
bool SamePlanes(const Shape& a, const Shape& b);

// Calls `each(to, from)` for the strips of two memories of one size, in the order of their bytes.
// Both are cut alike: by the shape of one of them (two shapes have the same planes), else whole.
template <typename Each>
void EachPair(const Memory& to, const Memory& from, Each&& each) {
  const Shape* const shape = to.shape != nullptr ? to.shape : from.shape;
  const uint64_t unit = shape != nullptr ? shape->unit_bytes() : to.bytes;
  // A unit has few planes: a list of one unit's strips lets both sides be walked together.
  std::vector<Strip> strips;
  strips.reserve(shape != nullptr ? shape->planes.size() : 1);
  for (uint64_t at = 0; unit > 0 && at + unit <= to.bytes; at += unit) {
    strips.clear();
    EachStrip(from.Part(at, unit), shape, [&](const Strip& strip) { strips.push_back(strip); });
    size_t next = 0;
    EachStrip(to.Part(at, unit), shape, [&](const Strip& strip) { each(strip, strips[next++]); });
  }
}

// Copies lines of one size, as many on either side; the sides do not overlap.
void CopyLines(const Strip& to, const Strip& from);
// Copies between memories of one size that the CPU reaches. At least one has a shape; two shapes
// must have the same planes, otherwise it returns false. `hash`: HashOf the written bytes, in
// order.
bool CopyStrips(const Memory& to, const Memory& from, uint64_t* hash = nullptr);
// The bytes in order, into a buffer of this size.
void Gather(const Memory& from, std::span<std::byte> to);
// HashOf the bytes in order.
uint64_t HashStrips(const Memory& memory);

}  // namespace tangram::device
