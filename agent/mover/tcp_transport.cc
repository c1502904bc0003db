#include "agent/mover/tcp_transport.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "agent/base/fault.h"
#include "agent/device/device.h"
#include "agent/mover/kv_wire.h"
#include "agent/net/blocking.h"

namespace tangram::mover {
namespace {

const fault::Point kAfterFetch("stage.after_fetch", fault::kErrors | fault::kCorruption);

}  // namespace

class TcpTransport::Kv final : public KvChannel {
 public:
  Kv(TcpTransport* transport, std::string data, std::unique_ptr<net::Stream> stream)
      : transport_(transport), data_(std::move(data)), stream_(std::move(stream)) {}
  ~Kv() override {
    if (!failed_) transport_->RestKv(data_, std::move(stream_));
  }
  bool Gone() const override { return stream_->Disturbed(); }
  Status Read(std::span<const KvRange> ranges, bool spoil, const std::stop_token& stop) override {
    failed_ = true;  // until all requested bytes were read
    TANGRAM_RETURN_IF_ERROR(ReadAll(ranges, spoil, stop));
    failed_ = false;
    return OkStatus();
  }

 private:
  Status ReadAll(std::span<const KvRange> ranges, bool spoil, const std::stop_token& stop);

  TcpTransport* const transport_;
  const std::string data_;
  std::unique_ptr<net::Stream> stream_;
  bool failed_ = false;
  Arrivals::Buffers buffers_;
};

Status TcpTransport::Kv::ReadAll(std::span<const KvRange> ranges, bool spoil,
                                 const std::stop_token& stop) {
  std::vector<std::byte> request(4 + ranges.size() * 12);
  const auto count = static_cast<uint32_t>(ranges.size());
  std::memcpy(request.data(), &count, sizeof count);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto length = static_cast<uint32_t>(ranges[i].to.bytes);
    std::memcpy(request.data() + 4 + i * 12, &ranges[i].source_offset, 8);
    std::memcpy(request.data() + 4 + i * 12 + 8, &length, 4);
  }
  TANGRAM_RETURN_IF_ERROR(net::WriteAll(*stream_, request, stop));
  KvDigest digest;
  Arrivals arrivals(&buffers_, [&](size_t, uint64_t hash) {
    digest.Add(hash);
    return OkStatus();
  });
  for (const KvRange& range : ranges) {
    TANGRAM_RETURN_IF_ERROR(arrivals.Take(range.to, [&](std::span<std::byte> bytes) -> Status {
      TANGRAM_RETURN_IF_ERROR(net::ReadAll(*stream_, bytes, stop));
      if (!bytes.empty() && std::exchange(spoil, false)) bytes[0] ^= std::byte{1};
      return OkStatus();
    }));
  }
  TANGRAM_RETURN_IF_ERROR(arrivals.Finish());
  uint64_t sent = 0;
  TANGRAM_RETURN_IF_ERROR(
      net::ReadAll(*stream_, std::as_writable_bytes(std::span(&sent, 1)), stop));
  if (sent == digest.Value()) return OkStatus();
  return {Code::kCorrupt,
          fmt::format("{} ranges differ from the bytes that the source sent", ranges.size())};
}

Status PieceLink::Pull(const std::string& token, std::span<const Target> targets,
                       const std::stop_token& stop, const std::function<void(uint64_t)>& done) {
  // The source closes connections that rest too long.
  if (Gone()) {
    auto connected = net::Connect(data_, credentials_, stop);
    if (!connected.ok()) return connected.status();
    stream_ = std::move(connected).value();
  }
  Status status = Read(token, targets, stop, done);
  if (!status.ok()) stream_.reset();  // remaining bytes belong to the failed request
  return status;
}

Status PieceLink::Read(const std::string& token, std::span<const Target> targets,
                       const std::stop_token& stop, const std::function<void(uint64_t)>& done) {
  net::Stream& stream = *stream_;
  TANGRAM_RETURN_IF_ERROR(net::WriteAll(stream, std::as_bytes(std::span(token)), stop));
  Arrivals arrivals(&buffers_, [&](size_t i, uint64_t hash) -> Status {
    if (hash != targets[i].hash) {
      return {Code::kCorrupt,
              fmt::format("unit {} of {} from {} differs from its hash", i, targets.size(), data_)};
    }
    done(targets[i].to.bytes);
    return OkStatus();
  });
  const auto receive = [&](std::span<std::byte> bytes) -> Status {
    TANGRAM_RETURN_IF_ERROR(net::ReadAll(stream, bytes, stop));
    switch (fault::Hit("stage.after_fetch")) {
      case fault::Action::kCorrupt:
        bytes[0] ^= std::byte{1};
        return OkStatus();
      case fault::Action::kError:
        return {Code::kUnavailable, "fault point stage.after_fetch"};
      case fault::Action::kNone:
        break;
    }
    return OkStatus();
  };
  for (const Target& target : targets) {
    TANGRAM_RETURN_IF_ERROR(arrivals.Take(target.to, receive));
  }
  return arrivals.Finish();
}

std::unique_ptr<PieceLink> TcpTransport::Take(const std::string& data) {
  const std::scoped_lock lock(mu_);
  auto idle = idle_.extract(data);
  if (!idle.empty()) return std::move(idle.mapped());
  return std::make_unique<PieceLink>(credentials_, data);
}

Status TcpTransport::Pull(const v1::PeerAddress& peer, const std::string& token,
                          std::span<const Target> targets, const std::stop_token& stop,
                          const std::function<void(uint64_t)>& done) {
  std::unique_ptr<PieceLink> link = Take(peer.data());
  Status status = link->Pull(token, targets, stop, done);
  if (status.ok()) {
    const std::scoped_lock lock(mu_);
    idle_.emplace(peer.data(), std::move(link));
  }
  return status;
}

Result<std::unique_ptr<KvChannel>> TcpTransport::OpenKv(const v1::PeerAddress& peer,
                                                        const std::string& token,
                                                        const std::stop_token& stop) {
  const auto bytes = std::as_bytes(std::span(token));
  while (std::unique_ptr<net::Stream> kept = TakeKv(peer.data())) {
    if (kept->Disturbed() || !net::WriteAll(*kept, KvTokenRequest(bytes), stop).ok()) continue;
    return std::unique_ptr<KvChannel>(std::make_unique<Kv>(this, peer.data(), std::move(kept)));
  }
  auto stream = net::Connect(peer.data(), credentials_, stop, kv_limits_);
  if (!stream.ok()) return stream.status();
  TANGRAM_RETURN_IF_ERROR(net::WriteAll(**stream, bytes, stop));
  return std::unique_ptr<KvChannel>(
      std::make_unique<Kv>(this, peer.data(), std::move(stream).value()));
}

std::unique_ptr<net::Stream> TcpTransport::TakeKv(const std::string& data) {
  const std::scoped_lock lock(mu_);
  auto idle = idle_kv_.extract(data);
  return idle.empty() ? nullptr : std::move(idle.mapped());
}

void TcpTransport::RestKv(const std::string& data, std::unique_ptr<net::Stream> stream) {
  if (stream->Disturbed()) return;
  const std::scoped_lock lock(mu_);
  idle_kv_.emplace(data, std::move(stream));
}

void TcpTransport::EndAttempt() {
  const std::scoped_lock lock(mu_);
  std::erase_if(idle_, [](const auto& link) { return link.second->Gone(); });
  std::erase_if(idle_kv_, [](const auto& stream) { return stream.second->Disturbed(); });
}

}  // namespace tangram::mover
