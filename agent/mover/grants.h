// One-time tokens: memory that a peer, after a request over mTLS, may read over the data port.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "agent/base/unique_fd.h"
#include "agent/device/device.h"
#include "agent/device/memory.h"

namespace tangram::mover {

// While it lasts, granted memory stays in place. Readers use it in short, non-blocking steps, each
// under Use; End takes effect between two of them.
class Lease {
 public:
  // False, and `step` is not run: the lease has ended.
  template <typename Step>
  bool Use(Step&& step) {
    if (ended_) return false;  // before the lock, so that readers cannot starve End
    const std::shared_lock lock(mu_);
    if (ended_) return false;
    step();
    return true;
  }
  bool ended() const { return ended_; }
  // After it returns, no step uses the memory.
  void End() {
    ended_ = true;
    const std::unique_lock lock(mu_);
  }

 private:
  std::shared_mutex mu_;
  std::atomic<bool> ended_{false};
};

// All of a device's memory, as exported to processes of other pods of this node (device::Readable).
class Window {
 public:
  using Id = std::array<uint8_t, 16>;
  // kInvalid: the device has no memory to export.
  static Result<std::shared_ptr<const Window>> Of(const device::Device& device);

  const Id& id() const { return id_; }  // random, and unique to this memory
  const device::Readable& memory() const { return memory_; }

 private:
  explicit Window(device::Readable memory);
  Id id_{};
  const device::Readable memory_;
};

// Location of granted memory in a window, as extents in order.
struct Shown {
  std::shared_ptr<const Window> window;
  std::vector<device::Extent> extents;

  // Numbers of the descriptors that contain the extents, ascending.
  std::vector<uint64_t> Numbers() const;
};

// Memory that a token grants. Pieces are sent immediately, in order; a KV region is read range by
// range until the connection ends.
struct Grant {
  std::vector<device::Memory> pieces;
  device::Memory kv;  // 0 bytes: no KV
  // Only if the peer is on this node and requested the location of the memory.
  std::optional<Shown> shown;
  uint64_t attempt = 0;
  std::string pod;  // the requester's, by its certificate; empty: a rank of this process
  const void* owner = nullptr;   // of the memory, for Revoke
  std::shared_ptr<Lease> lease;  // null: the memory stays permanently
};

// Thread-safe.
class Grants {
 public:
  // 16 random bytes.
  std::string Issue(Grant grant);
  // Removes and returns the token's grant; there is none for a second call. `pod`: the presenter's,
  // if known. A token presented by another pod stays valid for the requester.
  std::optional<Grant> Redeem(const std::string& token, const std::optional<std::string>& pod);
  // Drops the remaining tokens of an owner (its attempt has ended).
  void Revoke(const void* owner);
  size_t open() const;

 private:
  mutable std::mutex mu_;
  std::map<std::string, Grant> grants_;
};

}  // namespace tangram::mover
