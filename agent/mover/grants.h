// One-time tokens: what a peer that asked over mTLS may read over the bulk connection.
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

// While it lasts, memory that was granted stays where it is. Who reads it does so in steps that
// wait for nobody, each under Use; End comes between two of them.
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
  // When it returns, nobody reads any more.
  void End() {
    ended_ = true;
    const std::unique_lock lock(mu_);
  }

 private:
  std::shared_mutex mu_;
  std::atomic<bool> ended_{false};
};

// All of a device's memory, as processes of other pods of this node are shown it
// (device::Readable).
class Window {
 public:
  using Id = std::array<uint8_t, 16>;
  // kInvalid: the device has none to show.
  static Result<std::shared_ptr<const Window>> Of(const device::Device& device);

  const Id& id() const { return id_; }  // random; of this memory and no other
  const device::Readable& memory() const { return memory_; }

 private:
  explicit Window(device::Readable memory);
  Id id_{};
  const device::Readable memory_;
};

// Where granted memory lies in a window, in order.
struct Shown {
  std::shared_ptr<const Window> window;
  std::vector<device::Extent> extents;

  // Numbers of the descriptors that they lie in, ascending.
  std::vector<uint64_t> Numbers() const;
};

// Memory that a token opens. Pieces are sent at once, in order; a KV region is read range
// by range until the connection ends.
struct Grant {
  std::vector<device::Memory> pieces;
  device::Memory kv;  // of 0 bytes: no KV
  // Only for who asked to be shown where it lies, and is on this node.
  std::optional<Shown> shown;
  uint64_t attempt = 0;
  std::string pod;               // who asked, by its certificate; empty: a rank of this process
  const void* owner = nullptr;   // whose memory it is, for Revoke
  std::shared_ptr<Lease> lease;  // null: the memory stays for good
};

// Thread-safe.
class Grants {
 public:
  // 16 random bytes.
  std::string Issue(Grant grant);
  // Takes the token's grant; a second time there is none. `pod`: who shows it, if that is known;
  // a token of another stays good for the one who asked.
  std::optional<Grant> Redeem(const std::string& token, const std::optional<std::string>& pod);
  // Drops what is left of an owner's tokens (its attempt has ended).
  void Revoke(const void* owner);
  size_t open() const;

 private:
  mutable std::mutex mu_;
  std::map<std::string, Grant> grants_;
};

}  // namespace tangram::mover
