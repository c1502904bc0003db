// Brings bytes from another agent: asks over gRPC for a token, then reads over a connection of
// agent/net straight to where they belong.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>

#include "agent/base/status.h"
#include "agent/device/memory.h"
#include "agent/net/credentials.h"
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

// Reads the targets, in order, from `data` (host:port) with `token`, hashing each on the same pass.
// kCorrupt names the index of the first target whose bytes differ; kUnavailable: the source
// is away. `done` is called with the bytes of each verified target.
Status PullPieces(const std::shared_ptr<net::Credentials>& credentials, const std::string& data,
                  const std::string& token, std::span<const Target> targets,
                  const std::stop_token& stop, const std::function<void(uint64_t)>& done);

}  // namespace tangram::mover
