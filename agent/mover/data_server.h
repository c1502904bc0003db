// Serves bulk bytes to agents of the same world (agent/net) that hold a token. Wire form, after the
// 16 bytes of token:
//   pieces: their bytes, one after another; then another token for pieces may follow, and so on
//   KV:     any number of requests {u32 count, count x (u64 offset, u32 length)}, little-endian,
//           each answered by the bytes of its ranges, one after another, and the u64 that they
//           hash to (kv_wire.h); or {u32 0xffffffff, 16 bytes of token}: the requests that follow
//           are for the KV of this token, of a later attempt
//
// Who comes by the socket of the node, after the 16 bytes of token, gets no bytes but is shown
// where they lie: {16 bytes id of the window, u64 its size, u64 bytes of each of its descriptors,
// u64 extents}, extents x (u64 offset, u64 length), with the descriptor of the first of them. Then
// another token may follow, or a question of two u64, {0, 0}: is what was shown last still there?
// {0, n + 1}: descriptor n of what was shown last? Each is answered by a u64, the second with the
// descriptor.
//
// Who comes for a wire (wire_talk.h) says so in place of a token, and is handed on.
//
// A fixed number of threads, whoever comes: one at the door, where certificates and tokens are
// looked at, and a few that send. None waits for one connection.
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
    // A folder that the pods of this node share, and under which host others know the port: there
    // those that may map memory of this process find it (NodeSocket). Empty: nobody may.
    std::string node_socket_dir = {}, advertise = {};
    std::shared_ptr<net::Credentials> credentials;
    net::StrangerLimits strangers = {};
    net::TcpLimits tcp = {};
    // How long a connection may rest before the other side asks for something again.
    std::chrono::milliseconds rest = std::chrono::minutes(5);
    // Takes the connections that are of a wire, and does not block; null: they are refused.
    std::function<void(std::unique_ptr<net::Stream>)> wires = nullptr;
    // Threads that send: pieces take what time serving leaves, a flip waits for KV.
    size_t piece_senders = 4, kv_senders = 2;
  };
  static Result<std::unique_ptr<DataServer>> Start(Options options, Grants* grants);
  ~DataServer();
  uint16_t port() const { return port_; }
  // Where the agent whose data port has this address listens for those of its node, unix:PATH.
  static std::string NodeSocket(const std::string& folder, const std::string& data);
  // Connections that showed a good token, so far.
  uint64_t welcomed() const { return welcomed_; }

 private:
  struct Connection;
  class Sender;

  DataServer(Options options, UniqueFd listener, uint16_t port, UniqueFd node, Grants* grants);
  void Door(const std::stop_token& stop);
  // Goes on with a stranger as far as it goes now; false: it is refused or gone.
  bool Greet(Connection& connection);
  void Welcome(std::unique_ptr<Connection> connection);
  // False: out of descriptors.
  bool Accept(int listener, net::Strangers<Connection>* strangers);

  const Options options_;
  const UniqueFd listener_;
  const uint16_t port_;
  const UniqueFd node_;  // listens for who is on this node; may be none
  Grants* const grants_;
  std::vector<std::unique_ptr<Sender>> pieces_, kv_;
  size_t turn_ = 0;
  std::atomic<uint64_t> welcomed_{0};
  std::jthread door_;  // last: stops before what it uses goes
};

}  // namespace tangram::mover
