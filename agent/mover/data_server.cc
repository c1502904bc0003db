#include "agent/mover/data_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>

#include "agent/base/background.h"
#include "agent/base/fault.h"
#include "agent/device/device.h"
#include "agent/device/hash.h"
#include "agent/mover/kv_wire.h"
#include "agent/mover/wire_talk.h"
#include "agent/net/address.h"
#include "agent/net/blocking.h"

namespace tangram::mover {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLookMs = 100;  // between checks of the clock
// Bytes for one connection before the others have their turn.
constexpr size_t kTurnBytes = 1 << 20;

const fault::Point kBeforeSend("data.before_send", fault::kErrors | fault::kCorruption);

}  // namespace

struct DataServer::Connection {
  Connection(UniqueFd fd, std::shared_ptr<net::Credentials> credentials, Grants* from, bool near)
      : owned(std::make_unique<net::Stream>(std::move(fd), net::Side::kAccepted,
                                            std::move(credentials))),
        stream(*owned),
        grants(from),
        of_node(near) {}

  // Reads the available bytes of a token. Errors, and the end of the stream, as in Stream::Read.
  Result<bool> ReadToken();
  // Redeems the token and prepares to send its memory. kUnauthenticated: the token is not valid.
  Status Open();
  // Begins to reply to the next request, if one has arrived.
  Status Next();

  // Sends the rest of `out`, up to a turn's bytes.
  Status Send();
  // All was sent: it waits for the next request.
  bool rests() const { return at == out.size(); }
  // Called while it rests. Releases memory that is no longer granted; the connection may stay.
  void LetGo();
  // Appends memory to `out`: in place, or to be gathered if the CPU does not reach it.
  void Put(const device::Memory& memory);
  // Hashes the next KV ranges: advances `hashed` by about a turn's bytes.
  Status Hash();
  // Writes the next bytes of `out`, as far as possible.
  Result<size_t> Write();
  // Reads a KV request and begins to reply, if one has arrived.
  Status Ask();
  // Sends the token's memory, or exports its location.
  Status Begin();
  // Copies the parts of out[at, end) that must be gathered. Only in its turn, so a connection needs
  // little memory.
  Status Gather(size_t end);
  Status Show();
  // Replies to {0, number}, received in place of a token.
  Status Answer(uint64_t number);
  Status Attach(uint64_t number);
  bool kv() const { return grant.kv.bytes > 0 && !of_node; }  // sent range by range

  std::unique_ptr<net::Stream> owned;
  net::Stream& stream;
  Grants* const grants;
  const bool of_node;  // gets the location of memory instead of bytes
  std::array<std::byte, 16> token{};
  size_t token_bytes = 0;
  Grant grant;
  net::FrameReader request = KvRequests();
  std::vector<iovec> out;
  size_t at = 0;        // index in `out`
  size_t hashed = 0;    // index in `out`: the KV ranges before it are in `digest`
  KvDigest digest;      // of the reply to a KV request,
  uint64_t answer = 0;  // the digest's value, last in `out`
  std::map<size_t, device::Memory> apart;  // by index in `out`, null there: to be gathered
  std::shared_ptr<std::byte[]> gathered;   // the last gathered bytes
  uint64_t gathered_size = 0;              // its size
  std::vector<std::byte> bad;              // fault injection: sent in place of the first piece
  std::vector<std::byte> text;             // a reply with the location of memory,
  std::vector<uint64_t> numbers;           // and the descriptors that the peer may request
  Clock::time_point moved = Clock::now();
};

void DataServer::Connection::Put(const device::Memory& memory) {
  const std::span<std::byte> bytes = device::View(memory);
  const bool reached = bytes.size() == memory.bytes;
  if (!reached) apart.emplace(out.size(), memory);
  out.push_back({reached ? bytes.data() : nullptr, memory.bytes});
}

Status DataServer::Connection::Gather(size_t end) {
  const auto first = apart.lower_bound(at), last = apart.lower_bound(end);
  size_t bytes = 0;
  for (auto it = first; it != last; ++it) bytes += it->second.bytes;
  if (bytes == 0) return OkStatus();
  device::Device& device = *first->second.device;
  if (gathered_size < bytes) {
    gathered.reset();
    gathered_size = 0;
    const uint64_t size = std::max<uint64_t>(bytes, kTurnBytes);
    auto made = device.Staging(size);
    if (!made.ok()) return made.status();
    gathered = std::move(made).value();
    gathered_size = size;
  }
  std::vector<device::CopyOp> copies;
  std::byte* to = gathered.get();
  for (auto it = first; it != last; to += it++->second.bytes) {
    copies.push_back({device::Memory::Own({to, it->second.bytes}), it->second});
    out[it->first].iov_base = to;
  }
  return device.Copy(copies).Wait();
}

