#include "agent/dispatch/peers.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "agent/dispatch/shm.h"
#include "agent/dispatch/tcp.h"
#include "agent/net/socket.h"

namespace tangram::dispatch {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kRetry = std::chrono::milliseconds(20);
constexpr auto kGreeting = std::chrono::seconds(10);
constexpr size_t kMostStrangers = 1024;

}  // namespace

struct Peers::Greeting {
  Greeting(UniqueFd fd, net::Side side, std::shared_ptr<net::Credentials> credentials)
      : stream(std::make_unique<net::Stream>(std::move(fd), side, std::move(credentials))),
        dialled(side == net::Side::kDialled) {}

  std::unique_ptr<net::Stream> stream;
  const bool dialled;
  bool local = false;
  MemberId to;  // if dialled, known from the start
  Lane lane = Lane::kDispatch;
  uint64_t attempt = 0;
  std::array<uint8_t, Hello::kBytes> out{}, in{};
  size_t sent = Hello::kBytes, came = 0;  // nothing to send yet
  std::optional<Hello> hello;
  std::unique_ptr<ShmRing> ring;  // created here, written by the peer
  Clock::time_point since = Clock::now();
  Status failed;

  bool through() const { return hello && sent == out.size(); }
};

Peers::Peers(Member self, const Format& format, const Geometry& geometry,
             std::shared_ptr<net::Credentials> credentials)
    : self_(std::move(self)),
      format_(format),
      geometry_(geometry),
      credentials_(std::move(credentials)),
      local_credentials_(net::Credentials::Insecure()) {}

Peers::~Peers() = default;

Result<std::unique_ptr<Peers>> Peers::Listen(Member self, const Format& format,
                                             const Geometry& geometry,
                                             std::shared_ptr<net::Credentials> credentials) {
  TANGRAM_RETURN_IF_ERROR(format.Check());
  if (geometry.slots == 0 || geometry.slot_bytes % 64 != 0 ||
      geometry.slot_bytes < LeastSlot(format))
    return Status{Code::kInvalid,
                  std::to_string(geometry.slots) + " slots of " +
                      std::to_string(geometry.slot_bytes) +
                      " bytes: at least one, of a multiple of 64 bytes that holds a row (" +
                      std::to_string(LeastSlot(format)) + ")"};
  std::unique_ptr<Peers> peers(
      new Peers(std::move(self), format, geometry, std::move(credentials)));
  Member& me = peers->self_;
  if (!me.local.empty()) {
    Result<UniqueFd> fd = net::Listen(me.local);
    if (!fd.ok()) return fd.status();
    peers->local_ = std::move(*fd);
  }
  if (!me.endpoint.empty()) {
    Result<UniqueFd> fd = net::Listen(me.endpoint);
    if (!fd.ok()) return fd.status();
    peers->tcp_ = std::move(*fd);
    const Result<uint16_t> port = net::PortOf(peers->tcp_.get());
    if (!port.ok()) return port.status();
    me.endpoint = me.endpoint.substr(0, me.endpoint.rfind(':') + 1) + std::to_string(*port);
  }
  return peers;
}

Hello Peers::HelloTo(const MemberId& to, Hello::Path path, Lane lane, uint64_t attempt) const {
  return {self_.id, to, path, lane, attempt, format_, geometry_};
}

Status Peers::Say(Greeting& greeting) {
  const Hello::Path path = greeting.local ? Hello::Path::kSharedMemory : Hello::Path::kTcp;
  const auto hello = HelloTo(greeting.to, path, greeting.lane, greeting.attempt).Encode();
  if (!hello.ok()) return hello.status();
  greeting.out = *hello;
  greeting.sent = 0;
  if (!greeting.local) return OkStatus();
  Result<std::unique_ptr<ShmRing>> ring = ShmRing::Create(geometry_);
  if (!ring.ok()) return ring.status();
  Result<UniqueFd> fd = (*ring)->Descriptor();
  if (!fd.ok()) return fd.status();
  std::vector<UniqueFd> going;
  going.push_back(std::move(*fd));
  greeting.stream->Attach(std::move(going));
  greeting.ring = std::move(*ring);
  return OkStatus();
}

Status Peers::Dial(const Member& to) {
  const bool local =
      !self_.node.empty() && self_.node == to.node && !self_.local.empty() && !to.local.empty();
  if (!local && to.endpoint.empty())
    return {Code::kUnavailable, "it is on another node and has no endpoint"};
  half_.erase(to.id);
  ++attempts_;
  for (size_t lane = 0; lane < (local ? 1 : kLanes); ++lane) {
    Result<UniqueFd> fd = net::Dial(local ? to.local : to.endpoint);
    if (!fd.ok()) return fd.status();
    auto greeting = std::make_unique<Greeting>(std::move(*fd), net::Side::kDialled,
                                               local ? local_credentials_ : credentials_);
    greeting->local = local;
    greeting->to = to.id;
    if (local) greeting->stream->Expect(1);
    greeting->lane = static_cast<Lane>(lane);
    greeting->attempt = attempts_;
    TANGRAM_RETURN_IF_ERROR(Say(*greeting));
    greetings_.push_back(std::move(greeting));
  }
  return OkStatus();
}

