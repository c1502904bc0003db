// Bytes over connections of agent/net, which reach every peer: the source's data server sends them
// (data_server.h has the wire format), and they are read directly into their destination.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "agent/mover/arrivals.h"
#include "agent/mover/transport.h"
#include "agent/net/credentials.h"
#include "agent/net/stream.h"

namespace tangram::mover {

// A connection to one data port, created by the first pull and kept for later ones. One thread at a
// time.
class PieceLink {
 public:
  // `data`: host:port.
  PieceLink(std::shared_ptr<net::Credentials> credentials, std::string data)
      : credentials_(std::move(credentials)), data_(std::move(data)) {}

  // As Transport::Pull. An error ends the connection.
  Status Pull(const std::string& token, std::span<const Target> targets,
              const std::stop_token& stop, const std::function<void(uint64_t)>& done);
  // There is no connection, or it was closed.
  bool Gone() const { return stream_ == nullptr || stream_->Disturbed(); }

 private:
  Status Read(const std::string& token, std::span<const Target> targets,
              const std::stop_token& stop, const std::function<void(uint64_t)>& done);

  const std::shared_ptr<net::Credentials> credentials_;
  const std::string data_;
  std::unique_ptr<net::Stream> stream_;
  Arrivals::Buffers buffers_;
};

class TcpTransport final : public Transport {
 public:
  // `kv`: limits of connections for KV.
  explicit TcpTransport(std::shared_ptr<net::Credentials> credentials,
                        const net::WaitLimits& kv = kKvLimits)
      : credentials_(std::move(credentials)), kv_limits_(kv) {}

  const char* name() const override { return "tcp"; }
  Capabilities capabilities() const override { return {.one_sided = false, .network = true}; }
  bool Reaches(const v1::PeerAddress&) const override { return true; }
  // Uses an idle connection to the peer, or a new one: the ranks of a process share them.
  Status Pull(const v1::PeerAddress& peer, const std::string& token,
              std::span<const Target> targets, const std::stop_token& stop,
              const std::function<void(uint64_t)>& done) override;
  // Uses the connection of an earlier channel to the peer, or a new one. The channel must not
  // outlive this.
  Result<std::unique_ptr<KvChannel>> OpenKv(const v1::PeerAddress& peer, const std::string& token,
                                            const std::stop_token& stop) override;
  void EndAttempt() override;

 private:
  class Kv;

  std::unique_ptr<PieceLink> Take(const std::string& data);
  std::unique_ptr<net::Stream> TakeKv(const std::string& data);  // nullptr: none
  void RestKv(const std::string& data, std::unique_ptr<net::Stream> stream);

  const std::shared_ptr<net::Credentials> credentials_;
  const net::WaitLimits kv_limits_;
  std::mutex mu_;
  std::multimap<std::string, std::unique_ptr<PieceLink>> idle_;  // by data port
  std::multimap<std::string, std::unique_ptr<net::Stream>> idle_kv_;
};

}  // namespace tangram::mover
