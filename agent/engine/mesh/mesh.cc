#include "agent/engine/mesh/mesh.h"

#include <poll.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "agent/base/fault.h"
#include "agent/engine/mesh/connection.h"

namespace tangram::engine {
namespace {

constexpr auto kRetry = std::chrono::milliseconds(50);
// Unauthenticated peers accepted in one Progress(), so that a crowd does not delay a step.
constexpr int kAtOnce = 16;

std::string Text(uint64_t epoch, uint64_t step, uint64_t sequence) {
  return "epoch " + std::to_string(epoch) + " step " + std::to_string(step) + " exchange " +
         std::to_string(sequence);
}

}  // namespace

Mesh::Mesh(Limits limits, TimeSource& time)
    : limits_(limits), time_(time), greeting_(limits.strangers) {}

Mesh::~Mesh() = default;

Result<std::unique_ptr<Mesh>> Mesh::Listen(const std::string& host_port) {
  return Listen(host_port, Limits());
}

Result<std::unique_ptr<Mesh>> Mesh::Listen(const std::string& host_port, Limits limits,
                                           TimeSource& time) {
  std::unique_ptr<Mesh> mesh(new Mesh(limits, time));
  Result<UniqueFd> listener = net::Listen(host_port);
  if (!listener.ok()) return listener.status();
  const Result<uint16_t> port = net::PortOf(listener->get());
  if (!port.ok()) return port.status();
  mesh->listener_ = std::move(*listener);
  mesh->port_ = *port;
  return mesh;
}

void Mesh::SetSelf(std::string world, std::string member,
                   std::shared_ptr<net::Credentials> credentials) {
  world_ = std::move(world);
  self_ = std::move(member);
  credentials_ = std::move(credentials);
}

void Mesh::Want(std::span<const PeerAddress> peers) {
  for (const PeerAddress& address : peers) {
    if (address.member == self_) continue;
    Peer& peer = peers_[address.member];
    peer.endpoint = address.endpoint;
    peer.pod = address.pod;
    peer.wanted = true;
    // It was made before the layout named the member's pod.
    if (peer.connection == nullptr || peer.connection->state != Connection::State::kReady) continue;
    if (const Status status = MaySpeak(*peer.connection); !status.ok()) {
      spdlog::warn("mesh peer rejected error=\"{}\"", status.message());
      peer.last_error = status.message();
      peer.connection.reset();
    }
  }
}

void Mesh::KeepOnly(const std::set<std::string>& members) {
  std::erase_if(peers_, [&](const auto& item) { return !members.contains(item.first); });
}

void Mesh::HangUp(const std::string& member) {
  const auto it = peers_.find(member);
  if (it != peers_.end()) it->second.connection.reset();
}

bool Mesh::LeftFrame(const std::string& member) const {
  const auto it = peers_.find(member);
  if (it == peers_.end() || !it->second.connection || !it->second.connection->frame) return false;
  pollfd end{it->second.connection->stream.fd(), POLLRDHUP, 0};
  return poll(&end, 1, 0) > 0;
}

bool Mesh::GaveUp(const std::string& member, uint64_t epoch) const {
  if (!Connected({&member, 1}) || LeftFrame(member)) return true;
  const auto it = peers_.find(member);
  return it != peers_.end() && it->second.connection->GaveUp(epoch);
}

uint64_t Mesh::Moved(const std::string& member) const {
  const auto it = peers_.find(member);
  return it == peers_.end() || !it->second.connection ? 0 : it->second.connection->moved;
}

void Mesh::HangUpAll() {
  for (auto& [member, peer] : peers_) peer.connection.reset();
}

bool Mesh::Connected(std::span<const std::string> members) const {
  return Missing(members).empty();
}

std::string Mesh::Missing(std::span<const std::string> members) const {
  std::string out;
  for (const std::string& member : members) {
    if (member == self_) continue;
    const auto it = peers_.find(member);
    if (it != peers_.end() && it->second.connection != nullptr &&
        it->second.connection->state == Connection::State::kReady) {
      continue;
    }
    if (!out.empty()) out += "; ";
    out += member;
    if (it != peers_.end()) out += " at " + it->second.endpoint + ": " + it->second.last_error;
  }
  return out;
}

Bytes Mesh::HelloTo(const std::string& member) const {
  return Hello{world_, self_, member}.Encode();
}

void Mesh::Accept(TimeSource::TimePoint now) {
  for (int i = 0; i < kAtOnce && greeting_.MayEnter(now); ++i) {
    Result<UniqueFd> fd = net::Accept(listener_.get(), limits_.tcp);
    if (!fd.ok()) {
      spdlog::error("mesh cannot accept a connection error=\"{}\"", fd.status().message());
      accept_at_ = now + kRetry;
      return;
    }
    if (!*fd) return;
    greeting_.Enter(
        std::make_unique<Connection>(std::move(*fd), Connection::State::kAccepted, credentials_),
        now);
  }
}

void Mesh::Dial(const std::string& member, Peer& peer) {
  peer.retry_at = time_.Now() + kRetry;
  Result<UniqueFd> fd = net::Dial(peer.endpoint, limits_.tcp);
  if (!fd.ok()) {
    peer.last_error = fd.status().message();
    return;
  }
  peer.connection =
      std::make_unique<Connection>(std::move(*fd), Connection::State::kDialled, credentials_);
  ++peer.made;
  peer.connection->member = member;
  peer.connection->SendOwned({.kind = FrameKind::kHello}, HelloTo(member));
}

Status Mesh::OnHello(Connection& connection, const Bytes& payload) {
  const Result<Hello> decoded = Hello::Decode(payload);
  if (!decoded.ok()) return decoded.status();
  const auto& [world, from, to] = *decoded;
  if (world != world_ || to != self_) {
    return {Code::kWrongWorld, "hello from " + from + " of world " + world + " to " + to +
                                   ", but this is " + self_ + " of world " + world_};
  }
  const bool dialled = connection.state == Connection::State::kDialled;
  if (dialled && from != connection.member) {
    return {Code::kWrongWorld, "connected to " + connection.member + ", but the peer is " + from};
  }
  if (!dialled && from >= self_) {
    return {Code::kInvalid,
            from + " connected to " + self_ + "; the member with the smaller id must connect"};
  }
  connection.member = from;
  return MaySpeak(connection);
}

Status Mesh::MaySpeak(const Connection& connection) const {
  const auto it = peers_.find(connection.member);
  if (it == peers_.end()) {
    const auto unexpected = std::count_if(peers_.begin(), peers_.end(),
                                          [](const auto& item) { return !item.second.wanted; });
    if (static_cast<size_t>(unexpected) < limits_.unexpected) return OkStatus();
    return {Code::kUnavailable, "too many connections of unexpected members"};
  }
  if (!credentials_->secure()) return OkStatus();
  const Peer& peer = it->second;
  const std::string& pod = connection.stream.pod();
  if (peer.wanted) {
    if (pod == peer.pod) return OkStatus();
    return {Code::kUnauthenticated, "pod " + pod + " presents member " + connection.member +
                                        ", which belongs to pod " + peer.pod};
  }
  if (peer.connection == nullptr || peer.connection.get() == &connection ||
      pod == peer.connection->stream.pod()) {
    return OkStatus();
  }
  return {Code::kUnauthenticated, "pod " + pod + " presents member " + connection.member +
                                      ", as pod " + peer.connection->stream.pod() +
                                      " already does"};
}

bool Mesh::Drive(Connection& connection, short events) {
  Status status;
  if (fault::Cut(connection.member)) status = {Code::kUnavailable, "the connection is cut"};
  const bool known = connection.stream.ready();
  if (status.ok() && (!known || events & (POLLOUT | POLLERR))) status = connection.Write();
  if (status.ok() && !connection.frame &&
      (!known || connection.Buffered() || events & (POLLIN | POLLHUP | POLLERR))) {
    status = connection.Read();
  }
  if (status.ok() && connection.frame && connection.state != Connection::State::kReady) {
    const Connection::Frame frame = std::move(*connection.frame);
    connection.frame.reset();
    const bool dialled = connection.state == Connection::State::kDialled;
    const FrameKind expected = dialled ? FrameKind::kWelcome : FrameKind::kHello;
    status = frame.header.kind == expected
                 ? OnHello(connection, frame.payload)
                 : Status{Code::kInvalid, "the first message is not a hello"};
    if (fault::Cut(connection.member)) status = {Code::kUnavailable, "the connection is cut"};
    if (status.ok()) {
      connection.state = Connection::State::kReady;
      if (!dialled) {
        connection.SendOwned({.kind = FrameKind::kWelcome}, HelloTo(connection.member));
        status = connection.Write();
      }
    }
  }
  if (status.ok()) return true;
  if (auto it = peers_.find(connection.member); it != peers_.end()) {
    it->second.last_error = status.message();
  }
  // A certificate of this world that speaks for another member deserves a warning.
  spdlog::log(status.code() == Code::kUnauthenticated && connection.stream.ready()
                  ? spdlog::level::warn
                  : spdlog::level::debug,
              "mesh connection closed member={} error=\"{}\"",
              connection.member.empty() ? "unauthenticated" : connection.member, status.message());
  return false;
}

void Mesh::Adopt(std::unique_ptr<Connection> connection) {
  // A peer that prepares earlier than this rank is admitted. Want() finds it here later.
  if (!MaySpeak(*connection).ok()) return;  // another was admitted between its hello and this
  const std::string member = connection->member;
  Peer& peer = peers_[member];
  if (peer.connection) peer.last_error = "the peer connected again";
  peer.connection = std::move(connection);
  ++peer.made;
}

void Mesh::Progress(int timeout_ms) {
  const TimeSource::TimePoint now = time_.Now();
  const bool open = credentials_ && now >= accept_at_ && greeting_.MayEnter(now);
  std::vector<pollfd> polls{{open ? listener_.get() : -1, POLLIN, 0}};
  std::vector<Connection*> polled;
  const auto add = [&](Connection* connection) {
    const short events = connection->Events();
    // With no events requested, poll() would still report a disconnect again and again, although
    // the waiting frame must be taken first.
    polls.push_back({events == 0 ? -1 : connection->stream.fd(), events, 0});
    polled.push_back(connection);
    if (connection->Buffered()) timeout_ms = 0;
  };
  for (auto& [member, peer] : peers_) {
    if (!peer.connection && peer.wanted && self_ < member) {
      if (now >= peer.retry_at) {
        Dial(member, peer);
      } else {
        const auto wait =
            std::chrono::duration_cast<std::chrono::milliseconds>(peer.retry_at - now).count() + 1;
        timeout_ms = static_cast<int>(std::min<long long>(timeout_ms, wait));
      }
    }
    if (peer.connection) add(peer.connection.get());
  }
  for (size_t i = 0; i < greeting_.size(); ++i) add(&greeting_.at(i));
  if (time_.Poll(polls.data(), polls.size(), timeout_ms) < 0) return;

  std::set<Connection*> gone;
  for (size_t i = 0; i < polled.size(); ++i) {
    const short events = polls[i + 1].revents;
    if ((events != 0 || polled[i]->Buffered()) && !Drive(*polled[i], events)) {
      gone.insert(polled[i]);
    }
  }
  for (auto& [member, peer] : peers_) {
    if (peer.connection && gone.contains(peer.connection.get())) {
      peer.connection.reset();
      peer.retry_at = now + kRetry;
    }
  }
  std::erase_if(peers_,
                [](const auto& item) { return !item.second.wanted && !item.second.connection; });
  for (size_t i = 0; i < greeting_.size(); ++i) {
    Connection& connection = greeting_.at(i);
    if (gone.contains(&connection)) {
      greeting_.Leave(i);
    } else if (connection.state == Connection::State::kReady) {
      Adopt(greeting_.Leave(i));
    }
  }
  greeting_.Sweep();
  if (polls[0].revents != 0) Accept(now);
}

std::optional<Tag> Mesh::Waiting(const std::string& member) const {
  const auto it = peers_.find(member);
  if (it == peers_.end() || !it->second.connection || !it->second.connection->frame) {
    return std::nullopt;
  }
  const FrameHeader& header = it->second.connection->frame->header;
  return Tag{header.epoch, header.step, header.sequence};
}

void Mesh::Beat() { Tell(FrameKind::kBeat, 0); }

void Mesh::BeatStill(uint64_t epoch) { Tell(FrameKind::kStill, epoch); }

void Mesh::Tell(FrameKind kind, uint64_t epoch) {
  for (auto& [member, peer] : peers_) {
    Connection* connection = peer.connection.get();
    // Bytes that are still being sent serve as a heartbeat.
    if (connection == nullptr || connection->state != Connection::State::kReady ||
        !connection->Flushed()) {
      continue;
    }
    connection->SendOwned({.kind = kind, .epoch = epoch}, {});
    (void)Drive(*connection, POLLOUT);  // the wait for this peer reports the error
  }
}

Status Mesh::Exchange(const Tag& tag, std::span<const std::string> members,
                      std::span<const Bytes* const> send, std::span<Bytes> recv, const Terms& terms,
                      Outcome* outcome) {
  Status done = ExchangeAll(tag, members, send, recv, terms, outcome);
  if (done.ok()) return done;
  // Frames to some peers may still be in transit, and the caller owns their payloads.
  for (const std::string& member : members) {
    const auto it = peers_.find(member);
    if (it != peers_.end() && it->second.connection) it->second.connection->KeepUnsent();
  }
  return done;
}

Status Mesh::ExchangeAll(const Tag& tag, std::span<const std::string> members,
                         std::span<const Bytes* const> send, std::span<Bytes> recv,
                         const Terms& terms, Outcome* outcome) {
  const std::string name = Text(tag.epoch, tag.step, tag.sequence);
  const auto missed = [&](size_t i, tg_cause cause) { outcome->missed.emplace_back(i, cause); };
  const auto milliseconds = [](Patience::Duration time) {
    return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(time).count()) +
           " ms";
  };
  FrameHeader header;
  header.epoch = tag.epoch;
  header.step = tag.step;
  header.sequence = tag.sequence;