void Peers::Accept(int listener, bool local) {
  while (greetings_.size() < kMostStrangers) {
    Result<UniqueFd> fd = net::Accept(listener);
    if (!fd.ok() || !*fd) return;
    auto greeting = std::make_unique<Greeting>(std::move(*fd), net::Side::kAccepted,
                                               local ? local_credentials_ : credentials_);
    greeting->local = local;
    if (local) greeting->stream->Expect(1);
    greetings_.push_back(std::move(greeting));
  }
}

Status Peers::Heard(Greeting& greeting) {
  const Result<Hello> hello = Hello::Decode(greeting.in);
  if (!hello.ok()) return hello.status();
  if (hello->to != self_.id)
    return {Code::kWrongWorld,
            "hello to " + NameOf(hello->to) + ", but here is " + NameOf(self_.id)};
  if (!greeting.dialled) greeting.to = hello->from;
  if (greeting.dialled ? hello->from != greeting.to || hello->lane != greeting.lane ||
                             hello->attempt != greeting.attempt
                       : hello->from >= self_.id)
    return {Code::kWrongWorld, "hello from " + NameOf(hello->from) + " was not expected"};
  if (hello->format != format_ || hello->geometry != geometry_)
    return {Code::kInvalid, NameOf(hello->from) + " has rows or slots of another kind"};
  if ((hello->path == Hello::Path::kSharedMemory) != greeting.local)
    return {Code::kInvalid, NameOf(hello->from) + " came by another way than it says"};
  const auto pod = pods_.find(hello->from);
  if (greeting.stream->secure() && pod != pods_.end() && greeting.stream->pod() != pod->second)
    return {Code::kUnauthenticated, "pod " + greeting.stream->pod() + " speaks for " +
                                        NameOf(hello->from) + ", which is in pod " + pod->second};
  greeting.hello = *hello;
  if (greeting.dialled) return OkStatus();
  greeting.lane = hello->lane;
  greeting.attempt = hello->attempt;
  return Say(greeting);
}

bool Peers::Drive(Greeting& greeting) {
  const auto step = [&]() -> Status {
    const Result<bool> known = greeting.stream->Handshake();
    if (!known.ok() || !*known) return known.status();
    while (greeting.sent < greeting.out.size()) {
      const iovec part{greeting.out.data() + greeting.sent, greeting.out.size() - greeting.sent};
      const Result<size_t> put = greeting.stream->Write(std::span(&part, 1));
      if (!put.ok()) return put.status();
      if (*put == 0) break;
      greeting.sent += *put;
    }
    while (greeting.came < greeting.in.size()) {
      const Result<size_t> got = greeting.stream->Read(
          std::as_writable_bytes(std::span(greeting.in)).subspan(greeting.came));
      if (!got.ok()) return got.status();
      if (*got == 0) return OkStatus();
      greeting.came += *got;
      if (greeting.came == greeting.in.size()) TANGRAM_RETURN_IF_ERROR(Heard(greeting));
    }
    return OkStatus();
  };
  Status status = step();
  if (status.ok() && !greeting.through()) {
    // Sends a reply immediately.
    if (greeting.hello && greeting.sent == 0) status = step();
    if (status.ok() && !greeting.through() && Clock::now() - greeting.since < kGreeting)
      return false;
    if (status.ok() && !greeting.through()) status = {Code::kUnavailable, "no hello came"};
  }
  if (status.ok()) {
    Adopt(greeting);
    status = greeting.failed;
  }
  if (!status.ok()) errors_[greeting.to] = status.message();
  return true;
}

void Peers::Adopt(Greeting& greeting) {
  const MemberId& id = greeting.to;
  // A link that broke before it had a rank: the other side dropped the attempt that made it.
  if (const auto it = links_.find(id);
      it != links_.end() && !it->second->Work().ok() &&
      std::ranges::find(by_rank_, it->second.get()) == by_rank_.end())
    links_.erase(it);
  if (links_.contains(id) || quarantine_.contains(id)) {
    greeting.failed = {Code::kInvalid, NameOf(id) + " is already connected, or was abandoned"};
    return;
  }
  if (greeting.local) {
    std::vector<UniqueFd> came = greeting.stream->TakeDescriptors();
    if (came.size() != 1) {
      greeting.failed = {Code::kInvalid, NameOf(id) + " gave no memory"};
      return;
    }
    Result<std::unique_ptr<ShmRing>> out = ShmRing::Map(std::move(came[0]), geometry_);
    if (!out.ok()) {
      greeting.failed = out.status();
      return;
    }
    links_[id] = std::make_unique<ShmLink>(std::move(greeting.stream), std::move(greeting.ring),
                                           std::move(*out));
    return;
  }
  Half& half = half_[id];
  if (half.attempt != greeting.attempt) half = {greeting.attempt, {}};
  half.lanes[static_cast<size_t>(greeting.lane)] = std::move(greeting.stream);
  if (!half.lanes[0] || !half.lanes[1]) return;
  links_[id] = std::make_unique<TcpLink>(std::move(half.lanes), geometry_);
  half_.erase(id);
}

