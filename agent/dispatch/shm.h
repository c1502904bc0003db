// A link through memory that two processes share: one ring of slots per lane and direction. The
// receiver owns the memory and gives its descriptor to the writer; each counter has one writer, and
// who reads it acquires what was released. No lock, no system call.
//
// The memory is private to the pair and to the connection: what a writer that was given up still
// writes reaches nobody else's. It is sealed against being cut short.
#pragma once

#include <atomic>
#include <memory>

#include "agent/base/unique_fd.h"
#include "agent/dispatch/link.h"
#include "agent/net/stream.h"

namespace tangram::dispatch {

// How many slots of which size a lane has in one direction. The same on both sides.
struct Geometry {
  uint32_t slots = 0;
  uint64_t slot_bytes = 0;  // a multiple of 64
  bool operator==(const Geometry&) const = default;
  uint64_t bytes() const;  // of one direction, both lanes
};

// One direction's memory, mapped.
class ShmRing {
 public:
  // New memory of this process, to be read here.
  static Result<std::unique_ptr<ShmRing>> Create(const Geometry& geometry);
  // Memory of a peer, to be written. kInvalid: it has another size, or could be cut short.
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
  // The reader's side. kInternal: the writer's counter or a size is none that can be.
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
  // Of this side alone: what it wrote or popped, and what it last saw of the other.
  uint64_t own_[kLanes] = {}, seen_[kLanes] = {};
};

class ShmLink final : public Link {
 public:
  // `stream`: of the hello; while it stands the peer's process has not ended.
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
  // Of this process, which the peer may still write.
  uint64_t bytes() const { return in_->bytes(); }

 private:
  std::unique_ptr<net::Stream> stream_;
  std::unique_ptr<ShmRing> in_, out_;
  Status broken_;
};

}  // namespace tangram::dispatch