// Ranges are hashed in the turn that sends them, after all earlier ones. So no reader waits for
// another's whole request, and a peer that does not read its reply costs little.
Status DataServer::Connection::Hash() {
  size_t end = hashed;
  for (size_t bytes = 0; bytes < kTurnBytes && end + 1 < out.size(); ++end) {
    bytes += out[end].iov_len;
  }
  TANGRAM_RETURN_IF_ERROR(Gather(end));
  for (; hashed < end; ++hashed) {
    const iovec& range = out[hashed];
    digest.Add(device::HashOf({static_cast<const std::byte*>(range.iov_base), range.iov_len}));
  }
  if (hashed + 1 != out.size()) return OkStatus();
  answer = digest.Value();
  ++hashed;
  return OkStatus();
}

Result<size_t> DataServer::Connection::Write() {
  if (!kv()) {
    if (apart.empty()) return stream.Write(std::span(out).subspan(at));
    size_t end = at + 1;
    if (out[at].iov_base == nullptr) {  // with as many following parts as fit in a turn
      for (size_t bytes = out[at].iov_len; end < out.size(); ++end) {
        bytes += out[end].iov_len;
        if (bytes > kTurnBytes) break;
      }
      TANGRAM_RETURN_IF_ERROR(Gather(end));
    }
    while (end < out.size() && out[end].iov_base != nullptr) ++end;
    return stream.Write(std::span(out).subspan(at, end - at));
  }
  if (at == hashed) TANGRAM_RETURN_IF_ERROR(Hash());
  return stream.Write(std::span(out).subspan(at, hashed - at));
}

Status DataServer::Connection::Send() {
  for (size_t budget = kTurnBytes; at < out.size() && budget > 0;) {
    Result<size_t> put = size_t{0};
    // The socket does not block, so the end of the lease need not wait for it.
    const auto write = [&] { put = Write(); };
    if (grant.lease == nullptr) {
      write();
    } else if (!grant.lease->Use(write)) {
      return {Code::kUnavailable, "the granted memory was released"};
    }
    if (!put.ok()) return put.status();
    size_t sent = *put;
    while (at < out.size() && sent >= out[at].iov_len) sent -= out[at++].iov_len;
    if (at < out.size()) {
      out[at].iov_base = static_cast<std::byte*>(out[at].iov_base) + sent;
      out[at].iov_len -= sent;
    }
    if (*put == 0) break;
    moved = Clock::now();
    budget -= std::min(budget, *put);
  }
  return OkStatus();
}

void DataServer::Connection::LetGo() {
  if (grant.lease == nullptr || !grant.lease->ended()) return;
  if (grant.pieces.empty() && !grant.shown) return;
  grant.pieces.clear();
  grant.shown.reset();
  out = {};
  at = 0;
  gathered.reset();
  gathered_size = 0;
  bad = text = {};
  numbers = {};
  apart.clear();
}

Status DataServer::Connection::Ask() {
  TANGRAM_RETURN_IF_ERROR(request.Read(stream));
  if (!request.whole()) return OkStatus();
  moved = Clock::now();
  const std::vector<uint8_t> body = request.Take();
  if (body.size() == kKvTokenBytes) {
    std::memcpy(token.data(), body.data(), token.size());
    TANGRAM_RETURN_IF_ERROR(Open());
    if (kv()) return OkStatus();
    return {Code::kUnauthenticated, "a token for pieces was used on a connection for KV"};
  }
  const auto ranges = RangesOf(body, grant.kv);
  if (!ranges.ok()) return ranges.status();
  out.clear();
  apart.clear();
  for (const device::Memory& range : *ranges) Put(range);
  at = hashed = 0;
  digest = {};
  out.push_back({&answer, sizeof answer});
  return OkStatus();
}

Result<bool> DataServer::Connection::ReadToken() {
  while (token_bytes < token.size()) {
    const auto got = stream.Read(std::span(token).subspan(token_bytes));
    if (!got.ok()) return got.status();
    if (*got == 0) return false;
    token_bytes += *got;
  }
  return true;
}

