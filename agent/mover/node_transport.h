// Bytes of agents of the same node, without a network: the source shows where its memory lies and
// hands over descriptors; the reader maps it and copies, of GPUs' memory by its own GPU, in one
// pass from the source's place into its own. Only where the pods of a node share a folder for their
// sockets, which somebody has to allow (docs/security.md): whoever was shown memory can read all of
// what its descriptor has until the process ends.
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
  // It listens in the folder.
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
  // What a token opens: extents of a memory, one after another.
  struct Region {
    std::shared_ptr<PeerMemory> memory;
    std::vector<device::Extent> extents;
    std::vector<uint64_t> begins;  // of each, counted from the first byte of all
  };
  struct Cursor;
  struct Copies;
  static Status AddApart(const Region& region, const Target& target, uint64_t* hash,
                         Copies* copies);
  static Status AddOne(const Region& region, const Target& target, Cursor* next, uint64_t* hash,
                       Copies* copies);

  // At the source other threads answer for KV than for pieces, which wait for serving: whom a
  // connection was made for it stays with.
  enum class Use { kPieces, kKv };
  using Whose = std::pair<std::string, Use>;  // the peer's data address

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
