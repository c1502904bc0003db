// Serves bulk bytes to agents of the same world (agent/net) that present a token. Wire format after
// the 16 bytes of token:
//
//   pieces: their bytes, one after another; then another token for pieces may follow, and so on
//   KV:     any number of requests {u32 count, count x (u64 offset, u32 length)}, little-endian;
//           each reply has the bytes of its ranges, one after another, and the u64 hash of them
//           (kv_wire.h). Or {u32 0xffffffff, 16 bytes of token}: later requests are for the KV of
//           this token, of a later attempt
//
// On the node's socket, a token returns the location of the memory instead of its bytes: {16 bytes
// id of the window, u64 its size, u64 bytes of each of its descriptors, u64 extents}, extents x
// (u64 offset, u64 length), with the descriptor of the first extent. Then another token may follow,
// or a query of two u64. {0, 0}: is the last exported memory still valid? {0, n + 1}: descriptor n
// of the last exported memory. The reply to each is a u64, for the second with the descriptor.
//
// A peer that wants a comm channel (wire_talk.h) sends its own token; its connection is handed
// over.
//
// The number of threads is fixed: one accepts connections and checks certificates and tokens, and a
// few send. None of them waits for one connection.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "agent/mover/grants.h"
#include "agent/mover/transport.h"
#include "agent/net/credentials.h"
#include "agent/net/socket.h"
#include "agent/net/strangers.h"
#include "agent/net/stream.h"

namespace tangram::mover {

class DataServer {
 public:
  struct Options {
    std::string listen;  // host:port
    // A folder shared by the pods of this node, and the host by which others know the port. Peers
    // that may map memory of this process find its socket there (NodeSocket). Empty: no peer may.
    std::string node_socket_dir = {}, advertise = {};
    std::shared_ptr<net::Credentials> credentials;
    net::StrangerLimits strangers = {};
    net::TcpLimits tcp = {};
    // How long a connection may rest until the next request.
    std::chrono::milliseconds rest = std::chrono::minutes(5);
    // Takes connections for comm channels, without blocking; null: they are rejected.
    std::function<void(std::unique_ptr<net::Stream>)> wires = nullptr;
    // Sending threads: those for pieces take the time that serving leaves; a flip waits for KV.
    size_t piece_senders = 4, kv_senders = 2;
  };
  static Result<std::unique_ptr<DataServer>> Start(Options options, Grants* grants);
  ~DataServer();
  uint16_t port() const { return port_; }
  // The unix:PATH where the agent whose data port has this address listens for agents of its node.
  static std::string NodeSocket(const std::string& folder, const std::string& data);
  // Number of connections that presented a valid token.
  uint64_t welcomed() const { return welcomed_; }

 private:
  struct Connection;
  class Sender;

  DataServer(Options options, UniqueFd listener, uint16_t port, UniqueFd node, Grants* grants);
  void Door(const std::stop_token& stop);
  // Makes progress with an unauthenticated connection; false: it was rejected or closed.
  bool Greet(Connection& connection);
  void Welcome(std::unique_ptr<Connection> connection);
  // False: out of descriptors.
  bool Accept(int listener, net::Strangers<Connection>* strangers);

  const Options options_;
  const UniqueFd listener_;
  const uint16_t port_;
  const UniqueFd node_;  // listener for peers on this node; may be empty
  Grants* const grants_;
  std::vector<std::unique_ptr<Sender>> pieces_, kv_;
  size_t turn_ = 0;
  std::atomic<uint64_t> welcomed_{0};
  std::jthread door_;  // last: ends before the members it uses
};

}  // namespace tangram::mover
