#include "agent/mover/wire_transport.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "agent/base/fault.h"
#include "agent/device/device.h"
#include "agent/mover/kv_wire.h"
#include "agent/mover/wire_cut.h"
#include "agent/mover/wire_order.h"
#include "agent/net/blocking.h"

namespace tangram::mover {

// The reader's end of a channel, with its connection. One thread at a time.
class WireTransport::Link {
 public:
  // Uses a received message; its memory is valid until this returns.
  using Take = std::function<Status(size_t message, const device::Memory& bytes)>;

  Link(std::unique_ptr<net::Stream> stream, std::unique_ptr<device::Wire> wire,
       std::shared_ptr<Turns> turns, const WirePatience& patience)
      : talk_(std::move(stream), *patience.time),
        wire_(std::move(wire)),
        turns_(std::move(turns)),
        patience_(patience) {}

  bool Gone() const { return talk_.stream().Disturbed(); }
  uint64_t most() const { return wire_->Buffer(0).bytes; }
  void set_bytes(std::chrono::milliseconds most) {
    patience_.bytes = std::min(patience_.bytes, most);
  }

  Status Open(const std::string& kind, const std::string& hello, const std::stop_token& stop) {
    TANGRAM_RETURN_IF_ERROR(talk_.Begin(stop));
    const auto head = WireBody().Add(kind).Add('\0').Add(hello);
    TANGRAM_RETURN_IF_ERROR(talk_.Say(Said::kHello, head.bytes(), stop));
    const auto answer = talk_.Expect(Said::kAnswer, patience_.connect, stop);
    if (!answer.ok()) return answer.status();
    TANGRAM_RETURN_IF_ERROR(wire_->Answered({answer->begin(), answer->end()}));
    TANGRAM_RETURN_IF_ERROR(talk_.Until([&] { return wire_->Open(); }, patience_.connect,
                                        "connecting the comm channel", stop));
    return talk_.Expect(Said::kOpen, patience_.connect, stop).status();
  }

  Status Say(Said said, const WireBody& body, const std::stop_token& stop) {
    return talk_.Say(said, body.bytes(), stop);
  }

  // Requests a batch and takes its messages, in order. After an error the channel is unusable.
  Status Bring(Said what, const WireBody& asked, const Cut& cut, const Take& take, uint64_t* digest,
               const std::stop_token& stop) {
    WireReader order;
    (void)order.Begin();
    const auto act = [&](WireEvent event) {
      const WireAct next = order.On(event);
      if (next == WireAct::kAbort || next == WireAct::kAbortBare) wire_->Abort();
      if (next == WireAct::kAbort || next == WireAct::kGiveBack) turns_->receives.Give();
      return next;
    };
    Status status = talk_.Until([&] { return turns_->receives.TakeWithin(kTurnLook); },
                                patience_.turn, "waiting for the receive lock", stop);
    if (status.ok()) {
      (void)act(WireEvent::kTurn);
      status = talk_.Say(what, asked.bytes(), stop);
    }
    if (status.ok()) status = talk_.Expect(Said::kGo, patience_.turn, stop).status();
    if (status.ok()) {
      (void)act(WireEvent::kGo);
      status = Receive(
          cut, take, [&] { (void)act(WireEvent::kDone); }, stop);
    }
    if (!status.ok()) {
      (void)act(WireEvent::kBroken);
      return status;
    }
    const auto over = talk_.Expect(Said::kOver, patience_.bytes, stop);
    if (!over.ok()) return over.status();
    if (over->size() != sizeof *digest) {
      return {Code::kUnavailable, "the last comm message has no digest"};
    }
    std::memcpy(digest, over->data(), sizeof *digest);
    return OkStatus();
  }

 private:
  static constexpr std::chrono::milliseconds kTurnLook{5};

