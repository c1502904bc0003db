// Sends the kernels' data over comm channels, between ranks that do not reach each other's memory.
#include <algorithm>
#include <thread>
#include <utility>

#include "agent/base/wait.h"
#include "agent/dispatch/gpu/device_buffer.h"

namespace tangram::dispatch {
namespace {

constexpr size_t kOut = 0, kIn = 1;  // buffers of a channel
constexpr auto kAsleep = std::chrono::microseconds(50);

}  // namespace

bool DeviceBuffer::Wired() const {
  return std::ranges::any_of(members_, [&](const MemberId& id) {
    const auto peer = peers_.find(id);
    return peer != peers_.end() && peer->second.wires.has_value();
  });
}

Status DeviceBuffer::PostWires(Pair& pair, uint32_t lane, device::Queue& queue) {
  // A channel has one buffer per direction: the previous pair must leave it first.
  Pair& other = pairs_[(pair.number + 1) % 2];
  TANGRAM_RETURN_IF_ERROR(AwaitWires(other, lane, queue));
  TANGRAM_RETURN_IF_ERROR(Refresh(queue));
  const auto [at, bytes] = RangeOf(pair.parameters, lane);
  pair.under_way[lane] = true;
  for (uint32_t r = 0; r < members_.size(); ++r) {
    Peer& peer = peers_[members_[r]];
    if (!peer.wires || active_[r] == 0) continue;
    device::Wire& wire = *peer.wires->lanes[lane];
    TANGRAM_RETURN_IF_ERROR(queue.Copy(wire.Buffer(kOut).address, peer.outbox.at() + at, bytes));
    TANGRAM_RETURN_IF_ERROR(queue.Wait());
    // Both ends use the same order: of two crossing messages, that of the lower rank is posted
    // first.
    Status posted;
    for (const bool first : {true, false})
      if (posted.ok())
        posted = (rank_ < r) == first ? wire.Send(kOut, bytes) : wire.Receive(kIn, bytes);
    if (posted.ok()) continue;
    peer.gone = true;
    TANGRAM_RETURN_IF_ERROR(Mask(r, posted.message(), queue));
  }
  return OkStatus();
}

Status DeviceBuffer::AwaitWires(Pair& pair, uint32_t lane, device::Queue& queue) {
  if (!std::exchange(pair.under_way[lane], false)) return OkStatus();
  const auto [at, bytes] = RangeOf(pair.parameters, lane);
  // Twice as long for sums: a peer may first have waited for another rank's rows, and a channel has
  // no heartbeats.
  const auto limit = (lane + 1) * options_.timeout;
  Wait silent(members_.size(), limit, limit, Wait::Clock::now());
  std::vector<uint32_t> waiting;
  for (uint32_t r = 0; r < members_.size(); ++r)
    if (peers_[members_[r]].wires && active_[r] != 0) waiting.push_back(r);
  while (!waiting.empty()) {
    silent.Look(Wait::Clock::now());
    for (size_t i = 0; i < waiting.size();) {
      const uint32_t r = waiting[i];
      Peer& peer = peers_[members_[r]];
      device::Wire& wire = *peer.wires->lanes[lane];
      const Result<bool> came = wire.Done(kIn), went = wire.Done(kOut);
      Status lost = came.ok() ? went.status() : came.status();
      if (lost.ok() && silent.Silent(r))
        lost = {Code::kUnavailable,
                "nothing came from it for " +
                    std::to_string(
                        std::chrono::duration_cast<std::chrono::milliseconds>(limit).count()) +
                    " ms"};
      if (lost.ok() && !(*came && *went)) {
        ++i;
        continue;
      }
      waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(i));
      if (lost.ok()) {
        TANGRAM_RETURN_IF_ERROR(queue.Copy(peer.inbox.at() + at, wire.Buffer(kIn).address, bytes));
        continue;
      }
      for (const auto& each : peer.wires->lanes) each->Abort();
      peer.gone = true;
      TANGRAM_RETURN_IF_ERROR(Mask(r, lost.message(), queue));
    }
    if (!waiting.empty()) std::this_thread::sleep_for(kAsleep);
  }
  return queue.Wait();  // the buffers are free again
}

}  // namespace tangram::dispatch