void Peers::Progress(std::chrono::milliseconds most) {
  std::vector<pollfd> polls;
  const auto add = [&](int fd, short events) { polls.push_back({fd, events, 0}); };
  if (local_) add(local_.get(), POLLIN);
  if (tcp_) add(tcp_.get(), POLLIN);
  for (const auto& greeting : greetings_) {
    const bool ready = greeting->stream->ready();
    const short wants =
        static_cast<short>(POLLIN | (greeting->sent < greeting->out.size() ? POLLOUT : 0));
    add(greeting->stream->fd(), ready ? wants : greeting->stream->waits_for());
  }
  poll(polls.data(), polls.size(), static_cast<int>(most.count()));
  if (local_) Accept(local_.get(), true);
  if (tcp_) Accept(tcp_.get(), false);
  std::erase_if(greetings_, [&](const auto& greeting) { return Drive(*greeting); });
}

Status Peers::Prepare(std::span<const Member> members, std::chrono::milliseconds limit) {
  const auto until = Clock::now() + limit;
  std::map<MemberId, Clock::time_point> again;
  for (const Member& member : members) pods_[member.id] = member.pod;
  // Attempts of an earlier call, which the other side may not have completed.
  std::erase_if(greetings_, [](const auto& greeting) { return greeting->dialled; });
  while (true) {
    std::string missing;
    for (const Member& member : members) {
      if (member.id == self_.id || links_.contains(member.id)) continue;
      const auto error = errors_.find(member.id);
      missing += (missing.empty() ? "" : "; ") + NameOf(member.id) + ": " +
                 (error == errors_.end() ? "it did not answer yet" : error->second);
      const bool greets = std::ranges::any_of(
          greetings_, [&](const auto& g) { return g->dialled && g->to == member.id; });
      if (self_.id < member.id && !greets && Clock::now() >= again[member.id]) {
        again[member.id] = Clock::now() + kRetry;
        if (const Status dialled = Dial(member); !dialled.ok())
          errors_[member.id] = dialled.message();
      }
    }
    if (missing.empty()) return OkStatus();
    if (Clock::now() >= until) return {Code::kUnavailable, "no connection with " + missing};
    Progress(std::chrono::milliseconds(5));
  }
}

Status Peers::Enter(std::span<const MemberId> members) {
  const std::set<MemberId> of(members.begin(), members.end());
  if (of.size() != members.size()) return {Code::kInvalid, "a member is in the world twice"};
  const auto me = std::ranges::find(members, self_.id);
  if (me == members.end())
    return {Code::kInvalid, NameOf(self_.id) + " is not in the world that it enters"};
  for (auto it = links_.begin(); it != links_.end();) {
    if (of.contains(it->first) && it->second->Work().ok()) {
      ++it;
      continue;
    }
    it->second->HangUp();
    quarantine_[it->first] = std::move(it->second);
    it = links_.erase(it);
  }
  rank_ = static_cast<uint32_t>(me - members.begin());
  by_rank_.assign(members.size(), nullptr);
  for (size_t r = 0; r < members.size(); ++r)
    if (const auto link = links_.find(members[r]); link != links_.end())
      by_rank_[r] = link->second.get();
  return OkStatus();
}

void Peers::Ended(const MemberId& id) {
  quarantine_.erase(id);
  errors_.erase(id);
  pods_.erase(id);
}

uint64_t Peers::quarantined() const {
  uint64_t bytes = 0;
  for (const auto& [id, link] : quarantine_)
    if (const auto* shm = dynamic_cast<const ShmLink*>(link.get())) bytes += shm->bytes();
  return bytes;
}

const char* Peers::path(uint32_t rank) const {
  if (rank == rank_) return "here";
  return by_rank_[rank] == nullptr ? "none" : by_rank_[rank]->path();
}

Geometry WholeMessages(const Format& format) {
  const uint64_t most = format.most_tokens == 0 ? 1 : format.most_tokens;
  const uint64_t bytes = std::max({WholeSlot(format, Lane::kDispatch, most),
                                   WholeSlot(format, Lane::kCombine, most), LeastSlot(format)});
  return {2, (bytes + 63) / 64 * 64};
}

}  // namespace tangram::dispatch