  Status Receive(const Cut& cut, const Take& take, const std::function<void()>& received,
                 const std::stop_token& stop) {
    constexpr size_t kBuffers = device::Wire::kBuffers;
    for (size_t i = 0; i < std::min(cut.size(), kBuffers); ++i) {
      TANGRAM_RETURN_IF_ERROR(wire_->Receive(i, cut[i]));
    }
    for (size_t i = 0; i < cut.size(); ++i) {
      const size_t buffer = i % kBuffers;
      TANGRAM_RETURN_IF_ERROR(
          talk_.Until([&] { return wire_->Done(buffer); }, patience_.bytes,
                      fmt::format("transfer of {} bytes over the comm channel", cut[i]), stop));
      // Releases the turn before the last message is unpacked.
      if (i + 1 == cut.size()) received();
      TANGRAM_RETURN_IF_ERROR(take(i, wire_->Buffer(buffer).Part(0, cut[i])));
      if (i + kBuffers < cut.size()) {
        TANGRAM_RETURN_IF_ERROR(wire_->Receive(buffer, cut[i + kBuffers]));
      }
    }
    if (cut.empty()) received();
    return OkStatus();
  }

  WireTalk talk_;
  const std::unique_ptr<device::Wire> wire_;
  const std::shared_ptr<Turns> turns_;
  WirePatience patience_;
};

class WireTransport::Kv final : public KvChannel {
 public:
  explicit Kv(std::unique_ptr<Link> link) : link_(std::move(link)) {}
  bool Gone() const override { return link_->Gone(); }

  Status Read(std::span<const KvRange> ranges, bool spoil, const std::stop_token& stop) override {
    if (ranges.empty()) return OkStatus();
    std::vector<device::Memory> to;
    WireBody list;
    for (const KvRange& range : ranges) {
      to.push_back(range.to);
      list.Add(range.source_offset).Add(static_cast<uint32_t>(range.to.bytes));
    }
    const auto cut = CutFor(to, link_->most());
    if (!cut.ok()) return cut.status();
    CutWalk walk(to);
    const auto take = [&](size_t i, const device::Memory& bytes) -> Status {
      const auto parts = walk.Next((*cut)[i]);
      if (!parts.ok()) return parts.status();
      std::vector<device::CopyOp> copies;
      for (const CutWalk::Part& part : *parts) {
        copies.push_back({part.part, bytes.Part(part.in_message, part.part.bytes)});
      }
      return bytes.device->Copy(copies).Wait();
    };
    uint64_t sent = 0;
    TANGRAM_RETURN_IF_ERROR(
        link_->Bring(Said::kRead, WireBody().Add(*cut).Add(list.bytes()), *cut, take, &sent, stop));
    std::vector<uint64_t> hashes(to.size());
    TANGRAM_RETURN_IF_ERROR(HashAll(to, hashes));
    if (spoil) hashes[0] ^= 1;
    KvDigest digest;
    for (const uint64_t hash : hashes) digest.Add(hash);
    if (sent == digest.Value()) return OkStatus();
    return {Code::kCorrupt,
            fmt::format("{} ranges differ from the bytes that the source sent", ranges.size())};
  }

