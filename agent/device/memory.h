// The reference to memory that is passed on instead of a pointer: only a device whose memory the
// CPU reaches turns it into a pointer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tangram::device {

class Device;

// The shape of units that are interleaved in their slab, as granules in a row-major slab
// (docs/architecture.md, section 8). The slab has plane after plane; a plane has lines, and each
// line has a part of every unit, in their order. The bytes of a unit are those of its first plane,
// line by line, then of the next.
struct Shape {
  struct Plane {
    uint64_t lines = 0, bytes = 0;  // of one unit: its lines, and its bytes per line
  };
  std::vector<Plane> planes;
  uint64_t units = 0;  // in the slab

  uint64_t unit_bytes() const;
};

// Mapped bytes: a range, or units of a slab. `device` is null for the process's own memory (heap,
// stack), which every device copies to and from.
struct Memory {
  Device* device = nullptr;
  uint64_t address = 0;  // in the device's addresses; with a shape, the slab's
  uint64_t bytes = 0;
  const Shape* shape = nullptr;  // not owned; outlives all uses of this
  uint64_t unit = 0;             // the first of these units in the slab

  // With a shape: whole units.
  Memory Part(uint64_t offset, uint64_t length) const {
    if (shape != nullptr) {
      return {device, address, length, shape, unit + offset / shape->unit_bytes()};
    }
    return {device, address + offset, length};
  }

  static Memory Own(std::span<std::byte> bytes) {
    return {nullptr, reinterpret_cast<uint64_t>(bytes.data()), bytes.size()};
  }
};

// The range of the first byte.
Memory FirstByte(const Memory& memory);

// The bytes themselves; empty: the CPU does not reach them, or they are not one range. Copy works
// for all.
std::span<std::byte> View(const Memory& memory);

}  // namespace tangram::device
