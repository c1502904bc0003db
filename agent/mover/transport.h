// Ways for bytes to come from the memory of other agents, behind one interface. What they have in
// common lies at the source: memory is registered as a grant under a lease (grants.h), and a token
// names it; whoever gets the token over gRPC reads by it until the lease ends. A call here blocks
// its worker (mover.h) until its batch is there, tells of each unit as it comes, and ends early
// when a stop is asked for.
//
// A new way is one more Transport, and one line where an agent makes its Transports
// (agent/server/memory_host.cc).
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

// The call OpenPull of the peer at `address` (gRPC, host:port). Ends early, with kUnavailable, when
// a stop is asked for; of KV after limits::kKvOpen, else after limits::kPeerCall.
using Opener = std::function<Result<v1::OpenPullResponse>(
    const std::string& address, const v1::OpenPullRequest&, const std::stop_token& stop)>;
// A flip waits for KV: its connections have shorter limits than those of weights.
inline constexpr net::WaitLimits kKvLimits{limits::kKvConnect, limits::kKvSilence};

// One unit of a pull: where it goes and the hash that the source's agent gave for it.
struct Target {
  device::Memory to;
  uint64_t hash = 0;  // XXH3-64
  // Where it lies in what a one-sided way is shown (Grant::shown): `address` counts from the first
  // byte shown. Of 0 bytes: behind the one before.
  device::Memory from = {};
};

// Most ranges of one KV read, and most bytes of one.
constexpr uint32_t kMostRanges = 1U << 16, kMostRangeBytes = 16U << 20;

struct KvRange {
  uint64_t source_offset = 0;  // in the rank's KV region
  device::Memory to;
};

// Reads a rank's KV, as a token opened it. One thread at a time.
class KvChannel {
 public:
  virtual ~KvChannel() = default;
  // The source hung up: another channel is needed.
  virtual bool Gone() const = 0;
  // kCorrupt: what came differs from what the source says that it sent; kUnavailable: the source is
  // away, refuses, or let go of its memory. The channel is of no use after either. `spoil`: a
  // fault, a byte changes on the way; where there is no way (one memory) nothing changes.
  virtual Status Read(std::span<const KvRange> ranges, bool spoil, const std::stop_token& stop) = 0;
};

struct Capabilities {
  // The reader takes the bytes itself: nothing of the source's process runs for them, OpenPull must
  // be told (`by_descriptor`), and a read may end after the lease did; who reads finds that out.
  bool one_sided = false;
  bool network = true;   // else: within a machine
  bool library = false;  // a communication library moves the bytes
};

// Thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const = 0;
  virtual Capabilities capabilities() const = 0;
  // As far as can be told without asking the peer.
  virtual bool Reaches(const v1::PeerAddress& peer) const = 0;
  // Reads what the token opens to the targets, in order, hashing each on the same pass. kCorrupt
  // names the index of the first target whose bytes differ; kUnavailable: the source is away.
  // `done` is called with the bytes of each verified target.
  virtual Status Pull(const v1::PeerAddress& peer, const std::string& token,
                      std::span<const Target> targets, const std::stop_token& stop,
                      const std::function<void(uint64_t)>& done) = 0;
  virtual Result<std::unique_ptr<KvChannel>> OpenKv(const v1::PeerAddress& peer,
                                                    const std::string& token,
                                                    const std::stop_token& stop) = 0;
  // An attempt is over: nothing of a peer's memory stays mapped, and connections that have ended
  // are let go of. The others stay for the next attempt, until the source ends what rests too long.
  virtual void EndAttempt() = 0;
};

// All that a process has, the nearest first. Thread-safe.
class Transports {
 public:
  explicit Transports(std::vector<std::unique_ptr<Transport>> all) : all_(std::move(all)) {}

  // The first that reaches the peer and has not failed it; at last the last, which reaches all.
  Transport& For(const v1::PeerAddress& peer) const;
  // Not for this peer again in this attempt. The last one always stays.
  void Failed(const Transport& transport, const v1::PeerAddress& peer);
  void EndAttempt();

 private:
  const std::vector<std::unique_ptr<Transport>> all_;
  mutable std::mutex mu_;
  std::set<std::pair<const Transport*, std::string>> failed_;  // and the peer's data address
};

}  // namespace tangram::mover
