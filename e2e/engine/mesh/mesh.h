// TCP connections between the engines of a world: one per pair of members, kept across
// epochs, made in advance for members that are about to join. One thread.
//
// Of a pair, the member with the smaller id dials. A connection starts with a hello
// (world, from, to) that the other side confirms; frames follow, each tagged with the
// epoch, step and sequence it belongs to. At most one frame per connection is read ahead,
// so a fast peer is held back by its socket, not by our memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "agent/base/unique_fd.h"
#include "e2e/engine/mesh/patience.h"
#include "e2e/engine/wire/bytes.h"

namespace tangram::engine {

// Which exchange of which step a frame belongs to.
struct Tag {
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint64_t sequence = 0;
  bool operator==(const Tag&) const = default;
};

struct PeerAddress {
  std::string member;
  std::string endpoint;  // host:port
};

class Mesh {
 public:
  // Listens on host:port (port 0: any). The member id comes later, from the agent.
  static Result<std::unique_ptr<Mesh>> Listen(const std::string& host_port);
  ~Mesh();

  uint16_t port() const { return port_; }
  void SetSelf(std::string world, std::string member);

  // From now on holds a connection to each of these (itself is skipped), dialling again
  // when one breaks. Does not wait: Progress() does the work.
  void Want(std::span<const PeerAddress> peers);
  // Forgets and closes all others.
  void KeepOnly(const std::set<std::string>& members);
  bool Connected(std::span<const std::string> members) const;
  // Closes the connection with this member, or all: the other side sees its exchange break. They
  // are made again by Progress.
  void HangUp(const std::string& member);
  // Whether the member hung up behind a frame that waits here to be taken: until it is, the
  // connection is not looked at.
  bool LeftFrame(const std::string& member) const;
  void HangUpAll();
  // The members of the list without a connection, and why; for messages.
  std::string Missing(std::span<const std::string> members) const;

  // Changes whenever bytes come from this member, and with the connection.
  uint64_t Moved(const std::string& member) const;
  // Tells all peers that this rank lives and waits.
  void Beat();

  // Accepts, dials, shakes hands, reads; waits at most timeout_ms for something to do.
  void Progress(int timeout_ms);
  // The tag of the frame that waits from this member, if one does.
  std::optional<Tag> Waiting(const std::string& member) const;

  struct Terms {
    Patience::Duration limit, beat, most;
  };
  // Sends *send[i] to and receives recv[i] from members[i], for all i at once. Nobody's
  // frame of a later exchange is taken. kUnavailable: a peer is gone, silent for `limit`, or
  // in another exchange. The message names the peer. Of a peer that is waiting itself one hears:
  // it is not silent, but after `most` in all it has to be through. `took`: how long it was.
  Status Exchange(const Tag& tag, std::span<const std::string> members,
                  std::span<const Bytes* const> send, std::span<Bytes> recv, const Terms& terms,
                  Patience::Duration* took = nullptr);

 private:
  struct Connection;
  struct Peer {
    std::string endpoint;
    bool wanted = false;
    std::unique_ptr<Connection> connection;
    std::chrono::steady_clock::time_point retry_at{};
    std::string last_error = "not connected yet";
  };

  Mesh() = default;
  void Accept();
  void Dial(const std::string& member, Peer& peer);
  // Reads hellos and frames of one connection; false when it is gone.
  bool Drive(Connection& connection, short events);
  void Adopt(std::unique_ptr<Connection> connection);
  Status OnHello(Connection& connection, const Bytes& payload);
  Bytes HelloTo(const std::string& member) const;

  UniqueFd listener_;
  uint16_t port_ = 0;
  std::string world_, self_;
  std::map<std::string, Peer> peers_;
  std::vector<std::unique_ptr<Connection>> greeting_;  // hello not finished
};

}  // namespace tangram::engine