Status DataServer::Connection::Next() {
  if (kv()) return Ask();
  const auto whole = ReadToken();
  if (!whole.ok()) return whole.status();
  if (!*whole) return OkStatus();
  if (std::array<uint64_t, 2> question{}; of_node) {
    std::memcpy(question.data(), token.data(), sizeof question);
    if (question[0] == 0) return Answer(question[1]);
  }
  TANGRAM_RETURN_IF_ERROR(Open());
  // Other threads send KV.
  if (kv()) return {Code::kUnauthenticated, "a KV token was used on a connection for pieces"};
  return OkStatus();
}

Status DataServer::Connection::Open() {
  // A plain connection has no authenticated pod; the token is the only proof.
  std::optional<std::string> pod;
  if (stream.secure()) pod = stream.pod();
  auto redeemed = grants->Redeem({reinterpret_cast<const char*>(token.data()), token.size()}, pod);
  if (!redeemed) {
    return {Code::kUnauthenticated,
            fmt::format("pod '{}' used a token that is unknown, expired or of another pod",
                        pod.value_or("?"))};
  }
  grant = std::move(*redeemed);
  moved = Clock::now();
  token_bytes = at = 0;
  out.clear();
  return of_node ? Show() : Begin();
}

Status DataServer::Connection::Attach(uint64_t number) {
  const auto shared = grant.shown->window->memory().descriptor(number);
  if (!shared.ok()) return shared.status();
  std::vector<UniqueFd> descriptors;
  descriptors.emplace_back(fcntl((*shared)->get(), F_DUPFD_CLOEXEC, 0));
  if (!descriptors[0]) {
    return {Code::kInternal,
            fmt::format("cannot duplicate the descriptor: {}", std::strerror(errno))};
  }
  stream.Attach(std::move(descriptors));
  return OkStatus();
}

// Sent under the lease, or not at all.
Status DataServer::Connection::Answer(uint64_t number) {
  token_bytes = at = 0;
  moved = Clock::now();
  if (number > 0) {
    if (!grant.shown || !std::binary_search(numbers.begin(), numbers.end(), number - 1)) {
      return {Code::kInvalid,
              fmt::format("descriptor {} is not one of the exported descriptors", number - 1)};
    }
    TANGRAM_RETURN_IF_ERROR(Attach(number - 1));
  }
  text.assign(sizeof(uint64_t), std::byte{0});
  out.assign(1, {text.data(), text.size()});
  return OkStatus();
}

Status DataServer::Connection::Show() {
  if (!grant.shown) {
    return {Code::kInvalid, "the token does not permit export of memory on the node socket"};
  }
  const Window& window = *grant.shown->window;
  const std::vector<device::Extent>& extents = grant.shown->extents;
  numbers = grant.shown->Numbers();
  TANGRAM_RETURN_IF_ERROR(Attach(extents.empty() ? 0 : extents[0].offset / window.memory().unit));
  const uint64_t count = extents.size();
  text.clear();
  const auto add = [&](const void* from, size_t size) {
    const auto* const begin = static_cast<const std::byte*>(from);
    text.insert(text.end(), begin, begin + size);
  };
  add(window.id().data(), window.id().size());
  add(&window.memory().bytes, sizeof(uint64_t));
  add(&window.memory().unit, sizeof(uint64_t));
  add(&count, sizeof count);
  for (const device::Extent& extent : extents) {
    add(&extent.offset, sizeof extent.offset);
    add(&extent.length, sizeof extent.length);
  }
  out.push_back({text.data(), text.size()});
  return OkStatus();
}

Status DataServer::Connection::Begin() {
  apart.clear();
  for (const device::Memory& piece : grant.pieces) {
    if (piece.device != nullptr && !piece.device->has_bytes()) continue;
    // Gathered memory is sent in parts of a turn's bytes; units of a slab one by one.
    const bool reached = piece.shape == nullptr && device::View(piece).size() == piece.bytes;
    const uint64_t step = piece.shape != nullptr ? piece.shape->unit_bytes()
                          : reached              ? piece.bytes
                                                 : kTurnBytes;
    for (uint64_t from = 0; from < piece.bytes; from += step) {
      Put(piece.Part(from, std::min(step, piece.bytes - from)));
    }
  }
  if (grant.kv.bytes > 0 || out.empty()) return OkStatus();
  switch (fault::Hit("data.before_send")) {
    case fault::Action::kError:
      return {Code::kInternal, "fault point data.before_send"};  // closes the connection
    case fault::Action::kCorrupt: {
      if (out[0].iov_base == nullptr) TANGRAM_RETURN_IF_ERROR(Gather(1));
      const auto* const first = static_cast<const std::byte*>(out[0].iov_base);
      bad.assign(first, first + out[0].iov_len);
      bad[0] ^= std::byte{1};
      out[0].iov_base = bad.data();
      break;
    }
    case fault::Action::kNone:
      break;
  }
  return OkStatus();
}

