#include "agent/mover/puller.h"

#include <fmt/format.h>

#include "agent/base/fault.h"
#include "agent/device/device.h"
#include "agent/net/blocking.h"

namespace tangram::mover {
namespace {

const fault::Point kAfterFetch("stage.after_fetch", fault::kErrors | fault::kCorruption);

}  // namespace

Status PieceLink::Pull(const std::string& token, std::span<const Target> targets,
                       const std::stop_token& stop, const std::function<void(uint64_t)>& done) {
  // The source closes what was silent for long.
  if (stream_ != nullptr && stream_->Disturbed()) stream_.reset();
  if (stream_ == nullptr) {
    auto connected = net::Connect(data_, credentials_, stop);
    if (!connected.ok()) return connected.status();
    stream_ = std::move(connected).value();
  }
  Status status = Read(token, targets, stop, done);
  if (!status.ok()) stream_.reset();  // what else is on the way belongs to nothing
  return status;
}

Status PieceLink::Read(const std::string& token, std::span<const Target> targets,
                       const std::stop_token& stop, const std::function<void(uint64_t)>& done) {
  net::Stream& stream = *stream_;
  TANGRAM_RETURN_IF_ERROR(net::WriteAll(stream, std::as_bytes(std::span(token)), stop));
  for (size_t i = 0; i < targets.size(); ++i) {
    const device::Memory& to = targets[i].to;
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
    TANGRAM_RETURN_IF_ERROR(device::Fill(to, receive));
    uint64_t hash = 0;
    TANGRAM_RETURN_IF_ERROR(device::HashNow(to, &hash));
    if (hash != targets[i].hash) {
      return {Code::kCorrupt,
              fmt::format("unit {} of {} from {} differs from its hash", i, targets.size(), data_)};
    }
    done(to.bytes);
  }
  return OkStatus();
}

std::unique_ptr<PieceLink> PieceLinks::Take(const std::string& data) {
  const std::scoped_lock lock(mu_);
  auto idle = idle_.extract(data);
  if (!idle.empty()) return std::move(idle.mapped());
  return std::make_unique<PieceLink>(credentials_, data);
}

Status PieceLinks::Pull(const std::string& data, const std::string& token,
                        std::span<const Target> targets, const std::stop_token& stop,
                        const std::function<void(uint64_t)>& done) {
  std::unique_ptr<PieceLink> link = Take(data);
  Status status = link->Pull(token, targets, stop, done);
  if (status.ok()) {
    const std::scoped_lock lock(mu_);
    idle_.emplace(data, std::move(link));
  }
  return status;
}

void PieceLinks::Close() {
  decltype(idle_) gone;  // they end after the lock
  const std::scoped_lock lock(mu_);
  gone.swap(idle_);
}

}  // namespace tangram::mover
