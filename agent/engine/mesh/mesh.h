// Connections between the engines of a world (agent/net): one per pair of members, kept across
// epochs, made in advance for members that are about to join. One thread.
//
// In each pair, the member with the smaller id dials. Both sides prove that they are engines of
// this world. Then comes a hello (world, from, to) that the other side confirms. Frames follow,
// each tagged with its epoch, step and sequence. At most one frame per connection is read ahead, so
// a fast peer is held back by its socket, not by our memory.
//
// A member is trusted if the certificate names the pod that the layout has it in. Until a layout
// names the member, the first connection under its name is trusted. A pod may replace only its own
// connections: a second hello of a member from another pod is rejected while the first connection
// exists.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/base/status.h"
#include "agent/base/time_source.h"
#include "agent/base/unique_fd.h"
#include "agent/client/include/tangram/client.h"
#include "agent/engine/mesh/patience.h"
#include "agent/engine/mesh/wire.h"
#include "agent/engine/wire/bytes.h"
#include "agent/net/credentials.h"
#include "agent/net/socket.h"
#include "agent/net/strangers.h"

namespace tangram::engine {

// The exchange of a step that a frame belongs to.
struct Tag {
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint64_t sequence = 0;
  bool operator==(const Tag&) const = default;
};

struct PeerAddress {
  std::string member;
  std::string endpoint;  // host:port
  std::string pod;       // its certificate must name this pod
};

class Mesh {
 public:
  struct Limits {
    net::StrangerLimits strangers = {.until = std::chrono::seconds(30),
                                     .young = std::chrono::seconds(2)};
    net::TcpLimits tcp = {};
    // Members that said hello before a layout named them; more than a world has.
    size_t unexpected = 1024;
  };
  // Listens on host:port (port 0: any). Admits no peer before SetSelf.
  // `time` outlives it.
  static Result<std::unique_ptr<Mesh>> Listen(const std::string& host_port, Limits limits,
                                              TimeSource& time = SteadyTime());
  static Result<std::unique_ptr<Mesh>> Listen(const std::string& host_port);
  ~Mesh();

  uint16_t port() const { return port_; }
  // The world and the member id, which come from the agent; `credentials` are of role engine.
  void SetSelf(std::string world, std::string member,
               std::shared_ptr<net::Credentials> credentials);

  // From now on holds a connection to each of these (itself is skipped), and dials again when one
  // breaks. Does not wait: Progress() does the work.
  void Want(std::span<const PeerAddress> peers);
  // Forgets and closes all others.
  void KeepOnly(const std::set<std::string>& members);
  bool Connected(std::span<const std::string> members) const;
  // Closes the connection with this member, or all: the other side's exchange breaks. Progress
  // makes them again.
  void HangUp(const std::string& member);
  // Whether the member disconnected after a frame that is not taken yet. Until it is taken, the
  // connection is not polled.
  bool LeftFrame(const std::string& member) const;
  // Whether the member no longer takes part in exchanges of this epoch, as far as is known without
  // waiting: it disconnected, perhaps after a frame, or reported so.
  bool GaveUp(const std::string& member, uint64_t epoch) const;
  void HangUpAll();
  // The members of the list without a connection, and why; for messages.
  std::string Missing(std::span<const std::string> members) const;

  // Changes with every byte received from this member, and with the connection.
  uint64_t Moved(const std::string& member) const;
  // Sends all peers a heartbeat: this rank is alive and waits.
  void Beat();
  // Sends a heartbeat that also reports that this rank no longer takes part in exchanges of this
  // epoch or an older one. It informs a peer that missed the disconnect because the connection was
  // made again meanwhile.
  void BeatStill(uint64_t epoch);

  // Accepts, dials, shakes hands, reads. Waits at most timeout_ms for an event.
  void Progress(int timeout_ms);
  // The tag of the frame from this member that waits to be taken; nullopt: none.
  std::optional<Tag> Waiting(const std::string& member) const;

  struct Terms {
    Patience::Duration limit, beat;
    std::optional<Patience::Duration> most;  // in total; none: no limit
    // A fault point that is passed when the data for the first peer is sent and the data for the
    // others is not; empty: none.
    std::string_view point = {};
  };
  struct Outcome {
    Patience::Duration took{};  // duration of the exchange
    // Of a failed exchange: the members that caused it, by their index in the list, and why.
    std::vector<std::pair<size_t, tg_cause>> missed;
  };
  // Sends *send[i] to and receives recv[i] from members[i], for all i concurrently. Takes no frame
  // of a later exchange. kUnavailable, with the peer in the message: a peer is gone, connected
  // again, sent nothing for `limit`, is in another exchange, or has abandoned the epoch. A peer
  // that waits itself sends heartbeats and so does not time out, but the exchange has to end within
  // `most`, if it is set.
  Status Exchange(const Tag& tag, std::span<const std::string> members,
                  std::span<const Bytes* const> send, std::span<Bytes> recv, const Terms& terms,
                  Outcome* outcome);

 private:
  struct Connection;
  struct Peer {
    std::string endpoint, pod;
    bool wanted = false;
    std::unique_ptr<Connection> connection;
    uint64_t made = 0;  // number of connections so far
    TimeSource::TimePoint retry_at{};
    std::string last_error = "not connected yet";
  };

  Mesh(Limits limits, TimeSource& time);
  Status ExchangeAll(const Tag& tag, std::span<const std::string> members,
                     std::span<const Bytes* const> send, std::span<Bytes> recv, const Terms& terms,
                     Outcome* outcome);
  void Accept(TimeSource::TimePoint now);
  void Dial(const std::string& member, Peer& peer);
  // Reads hellos and frames of one connection; false if it ended.
  bool Drive(Connection& connection, short events);
  void Adopt(std::unique_ptr<Connection> connection);
  Status OnHello(Connection& connection, const Bytes& payload);
  // Whether the connection's pod may speak for its member now.
  Status MaySpeak(const Connection& connection) const;
  Bytes HelloTo(const std::string& member) const;
  void Tell(FrameKind kind, uint64_t epoch);

  const Limits limits_;
  TimeSource& time_;
  UniqueFd listener_;
  uint16_t port_ = 0;
  std::string world_, self_;
  std::shared_ptr<net::Credentials> credentials_;
  std::map<std::string, Peer> peers_;
  net::Strangers<Connection> greeting_;  // hello not finished
  TimeSource::TimePoint accept_at_{};    // out of descriptors: not before
};

}  // namespace tangram::engine
