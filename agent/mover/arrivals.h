// Receives consecutive units from a stream or a file into any memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "agent/base/status.h"
#include "agent/device/device.h"

namespace tangram::mover {

// If the CPU reaches a unit's destination, the unit is read into it and hashed there. Otherwise it
// is read into a buffer. The device copies and hashes a buffer's content in one batch, while the
// next units are read into a second buffer. One thread at a time.
class Arrivals {
 public:
  // Buffers that are kept between uses, as they are expensive to create (Device::Staging).
  class Buffers {
   private:
    friend class Arrivals;
    struct One {
      std::shared_ptr<std::byte[]> bytes;
      uint64_t size = 0;
      const device::Device* of = nullptr;
    };
    std::array<One, 2> both;
  };
  // Size of a buffer. A larger unit is received in parts if it is a range; otherwise it gets a
  // buffer of its size.
  static constexpr uint64_t kBuffer = 4 << 20;

  // `arrived` is called for each unit in order, with its number from 0 and the hash of its
  // destination's content; its error ends everything. `buffers` outlives this and has no other
  // user.
  using Arrived = std::function<Status(size_t unit, uint64_t hash)>;
  Arrivals(Buffers* buffers, Arrived arrived) : arrived_(std::move(arrived)) {
    for (size_t i = 0; i < parts_.size(); ++i) parts_[i].buffer = &buffers->both[i];
  }
  ~Arrivals();  // waits for copies in progress
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  // Writes the next bytes of a unit; may be called for consecutive parts.
  using Read = std::function<Status(std::span<std::byte>)>;
  // Has `read` write all of a unit; if the device has no bytes, nothing is read. Returns an error
  // of `read`, of the device or of `arrived`.
  Status Take(const device::Memory& to, const Read& read);
  // Waits until all units are in place and `arrived` has been called for them.
  Status Finish();

 private:
  // Content of a buffer.
  struct Part {
    Buffers::One* buffer = nullptr;
    uint64_t used = 0;
    std::vector<device::CopyOp> copies;
    std::deque<uint64_t> hashes;
    device::Event event;
    bool under_way = false;
  };
  // Room for `bytes` in the current buffer; the copies of a full one begin.
  Status TakeInParts(const device::Memory& to, const Read& read);
  Result<std::span<std::byte>> Room(device::Device* device, uint64_t bytes);
  Status Begin();
  Status Settle(Part* part);

  const Arrived arrived_;
  std::array<Part, 2> parts_;
  size_t filled_ = 0;  // the buffer being filled
  size_t told_ = 0;
};

}  // namespace tangram::mover
