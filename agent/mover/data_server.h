// Serves bulk bytes to agents of the same world (agent/net) that hold a token. Wire form, after the
// 16 bytes of token:
//   pieces: their bytes, one after another; then another token for pieces may follow, and so on
//   KV:     any number of requests {u32 count, count x (u64 offset, u32 length)}, little-endian,
//           each answered by the bytes of its ranges, one after another, and the u64 that they
//           hash to (KvDigest)
//
// A fixed number of threads, whoever comes: one at the door, where certificates and tokens are
// looked at, and a few that send. None waits for one connection.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "agent/mover/grants.h"
#include "agent/net/credentials.h"
#include "agent/net/frame.h"
#include "agent/net/socket.h"
#include "agent/net/strangers.h"

namespace tangram::mover {

// Most ranges of one KV request, and most bytes of one: it is hashed before its first byte is sent.
constexpr uint32_t kMostRanges = 1U << 16, kMostRangeBytes = 16U << 20;

// A KV request off a stream; the body is its ranges.
net::FrameReader KvRequests();
// The bytes that a request's ranges name. kInvalid: a range is too long, or not inside the region.
Result<std::vector<iovec>> RangesOf(std::span<const uint8_t> body,
                                    std::span<const std::byte> region);

// What the answer to a KV request hashes to: the hash of its ranges' hashes, in order
// (device::HashOf), so that each is hashed where it lies.
class KvDigest {
 public:
  void Add(uint64_t hash) { hashes_.push_back(hash); }
  uint64_t Value() const;

 private:
  std::vector<uint64_t> hashes_;
};

class DataServer {
 public:
  struct Options {
    std::string listen;  // host:port
    std::shared_ptr<net::Credentials> credentials;
    net::StrangerLimits strangers = {};
    net::TcpLimits tcp = {};
    // Threads that send: pieces take what time serving leaves, a flip waits for KV.
    size_t piece_senders = 4, kv_senders = 2;
  };
  static Result<std::unique_ptr<DataServer>> Start(Options options, Grants* grants);
  ~DataServer();
  uint16_t port() const { return port_; }
  // Connections that showed a good token, so far.
  uint64_t welcomed() const { return welcomed_; }

 private:
  struct Connection;
  class Sender;

  DataServer(Options options, UniqueFd listener, uint16_t port, Grants* grants);
  void Door(const std::stop_token& stop);
  // Goes on with a stranger as far as it goes now; false: it is refused or gone.
  bool Greet(Connection& connection);
  void Welcome(std::unique_ptr<Connection> connection);

  const Options options_;
  const UniqueFd listener_;
  const uint16_t port_;
  Grants* const grants_;
  std::vector<std::unique_ptr<Sender>> pieces_, kv_;
  size_t turn_ = 0;
  std::atomic<uint64_t> welcomed_{0};
  std::jthread door_;  // last: stops before what it uses goes
};

}  // namespace tangram::mover
