// Transports: ways to fetch bytes from the memory of other agents, behind one interface. The
// source's side is common to all: memory is registered as a grant under a lease (grants.h), and a
// token names it. The peer gets the token over gRPC, and reads with it until the lease ends. A call
// here blocks its worker (mover.h) until its batch has arrived, reports each unit as it arrives,
// and ends early on a stop.
//
// A new transport is one more subclass of Transport, and one line where an agent creates its
// Transports (agent/server/memory_host.cc).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "agent/base/status.h"
#include "agent/device/memory.h"
#include "agent/net/blocking.h"
#include "tangram/v1/agent.pb.h"

namespace tangram::mover {

// Calls OpenPull of the peer at `address` (gRPC, host:port). Ends with kUnavailable on a stop, or
// after limits::kKvOpen for KV, else limits::kPeerCall.
using Opener = std::function<Result<v1::OpenPullResponse>(
    const std::string& address, const v1::OpenPullRequest&, const std::stop_token& stop)>;
// A flip waits for KV, so its connections have shorter limits than those of weights.
inline constexpr net::WaitLimits kKvLimits{limits::kKvConnect, limits::kKvSilence};

// One unit of a pull: its destination, and the hash that the source's agent reported for it.
struct Target {
  device::Memory to;
  uint64_t hash = 0;  // XXH3-64
  // Place in the memory exported to a one-sided transport (Grant::shown): `address` counts from the
  // first exported byte. 0 bytes: after the previous target.
  device::Memory from = {};
};

// Maximum ranges of one KV read, and maximum bytes of one range.
constexpr uint32_t kMostRanges = 1U << 16, kMostRangeBytes = 16U << 20;

struct KvRange {
  uint64_t source_offset = 0;  // in the rank's KV region
  device::Memory to;
};

// Reads a rank's KV that a token grants. One thread at a time.
class KvChannel {
 public:
  virtual ~KvChannel() = default;
  // The source disconnected: another channel is needed.
  virtual bool Gone() const = 0;
  // kCorrupt: the received bytes differ from those that the source reports as sent. kUnavailable:
  // the source is unreachable, rejects the request, or has released its memory. After either the
  // channel is unusable. `spoil`: injects a fault, a changed byte on the way; without a copy on the
  // way (same memory) it does nothing.
  virtual Status Read(std::span<const KvRange> ranges, bool spoil, const std::stop_token& stop) = 0;
};

struct Capabilities {
  // The reader takes the bytes itself, without the source's process. OpenPull needs
  // `by_descriptor`. A read may end after the lease, so the reader must detect that.
  bool one_sided = false;
  bool network = true;   // false: within a machine
  bool library = false;  // a communication library moves the bytes
};

// Thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const = 0;
  virtual Capabilities capabilities() const = 0;
  // Decides without a query to the peer.
  virtual bool Reaches(const v1::PeerAddress& peer) const = 0;
  // Reads the token's memory into the targets, in order, and hashes each in the same pass. kCorrupt
  // names the index of the first target whose bytes differ; kUnavailable: the source is
  // unreachable. `done` is called with the bytes of each verified target.
  virtual Status Pull(const v1::PeerAddress& peer, const std::string& token,
                      std::span<const Target> targets, const std::stop_token& stop,
                      const std::function<void(uint64_t)>& done) = 0;
  virtual Result<std::unique_ptr<KvChannel>> OpenKv(const v1::PeerAddress& peer,
                                                    const std::string& token,
                                                    const std::stop_token& stop) = 0;
  // Ends an attempt: unmaps all memory of peers and releases closed connections. The others stay
  // for the next attempt, until the source closes those that rest too long.
  virtual void EndAttempt() = 0;
};

// All transports of a process, the nearest first. Thread-safe.
class Transports {
 public:
  explicit Transports(std::vector<std::unique_ptr<Transport>> all) : all_(std::move(all)) {}

  // The first transport that reaches the peer and has not failed for it; otherwise the last, which
  // reaches all.
  Transport& For(const v1::PeerAddress& peer) const;
  // Excludes the transport for this peer in this attempt. The last one is never excluded.
  void Failed(const Transport& transport, const v1::PeerAddress& peer);
  void EndAttempt();

 private:
  const std::vector<std::unique_ptr<Transport>> all_;
  mutable std::mutex mu_;
  std::set<std::pair<const Transport*, std::string>> failed_;  // with the peer's data address
};

}  // namespace tangram::mover
