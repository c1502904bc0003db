#include "agent/dispatch/tcp.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace tangram::dispatch {
namespace {

net::FrameReader Reader(uint64_t most) {
  return {sizeof(uint64_t), [most](std::span<const std::byte> head) -> Result<size_t> {
            uint64_t bytes = 0;
            std::memcpy(&bytes, head.data(), sizeof bytes);
            if (bytes <= most) return static_cast<size_t>(bytes);
            return Status{Code::kInternal, "a slot of " + std::to_string(bytes) +
                                               " bytes, and the most are " + std::to_string(most)};
          }};
}

}  // namespace

TcpLink::TcpLink(std::array<std::unique_ptr<net::Stream>, kLanes> streams, const Geometry& geometry)
    : geometry_(geometry),
      ways_{Way{std::move(streams[0]), Reader(geometry.slot_bytes), {}, false, {}, 0, {}},
            Way{std::move(streams[1]), Reader(geometry.slot_bytes), {}, false, {}, 0, {}}} {}

std::span<uint8_t> TcpLink::Room(Lane lane, size_t want) {
  Way& way = ways_[static_cast<size_t>(lane)];
  Write(way);
  if (way.stream == nullptr || way.out.size() >= geometry_.slots) return {};
  // The head comes first; both are at multiples of 8.
  way.room.resize(sizeof(FrameHead) + std::min<size_t>(want, geometry_.slot_bytes));
  return std::span(way.room).subspan(sizeof(FrameHead));
}

void TcpLink::Publish(Lane lane, size_t bytes) {
  Way& way = ways_[static_cast<size_t>(lane)];
  const FrameHead head{bytes};
  std::memcpy(way.room.data(), &head, sizeof head);
  way.room.resize(sizeof head + bytes);
  way.out.push_back(std::exchange(way.room, {}));
  Write(way);
}

void TcpLink::Write(Way& way) {
  while (way.stream != nullptr && broken_.ok() && !way.out.empty()) {
    std::vector<uint8_t>& first = way.out.front();
    const iovec part{first.data() + way.sent, first.size() - way.sent};
    const Result<size_t> put = way.stream->Write(std::span(&part, 1));
    if (!put.ok()) {
      broken_ = put.status();
      return;
    }
    if (*put == 0) return;
    way.sent += *put;
    if (way.sent < first.size()) continue;
    way.out.pop_front();
    way.sent = 0;
  }
}

void TcpLink::Read(Way& way) {
  while (way.stream != nullptr && !way.here) {
    const Status read = way.reader.Read(*way.stream);
    if (!read.ok()) {
      if (broken_.ok()) broken_ = read;
      return;
    }
    if (!way.reader.whole()) return;
    way.front = way.reader.Take();
    way.here = !way.front.empty();
    if (!way.here) ++beats_;
  }
}

std::span<const uint8_t> TcpLink::Front(Lane lane) {
  Way& way = ways_[static_cast<size_t>(lane)];
  Write(way);
  Read(way);
  if (!way.here) return {};
  return way.front;
}

void TcpLink::Pop(Lane lane) { ways_[static_cast<size_t>(lane)].here = false; }

void TcpLink::Beat() {
  // Data on its way is as good as a heartbeat.
  for (Way& way : ways_) {
    if (way.stream == nullptr || !way.out.empty()) continue;
    way.out.emplace_back(sizeof(FrameHead), 0);
    Write(way);
  }
}

Status TcpLink::Work() {
  if (ways_[0].stream == nullptr) return {Code::kUnavailable, "this rank disconnected"};
  for (Way& way : ways_) {
    Write(way);
    Read(way);
  }
  return broken_;
}

void TcpLink::HangUp() {
  for (Way& way : ways_) {
    way.stream.reset();
    way.here = false;
  }
}

}  // namespace tangram::dispatch
