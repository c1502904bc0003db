// Brings bytes from another agent: asks over gRPC for a token, then reads over a connection of
// agent/net straight to where they belong.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "agent/device/memory.h"
#include "agent/net/stream.h"
#include "tangram/v1/agent.pb.h"
#include "tangram/v1/engine.pb.h"

namespace tangram::mover {

// The call OpenPull of the peer at `address` (gRPC, host:port).
using Opener = std::function<Result<v1::OpenPullResponse>(const std::string& address,
                                                          const v1::OpenPullRequest&)>;

// One unit of a pull: where it goes and the hash that the source's agent gave for it.
struct Target {
  device::Memory to;
  uint64_t hash = 0;  // XXH3-64
};

// Reads the targets, in order, from `data` (host:port) with `token`, hashing each on the same pass.
// kCorrupt names the index of the first target whose bytes differ; kUnavailable: the source
// is away. `done` is called with the bytes of each verified target.
Status PullPieces(const std::shared_ptr<net::Credentials>& credentials, const std::string& data,
                  const std::string& token, std::span<const Target> targets,
                  const std::stop_token& stop, const std::function<void(uint64_t)>& done);

// Connections that read other ranks' KV regions, kept for the attempt so that a flip pays
// for no handshake. One thread at a time.
class KvReaders {
 public:
  KvReaders(Opener opener, std::shared_ptr<net::Credentials> credentials)
      : opener_(std::move(opener)), credentials_(std::move(credentials)) {}

  struct Range {
    uint64_t source_offset = 0;
    device::Memory to;
  };
  // Connects to the peer, if not yet connected.
  Status Warm(const v1::Header& header, const v1::PeerAddress& peer);
  // Reads from several peers at once: all requests go out before the first answer is read.
  Result<uint64_t> Read(const v1::Header& header,
                        const std::vector<std::pair<v1::PeerAddress, std::vector<Range>>>& jobs);
  void Close() { connections_.clear(); }

 private:
  Status Ask(const v1::Header& header, const v1::PeerAddress& peer, std::span<const Range> ranges);

  Opener opener_;
  std::shared_ptr<net::Credentials> credentials_;
  std::map<std::string, std::unique_ptr<net::Stream>> connections_;  // by member
};

}  // namespace tangram::mover
