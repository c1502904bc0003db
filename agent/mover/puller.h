// Brings bytes from another agent: asks over gRPC for a token, then reads over a connection of
// agent/net straight to where they belong.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>

#include "agent/base/status.h"
#include "agent/device/memory.h"
#include "agent/net/credentials.h"
#include "agent/net/stream.h"
#include "tangram/v1/agent.pb.h"

namespace tangram::mover {

// The call OpenPull of the peer at `address` (gRPC, host:port).
using Opener = std::function<Result<v1::OpenPullResponse>(const std::string& address,
                                                          const v1::OpenPullRequest&)>;

// One unit of a pull: where it goes and the hash that the source's agent gave for it.
struct Target {
  device::Memory to;
  uint64_t hash = 0;  // XXH3-64
};

// A connection to one data port, made when it is first needed and kept from one pull to the next.
// One thread at a time.
class PieceLink {
 public:
  // `data`: host:port.
  PieceLink(std::shared_ptr<net::Credentials> credentials, std::string data)
      : credentials_(std::move(credentials)), data_(std::move(data)) {}

  // Reads the targets, in order, with `token`, hashing each on the same pass. kCorrupt names the
  // index of the first target whose bytes differ; kUnavailable: the source is away. Either ends the
  // connection. `done` is called with the bytes of each verified target.
  Status Pull(const std::string& token, std::span<const Target> targets,
              const std::stop_token& stop, const std::function<void(uint64_t)>& done);

 private:
  Status Read(const std::string& token, std::span<const Target> targets,
              const std::stop_token& stop, const std::function<void(uint64_t)>& done);

  const std::shared_ptr<net::Credentials> credentials_;
  const std::string data_;
  std::unique_ptr<net::Stream> stream_;
};

// Links that the ranks of a process share: one serves one pull at a time, and is kept for the next.
class PieceLinks {
 public:
  explicit PieceLinks(std::shared_ptr<net::Credentials> credentials)
      : credentials_(std::move(credentials)) {}

  // As PieceLink::Pull, by a link to `data` that nobody uses now, or a new one.
  Status Pull(const std::string& data, const std::string& token, std::span<const Target> targets,
              const std::stop_token& stop, const std::function<void(uint64_t)>& done);
  // Ends those that nobody uses: an attempt is over.
  void Close();

 private:
  std::unique_ptr<PieceLink> Take(const std::string& data);

  const std::shared_ptr<net::Credentials> credentials_;
  std::mutex mu_;
  std::multimap<std::string, std::unique_ptr<PieceLink>> idle_;  // by data port
};

}  // namespace tangram::mover