 private:
  const std::unique_ptr<Link> link_;
};

WireTransport::WireTransport(std::shared_ptr<device::Wires> wires, std::shared_ptr<Turns> turns,
                             std::shared_ptr<net::Credentials> credentials,
                             const WirePatience& patience)
    : wires_(std::move(wires)),
      turns_(std::move(turns)),
      credentials_(std::move(credentials)),
      patience_(patience) {}

WireTransport::~WireTransport() = default;

Result<std::unique_ptr<WireTransport::Link>> WireTransport::Connect(const std::string& data,
                                                                    const std::stop_token& stop) {
  auto stream = net::Connect(data, credentials_, stop);
  if (!stream.ok()) return stream.status();
  std::string hello;
  auto wire = wires_->Offer(&hello);
  if (!wire.ok()) return wire.status();
  auto link =
      std::make_unique<Link>(std::move(stream).value(), std::move(wire).value(), turns_, patience_);
  TANGRAM_RETURN_IF_ERROR(link->Open(wires_->kind(), hello, stop));
  spdlog::info("comm channel connected peer={} comm_library={}", data, wires_->kind());
  return link;
}

Result<std::unique_ptr<WireTransport::Link>> WireTransport::Take(const v1::PeerAddress& peer,
                                                                 const std::stop_token& stop) {
  {
    const std::scoped_lock lock(mu_);
    auto idle = idle_.extract(peer.data());
    if (!idle.empty() && !idle.mapped()->Gone()) return std::move(idle.mapped());
  }
  auto link = Connect(peer.data(), stop);
  if (link.ok()) return link;
  // kUnavailable for any error: the source itself may still be reachable by another transport.
  return Status(Code::kUnavailable,
                fmt::format("no comm channel to {}: {}", peer.data(), link.status().message()));
}

Status WireTransport::Pull(const v1::PeerAddress& peer, const std::string& token,
                           std::span<const Target> targets, const std::stop_token& stop,
                           const std::function<void(uint64_t)>& done) {
  std::vector<device::Memory> to;
  for (const Target& target : targets) to.push_back(target.to);
  auto link = Take(peer, stop);
  if (!link.ok()) return link.status();
  const auto cut = CutFor(to, (*link)->most());
  if (!cut.ok()) return cut.status();
  CutWalk walk(to);
  size_t next = 0;  // first incomplete target
  const auto take = [&](size_t i, const device::Memory& bytes) -> Status {
    const auto parts = walk.Next((*cut)[i]);
    if (!parts.ok()) return parts.status();
    std::vector<device::CopyOp> copies;
    std::vector<uint64_t> hashes(parts->size());
    for (size_t p = 0; p < parts->size(); ++p) {
      const CutWalk::Part& part = (*parts)[p];
      const bool whole = part.part.bytes == to[part.memory].bytes;
      copies.push_back(
          {part.part, bytes.Part(part.in_message, part.part.bytes), whole ? &hashes[p] : nullptr});
    }
    TANGRAM_RETURN_IF_ERROR(bytes.device->Copy(copies).Wait());
    for (size_t p = 0; p < parts->size(); ++p) {
      const CutWalk::Part& part = (*parts)[p];
      const device::Memory& target = to[part.memory];
      if (part.offset + part.part.bytes < target.bytes) continue;  // the rest has not arrived yet
      uint64_t hash = hashes[p];
      if (part.offset > 0) TANGRAM_RETURN_IF_ERROR(device::HashNow(target, &hash));
      switch (fault::Hit("stage.after_fetch")) {
        case fault::Action::kCorrupt:
          hash ^= 1;
          break;
        case fault::Action::kError:
          return {Code::kUnavailable, "fault point stage.after_fetch"};
        case fault::Action::kNone:
          break;
      }
      if (hash != targets[part.memory].hash) {
        return {Code::kCorrupt, fmt::format("unit {} of {} from {} differs from its hash",
                                            part.memory, targets.size(), peer.data())};
      }
      for (; next < part.memory; ++next) done(to[next].bytes);  // targets without bytes
      done(target.bytes);
      ++next;
    }
    return OkStatus();
  };
  uint64_t ignored = 0;
  TANGRAM_RETURN_IF_ERROR(
      (*link)->Bring(Said::kPieces, WireBody().Add(token).Add(*cut), *cut, take, &ignored, stop));
  for (; next < to.size(); ++next) done(to[next].bytes);
  const std::scoped_lock lock(mu_);
  idle_.emplace(peer.data(), std::move(link).value());
  return OkStatus();
}

Result<std::unique_ptr<KvChannel>> WireTransport::OpenKv(const v1::PeerAddress& peer,
                                                         const std::string& token,
                                                         const std::stop_token& stop) {
  auto link = Connect(peer.data(), stop);
  if (!link.ok()) return link.status();
  (*link)->set_bytes(patience_.kv);  // set only now: connecting happens before the flip
  TANGRAM_RETURN_IF_ERROR((*link)->Say(Said::kKv, WireBody().Add(token), stop));
  return std::unique_ptr<KvChannel>(std::make_unique<Kv>(std::move(link).value()));
}

void WireTransport::EndAttempt() {
  decltype(idle_) gone;  // they end after the lock is released
  const std::scoped_lock lock(mu_);
  gone.swap(idle_);
}

}  // namespace tangram::mover
