// Two connected streams, for tests.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <string>
#include <utility>

#include "agent/net/credentials.h"
#include "agent/net/socket.h"
#include "agent/net/stream.h"

namespace tangram::net::testing {

// Two ends of a new TCP connection: the dialling and the accepting one.
inline std::pair<UniqueFd, UniqueFd> Sockets() {
  const auto listener = Listen("127.0.0.1:0");
  auto dialled = Dial("127.0.0.1:" + std::to_string(*PortOf(listener->get())));
  pollfd knock{listener->get(), POLLIN, 0};
  EXPECT_EQ(poll(&knock, 1, 10'000), 1);
  auto accepted = Accept(listener->get());
  return {std::move(dialled).value(), std::move(accepted).value()};
}

// Two ends of one TCP connection.
struct Pair {
  std::unique_ptr<Stream> client, server;
  Status client_end, server_end;  // of their handshakes

  Pair(std::shared_ptr<Credentials> dials, std::shared_ptr<Credentials> accepts)
      : Pair(Sockets(), std::move(dials), std::move(accepts)) {}
  // Streams over sockets that are already connected.
  Pair(std::pair<UniqueFd, UniqueFd> ends, std::shared_ptr<Credentials> dials,
       std::shared_ptr<Credentials> accepts) {
    client = std::make_unique<Stream>(std::move(ends.first), Side::kDialled, std::move(dials));
    server = std::make_unique<Stream>(std::move(ends.second), Side::kAccepted, std::move(accepts));
    bool done = false;
    while (!done && client_end.ok() && server_end.ok()) {
      pollfd both[] = {{client->fd(), client->waits_for(), 0},
                       {server->fd(), server->waits_for(), 0}};
      poll(both, 2, 100);
      const auto one = client->Handshake(), other = server->Handshake();
      client_end = one.status();
      server_end = other.status();
      done = one.ok() && *one && other.ok() && *other;
    }
  }
  bool Agreed() const { return client_end.ok() && server_end.ok(); }
};

}  // namespace tangram::net::testing
