// The library: one member's buffers for dispatch and combine with the others of its world. This is
// Exchange over Peers, by the names that engines know.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/dispatch/exchange.h"
#include "agent/dispatch/peers.h"

namespace tangram::dispatch {

struct BufferOptions {
  Format format;
  // Slots of a lane between two members; none: WholeMessages(format), with which a hook never
  // waits for room. Fewer bytes are enough where dispatch and combine wait.
  Geometry geometry;
  ExchangeOptions exchange;
};

class Buffer {
 public:
  // Bytes of memory that a member has for each peer of its node, by options and the most tokens
  // that a rank dispatches at once; and of packed rows and outputs in all, by `ranks`.
  struct SizeHint {
    uint64_t per_peer = 0, links = 0, packed = 0;
    uint64_t total() const { return links + packed; }
  };
  static SizeHint GetBufferSizeHint(const BufferOptions& options, uint32_t ranks,
                                    uint32_t local_experts);

  static Result<std::unique_ptr<Buffer>> Create(Member self, const BufferOptions& options,
                                                std::shared_ptr<net::Credentials> credentials);

  const Member& self() const { return peers_->self(); }
  // Connections with those that will be members, made beside steps (Peers::Prepare).
  Status Prepare(std::span<const Member> members, std::chrono::milliseconds limit) {
    return peers_->Prepare(members, limit);
  }
  // The members from here on, by rank, with the layout of their experts; nothing is built anew for
  // those that stay. What is open of the epoch before is over. Epochs only grow: kStaleEpoch.
  // kUnavailable: with one of these members there never was a connection: Prepare first. One that
  // ended or was given up since is masked from the start.
  Status UpdateMembers(uint64_t epoch, std::span<const MemberId> members,
                       std::shared_ptr<const Routes> routes);
  // A member that is no rank any more is known to have ended (Peers::Ended).
  void Ended(const MemberId& id) { peers_->Ended(id); }

  Exchange& exchange() { return *exchange_; }
  Peers& peers() { return *peers_; }

  // Dispatch that waits; with a hook: Exchange::Send, and Receive where the caller likes.
  Result<Handle> Dispatch(uint32_t moe_ordinal, const Rows& rows);
  // Combine that waits.
  Status Combine(const Handle& handle, const void* outputs, void* y);

 private:
  Buffer(std::unique_ptr<Peers> peers, std::unique_ptr<Exchange> exchange)
      : peers_(std::move(peers)), exchange_(std::move(exchange)) {}

  std::unique_ptr<Peers> peers_;
  std::unique_ptr<Exchange> exchange_;
  bool entered_ = false;
};

}  // namespace tangram::dispatch
