// Units that come one after another, from a stream or a file, to memory wherever it is.
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

// Where the CPU reaches a unit's place it is read into that and hashed there. Else it is read into
// a buffer; the device copies and hashes what is in it by one batch, while the next units are read
// into a second one. One thread at a time.
class Arrivals {
 public:
  // Buffers that are kept from one use to the next, as they are dear to make (Device::Staging).
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
  // What a buffer has. A larger unit comes in parts, if it is a range, or gets a buffer of its
  // size.
  static constexpr uint64_t kBuffer = 4 << 20;

  // `arrived` hears of each unit in order, by its number from 0, with the hash of what is in its
  // place now; an error of its ends all. `buffers` outlives this and is used by nobody else.
  using Arrived = std::function<Status(size_t unit, uint64_t hash)>;
  Arrivals(Buffers* buffers, Arrived arrived) : arrived_(std::move(arrived)) {
    for (size_t i = 0; i < parts_.size(); ++i) parts_[i].buffer = &buffers->both[i];
  }
  ~Arrivals();  // nothing is under way then
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  // Writes the next bytes of a unit; it may be called for one part of them after another.
  using Read = std::function<Status(std::span<std::byte>)>;
  // Has `read` write all of a unit; where the device has no bytes nothing is read. An error of it,
  // of the device or of `arrived`.
  Status Take(const device::Memory& to, const Read& read);
  // All that was taken is in its place, and `arrived` has heard of it.
  Status Finish();

 private:
  // What is in a buffer.
  struct Part {
    Buffers::One* buffer = nullptr;
    uint64_t used = 0;
    std::vector<device::CopyOp> copies;
    std::deque<uint64_t> hashes;
    device::Event event;
    bool under_way = false;
  };
  // A place of so many bytes in the buffer that is being filled; the copies of a full one begin.
  Status TakeInParts(const device::Memory& to, const Read& read);
  Result<std::span<std::byte>> Room(device::Device* device, uint64_t bytes);
  Status Begin();
  Status Settle(Part* part);

  const Arrived arrived_;
  std::array<Part, 2> parts_;
  size_t filled_ = 0;  // which of them is being filled
  size_t told_ = 0;
};

}  // namespace tangram::mover
