// What everybody passes on instead of a pointer: only a device whose memory the CPU reaches turns
// it into one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tangram::device {

class Device;

// Mapped bytes. `device` is null for the process's own memory (heap, stack), which every device
// copies from and to.
struct Memory {
  Device* device = nullptr;
  uint64_t address = 0;  // in the device's addresses
  uint64_t bytes = 0;

  Memory Part(uint64_t offset, uint64_t length) const { return {device, address + offset, length}; }

  static Memory Own(std::span<std::byte> bytes) {
    return {nullptr, reinterpret_cast<uint64_t>(bytes.data()), bytes.size()};
  }
};

// The bytes themselves; empty: the CPU does not reach them, only Copy does.
std::span<std::byte> View(const Memory& memory);

}  // namespace tangram::device
