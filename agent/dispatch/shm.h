// A link through memory that two processes share: one ring of slots per lane and direction. The
// receiver owns the memory and gives its descriptor to the writer. Each counter has one writer, and
// its reader acquires the released values. No lock, no system call.
//
// The memory is private to the pair of members and to the connection, so late writes of a dropped
// writer reach no other data. It is sealed against truncation.
#pragma once

#include <atomic>
#include <memory>

#include "agent/base/unique_fd.h"
#include "agent/dispatch/link.h"
#include "agent/net/stream.h"

namespace tangram::dispatch {

// Slots of a lane in one direction: their number and size. The same on both sides.
struct Geometry {
  uint32_t slots = 0;
  uint64_t slot_bytes = 0;  // a multiple of 64
  bool operator==(const Geometry&) const = default;
  uint64_t bytes() const;  // of one direction, both lanes
};

// One direction's memory, mapped.
class ShmRing {
 public:
  // New memory of this process, for reading.
  static Result<std::unique_ptr<ShmRing>> Create(const Geometry& geometry);
  // Memory of a peer, for writing. kInvalid: it has another size, or could be truncated.
  static Result<std::unique_ptr<ShmRing>> Map(UniqueFd fd, const Geometry& geometry);
  ~ShmRing();
  ShmRing(const ShmRing&) = delete;
  ShmRing& operator=(const ShmRing&) = delete;

  // A second descriptor of it, for the peer.
  Result<UniqueFd> Descriptor() const;
  uint64_t bytes() const { return geometry_.bytes(); }
  uint64_t slot_bytes() const { return geometry_.slot_bytes; }

  // The writer's side.
  uint8_t* Room(Lane lane);
  void Publish(Lane lane, size_t bytes);
  void Beat();
  // The reader's side. kInternal: the writer's counter or a size is impossible.
  Result<std::span<const uint8_t>> Front(Lane lane);
  void Pop(Lane lane);
  uint64_t Beats() const;

 private:
  struct alignas(64) Counter {
    std::atomic<uint64_t> value;
  };
  struct Head {
    Counter written[kLanes], read[kLanes], beats;
  };
  ShmRing(UniqueFd fd, const Geometry& geometry, uint8_t* at);
  Head& head() const { return *reinterpret_cast<Head*>(at_); }
  uint8_t* Slot(Lane lane, uint64_t number) const;

  UniqueFd fd_;
  const Geometry geometry_;
  uint8_t* const at_;
  // Values of this side alone: its own counters, and the last seen ones of the other side.
  uint64_t own_[kLanes] = {}, seen_[kLanes] = {};
};

class ShmLink final : public Link {
 public:
  // `stream`: that of the hello. While it is open, the peer's process has not ended.
  ShmLink(std::unique_ptr<net::Stream> stream, std::unique_ptr<ShmRing> in,
          std::unique_ptr<ShmRing> out)
      : stream_(std::move(stream)), in_(std::move(in)), out_(std::move(out)) {}

  std::span<uint8_t> Room(Lane lane, size_t want) override;
  void Publish(Lane lane, size_t bytes) override { out_->Publish(lane, bytes); }
  std::span<const uint8_t> Front(Lane lane) override;
  void Pop(Lane lane) override { in_->Pop(lane); }
  void Beat() override { out_->Beat(); }
  uint64_t Beats() override { return in_->Beats(); }
  Status Work() override;
  void HangUp() override { stream_.reset(); }
  const char* path() const override { return "shared memory"; }
  // Bytes of this process that the peer may still write.
  uint64_t bytes() const { return in_->bytes(); }

 private:
  std::unique_ptr<net::Stream> stream_;
  std::unique_ptr<ShmRing> in_, out_;
  Status broken_;
};

}  // namespace tangram::dispatch