// One thread that serves any number of connections in turn.
class DataServer::Sender {
 public:
  Sender(bool yields, std::chrono::milliseconds rest)
      : rest_(rest),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        thread_([this, yields](const std::stop_token& stop) {
          if (yields) YieldToServing();
          Run(stop);
        }) {}
  ~Sender() {
    thread_.request_stop();
    Wake();
  }

  void Take(std::unique_ptr<Connection> connection) {
    {
      const std::scoped_lock lock(mu_);
      coming_.push_back(std::move(connection));
    }
    Wake();
  }

 private:
  void Wake() const { (void)eventfd_write(wake_.get(), 1); }
  void Run(const std::stop_token& stop);
  // False: rejected or closed.
  static bool Drive(Connection& connection);

  const std::chrono::milliseconds rest_;
  const UniqueFd wake_;
  std::mutex mu_;
  std::vector<std::unique_ptr<Connection>> coming_;
  std::jthread thread_;  // last: ends before the members it uses
};

bool DataServer::Sender::Drive(Connection& connection) {
  Status status = connection.Send();
  if (status.ok() && connection.rests()) {
    status = connection.Next();
    if (!status.ok() && status.code() == Code::kUnavailable) return false;  // normal end
    if (status.ok()) status = connection.Send();
  }
  if (status.ok()) return true;
  spdlog::warn("data connection failed attempt={} error=\"{}\"", connection.grant.attempt,
               status.message());
  return false;
}

void DataServer::Sender::Run(const std::stop_token& stop) {
  std::vector<std::unique_ptr<Connection>> all;
  std::vector<pollfd> polls;
  while (!stop.stop_requested()) {
    polls.assign(1, {wake_.get(), POLLIN, 0});
    bool more = false;  // buffered data, which poll() does not show
    for (const auto& connection : all) {
      const bool asks = connection->rests();
      polls.push_back({connection->stream.fd(), static_cast<short>(asks ? POLLIN : POLLOUT), 0});
      more = more || (asks && connection->stream.Buffered());
    }
    (void)poll(polls.data(), polls.size(), more ? 0 : kLookMs);
    const auto now = Clock::now();
    for (size_t i = 0; i < all.size(); ++i) {
      const bool due = polls[i + 1].revents != 0 || all[i]->stream.Buffered();
      const bool rests = all[i]->rests();
      if (due ? !Drive(*all[i]) : now - all[i]->moved > (rests ? rest_ : limits::kDataSilence)) {
        all[i].reset();
      } else if (!due && rests) {
        all[i]->LetGo();
      }
    }
    std::erase(all, nullptr);
    if (polls[0].revents == 0) continue;
    eventfd_t ignored = 0;
    (void)eventfd_read(wake_.get(), &ignored);
    const std::scoped_lock lock(mu_);
    std::move(coming_.begin(), coming_.end(), std::back_inserter(all));
    coming_.clear();
  }
}

Result<std::unique_ptr<DataServer>> DataServer::Start(Options options, Grants* grants) {
  auto fd = net::Listen(options.listen);
  if (!fd.ok()) return fd.status();
  const auto port = net::PortOf(fd->get());
  if (!port.ok()) return port.status();
  UniqueFd node;
  if (!options.node_socket_dir.empty()) {
    const std::string data = net::JoinHostPort(options.advertise, *port);
    auto listener = net::Listen(NodeSocket(options.node_socket_dir, data));
    if (!listener.ok()) return listener.status();
    node = std::move(listener).value();
  }
  try {
    return std::unique_ptr<DataServer>(
        new DataServer(std::move(options), std::move(fd).value(), *port, std::move(node), grants));
  } catch (const std::system_error& e) {
    return Status{Code::kInternal,
                  fmt::format("cannot start the threads of the data port: {}", e.what())};
  }
}

