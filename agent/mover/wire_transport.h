// Fetches bytes from agents of other pods by a communication library that both have
// (agent/device/wire.h): NCCL between GPUs, UCX. The source packs a token's memory into buffers of
// its end, under the lease, and sends them; the reader unpacks and hashes. Tokens, leases and
// hashes are those of every transport. The ends exchange messages over a connection of the data
// port.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "agent/device/wire.h"
#include "agent/mover/transport.h"
#include "agent/mover/wire_talk.h"
#include "agent/mover/wire_turns.h"
#include "agent/net/credentials.h"

namespace tangram::mover {

class WireTransport final : public Transport {
 public:
  // The process's WireServer uses the same `turns`.
  WireTransport(std::shared_ptr<device::Wires> wires, std::shared_ptr<Turns> turns,
                std::shared_ptr<net::Credentials> credentials, const WirePatience& patience = {});
  ~WireTransport() override;

  const char* name() const override { return wires_->name(); }
  Capabilities capabilities() const override { return {.network = true, .library = true}; }
  // The peer has the same library, of the same version.
  bool Reaches(const v1::PeerAddress& peer) const override {
    return peer.comm_library() == wires_->kind();
  }
  Status Pull(const v1::PeerAddress& peer, const std::string& token,
              std::span<const Target> targets, const std::stop_token& stop,
              const std::function<void(uint64_t)>& done) override;
  Result<std::unique_ptr<KvChannel>> OpenKv(const v1::PeerAddress& peer, const std::string& token,
                                            const std::stop_token& stop) override;
  // Ends all idle channels: each belongs to one attempt and one pair of agents.
  void EndAttempt() override;

 private:
  class Link;
  class Kv;

  Result<std::unique_ptr<Link>> Take(const v1::PeerAddress& peer, const std::stop_token& stop);
  Result<std::unique_ptr<Link>> Connect(const std::string& data, const std::stop_token& stop);

  const std::shared_ptr<device::Wires> wires_;
  const std::shared_ptr<Turns> turns_;
  const std::shared_ptr<net::Credentials> credentials_;
  const WirePatience patience_;
  std::mutex mu_;
  std::multimap<std::string, std::unique_ptr<Link>> idle_;  // by the peer's data address
};

}  // namespace tangram::mover