  // A peer that has completed its part may disconnect immediately, so a completed leg is not
  // checked again.
  struct Leg {
    bool sent = false, received = false, done = false;
    uint64_t moved = 0;
    uint64_t made = 0;  // the peer's connection count when this leg began
  };
  std::vector<Leg> legs(members.size());
  // Several peers may be lost together, so all that are known to be gone are reported.
  const auto gone = [&](size_t first) {
    missed(first, TG_GONE);
    for (size_t i = 0; i < members.size(); ++i)
      if (i != first && !legs[i].done && !Connected({&members[i], 1})) missed(i, TG_GONE);
    const auto it = peers_.find(members[first]);
    return Status{Code::kUnavailable, name + ": no connection with " + members[first] +
                                          (it == peers_.end() ? "" : ": " + it->second.last_error)};
  };
  bool passed = terms.point.empty();
  Wait wait(members.size(), terms.limit, terms.beat, time_.Now());
  while (true) {
    std::string waiting, silent;
    std::vector<size_t> awaited;
    for (size_t i = 0; i < members.size(); ++i) {
      Leg& leg = legs[i];
      if (leg.done) continue;
      if (members[i] == self_) {
        recv[i] = *send[i];
        leg.done = true;
        continue;
      }
      const auto it = peers_.find(members[i]);
      Connection* connection = it == peers_.end() ? nullptr : it->second.connection.get();
      if (connection == nullptr || connection->state != Connection::State::kReady) {
        return gone(i);
      }
      // The connection was made again between two polls: data sent over the old one is lost, and a
      // peer disconnects only if it abandons a step.
      if (leg.made != 0 && leg.made != it->second.made) return gone(i);
      leg.made = it->second.made;
      if (!leg.sent && connection->Flushed()) {  // else a welcome or a heartbeat is in transit
        connection->Send(header, send[i]->data(), send[i]->size());
        leg.sent = true;
        (void)Drive(*connection, POLLOUT | POLLIN);  // the next round reports the error
        if (!std::exchange(passed, true)) (void)fault::Hit(terms.point);
      }
      if (!leg.received && connection->frame) {
        const FrameHeader& came = connection->frame->header;
        if (came.kind != FrameKind::kData || Tag{came.epoch, came.step, came.sequence} != tag) {
          missed(i, TG_GAVE_UP);
          return {Code::kUnavailable, name + ": " + members[i] + " is in " +
                                          Text(came.epoch, came.step, came.sequence)};
        }
        recv[i] = std::move(connection->frame->payload);
        connection->frame.reset();
        leg.received = true;
      }
      leg.done = leg.received && leg.sent && connection->Flushed();
      if (leg.done) continue;
      if (connection->GaveUp(tag.epoch)) {
        missed(i, TG_GAVE_UP);
        return {Code::kUnavailable, name + ": " + members[i] + " has stopped in epoch " +
                                        std::to_string(connection->still)};
      }
      if (connection->moved != leg.moved) {
        leg.moved = connection->moved;
        wait.Heard(i);
      }
      waiting += " " + members[i];
      awaited.push_back(i);
      if (!wait.Silent(i)) continue;
      silent += " " + members[i];
      missed(i, TG_SILENT);
    }
    outcome->took = wait.ran();
    if (waiting.empty()) return OkStatus();
    if (!silent.empty()) {
      return {Code::kUnavailable,
              name + ": no message from" + silent + " within " + milliseconds(terms.limit)};
    }
    if (terms.most && wait.ran() >= *terms.most) {
      for (const size_t i : awaited) missed(i, TG_STUCK);
      return {Code::kUnavailable, name + ": timed out after " + milliseconds(*terms.most) +
                                      ", these peers wait for another rank:" + waiting};
    }
    if (wait.BeatDue()) Beat();
    const auto look =
        std::min<Patience::Duration>(terms.limit / 4 + Patience::Duration(1000000), Wait::kLook);
    Progress(static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(look).count()));
    wait.Look(time_.Now());
  }
}

}  // namespace tangram::engine