std::string DataServer::NodeSocket(const std::string& folder, const std::string& data) {
  return fmt::format("{}{}/{}.sock", net::kUnix, folder, data);
}

DataServer::DataServer(Options options, UniqueFd listener, uint16_t port, UniqueFd node,
                       Grants* grants)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      port_(port),
      node_(std::move(node)),
      grants_(grants) {
  for (size_t i = 0; i < options_.piece_senders; ++i) {
    pieces_.push_back(std::make_unique<Sender>(true, options_.rest));
  }
  for (size_t i = 0; i < options_.kv_senders; ++i) {
    kv_.push_back(std::make_unique<Sender>(false, options_.rest));
  }
  door_ = std::jthread([this](const std::stop_token& stop) { Door(stop); });
}

DataServer::~DataServer() {
  if (node_) {  // a peer must not find a socket without a listener
    const std::string socket =
        NodeSocket(options_.node_socket_dir, net::JoinHostPort(options_.advertise, port_));
    unlink(socket.c_str() + net::kUnix.size());
  }
}

bool DataServer::Accept(int listener, net::Strangers<Connection>* strangers) {
  auto fd = net::Accept(listener, options_.tcp);
  if (!fd.ok()) {
    spdlog::error("data port cannot accept a connection error=\"{}\"", fd.status().message());
    return false;
  }
  if (*fd) {
    strangers->Enter(std::make_unique<Connection>(std::move(fd).value(), options_.credentials,
                                                  grants_, listener == node_.get()),
                     Clock::now());
  }
  return true;
}

void DataServer::Door(const std::stop_token& stop) {
  constexpr size_t kListeners = 2;
  net::Strangers<Connection> strangers(options_.strangers);
  std::vector<pollfd> polls;
  auto full_until = Clock::now();  // out of descriptors: accepts none before
  while (!stop.stop_requested()) {
    auto now = Clock::now();
    const bool open = strangers.MayEnter(now) && now >= full_until;
    polls.clear();
    for (const UniqueFd* listener : {&listener_, &node_}) {
      polls.push_back({open ? listener->get() : -1, POLLIN, 0});
    }
    for (size_t i = 0; i < strangers.size(); ++i) {
      const net::Stream& stream = strangers.at(i).stream;
      polls.push_back({stream.fd(), stream.ready() ? short{POLLIN} : stream.waits_for(), 0});
    }
    if (poll(polls.data(), polls.size(), kLookMs) <= 0) continue;
    for (size_t i = 0; i < strangers.size(); ++i) {
      if (polls[i + kListeners].revents == 0) continue;
      Connection& connection = strangers.at(i);
      if (!Greet(connection)) {
        strangers.Leave(i);
      } else if (connection.token_bytes == connection.token.size()) {
        Welcome(strangers.Leave(i));
      }
    }
    strangers.Sweep();
    for (size_t i = 0; i < kListeners; ++i) {
      if (polls[i].revents == 0 || !strangers.MayEnter(now)) continue;
      if (!Accept(polls[i].fd, &strangers)) full_until = now + std::chrono::milliseconds(kLookMs);
    }
  }
}

bool DataServer::Greet(Connection& connection) {
  const auto known = connection.stream.Handshake();
  Status status = known.status();
  if (status.ok() && !*known) return true;
  if (status.ok()) status = connection.ReadToken().status();
  if (!status.ok()) spdlog::debug("data connection rejected error=\"{}\"", status.message());
  return status.ok();
}

void DataServer::Welcome(std::unique_ptr<Connection> connection) {
  if (std::memcmp(connection->token.data(), kWireToken.data(), kWireToken.size()) == 0) {
    if (options_.wires == nullptr || connection->of_node) {
      spdlog::warn("data connection rejected, this agent has no comm library pod={}",
                   connection->stream.pod());
      return;
    }
    ++welcomed_;
    options_.wires(std::move(connection->owned));
    return;
  }
  if (const Status status = connection->Open(); !status.ok()) {
    spdlog::warn("data connection rejected error=\"{}\"", status.message());
    return;
  }
  ++welcomed_;
  auto& senders = connection->grant.kv.bytes > 0 ? kv_ : pieces_;  // also for locations
  senders[turn_++ % senders.size()]->Take(std::move(connection));
}

}  // namespace tangram::mover
