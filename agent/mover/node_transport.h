// Fetches bytes from agents of the same node, without a network. The source exports the location of
// its memory and its descriptors. The reader maps it and copies it; memory of GPUs is copied by the
// reader's GPU, in one pass. It needs a folder that the pods of a node share for their sockets,
// which must be allowed (docs/security.md): a process with a descriptor can read all of its memory
// until the process ends.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "agent/device/platform.h"
#include "agent/mover/grants.h"
#include "agent/mover/peer_memory.h"
#include "agent/mover/transport.h"
#include "agent/net/credentials.h"
#include "agent/net/stream.h"

namespace tangram::mover {

class NodeTransport final : public Transport {
 public:
  // `folder`: as DataServer::Options::node_socket_dir. `kv`: limits of connections for KV.
  NodeTransport(std::string folder, std::shared_ptr<net::Credentials> credentials,
                std::shared_ptr<const device::Platform> platform,
                const net::WaitLimits& kv = kKvLimits);
  ~NodeTransport() override;

  const char* name() const override { return "node"; }
  Capabilities capabilities() const override { return {.one_sided = true, .network = false}; }
  // The peer listens in the folder.
  bool Reaches(const v1::PeerAddress& peer) const override;
  Status Pull(const v1::PeerAddress& peer, const std::string& token,
              std::span<const Target> targets, const std::stop_token& stop,
              const std::function<void(uint64_t)>& done) override;
  Result<std::unique_ptr<KvChannel>> OpenKv(const v1::PeerAddress& peer, const std::string& token,
                                            const std::stop_token& stop) override;
  void EndAttempt() override;

 private:
  class Link;
  class Kv;
  // Memory of a token: extents, one after another.
  struct Region {
    std::shared_ptr<PeerMemory> memory;
    std::vector<device::Extent> extents;
    std::vector<uint64_t> begins;  // of each extent, from the first byte of all
  };
  struct Cursor;
  struct Copies;
  static Status AddApart(const Region& region, const Target& target, uint64_t* hash,
                         Copies* copies);
  static Status AddOne(const Region& region, const Target& target, Cursor* next, uint64_t* hash,
                       Copies* copies);

  // The source has separate threads for KV, and for pieces, which yield to serving. So a connection
  // keeps its use.
  enum class Use { kPieces, kKv };
  using Whose = std::pair<std::string, Use>;  // with the peer's data address

  Result<std::unique_ptr<Link>> Take(const Whose& whose, const std::stop_token& stop);
  void Rest(const Whose& whose, std::unique_ptr<Link> link);
  Result<std::shared_ptr<PeerMemory>> MemoryOf(const Window::Id& id, Use use, uint64_t bytes,
                                               uint64_t unit);

  const std::string folder_;
  const std::shared_ptr<net::Credentials> credentials_;
  const std::shared_ptr<const device::Platform> platform_;
  const net::WaitLimits kv_limits_;
  std::mutex mu_;
  std::multimap<Whose, std::unique_ptr<Link>> idle_;
  std::map<Window::Id, std::shared_ptr<PeerMemory>> memories_;
};

}  // namespace tangram::mover
