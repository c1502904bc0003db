// Serves bulk bytes to peers that hold a token. Wire form, after the 16 bytes of token:
//   pieces: their bytes, one after another, then the connection ends
//   KV:     any number of requests {u32 count, count x (u64 offset, u32 length)}, little-endian,
//           each answered by the bytes of its ranges, one after another
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "agent/mover/grants.h"
#include "agent/mover/net.h"

namespace tangram::mover {

// Most ranges of one KV request.
constexpr uint32_t kMostRanges = 1U << 16;

class DataServer {
 public:
  static Result<std::unique_ptr<DataServer>> Start(const std::string& listen, Grants* grants);
  ~DataServer();
  uint16_t port() const { return port_; }

 private:
  struct Connection {
    UniqueFd fd;
    std::atomic<bool> done{false};
    std::jthread thread;
  };

  DataServer(UniqueFd listener, uint16_t port, Grants* grants);
  void Accept(std::stop_token stop);
  void Serve(Connection* connection, std::stop_token stop);
  static Status ServeKv(int fd, std::span<const std::byte> region, std::stop_token stop);

  UniqueFd listener_;
  const uint16_t port_;
  Grants* const grants_;
  std::mutex mu_;
  std::list<Connection> connections_;
  std::jthread acceptor_;  // last: stops before what it uses goes
};

}  // namespace tangram::mover
