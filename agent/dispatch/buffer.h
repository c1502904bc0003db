// The library: one member's buffers for dispatch and combine with the others of its world. It is
// Exchange over Peers, with the names that engines know.
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
  // Slots of a lane between two members. None: WholeMessages(format), with which a hook never waits
  // for room. Fewer bytes are enough if dispatch and combine block.
  Geometry geometry;
  ExchangeOptions exchange;
};

class Buffer {
 public:
  // Bytes of a member's memory by options and the maximum tokens of a rank per dispatch: for each
  // peer of its node, and for packed rows and outputs in all, by `ranks`.
  struct SizeHint {
    uint64_t per_peer = 0, links = 0, packed = 0;
    uint64_t total() const { return links + packed; }
  };
  static SizeHint GetBufferSizeHint(const BufferOptions& options, uint32_t ranks,
                                    uint32_t local_experts);

  static Result<std::unique_ptr<Buffer>> Create(Member self, const BufferOptions& options,
                                                std::shared_ptr<net::Credentials> credentials);

  const Member& self() const { return peers_->self(); }
  // Connects to future members, while steps run (Peers::Prepare).
  Status Prepare(std::span<const Member> members, std::chrono::milliseconds limit) {
    return peers_->Prepare(members, limit);
  }
  // Sets the members, by rank, and the layout of their experts; links to members that stay are
  // kept. Open pairs of the previous epoch end. Epochs only grow: kStaleEpoch. kUnavailable: one of
  // these members was never connected; call Prepare first. A member whose link ended or was dropped
  // since is masked from the start.
  Status UpdateMembers(uint64_t epoch, std::span<const MemberId> members,
                       std::shared_ptr<const Routes> routes);
  // Reports that the process of a former member has ended (Peers::Ended).
  void Ended(const MemberId& id) { peers_->Ended(id); }

  Exchange& exchange() { return *exchange_; }
  Peers& peers() { return *peers_; }

  // Blocking dispatch. With a hook: Exchange::Send, and Receive at any later moment.
  Result<Handle> Dispatch(uint32_t moe_ordinal, const Rows& rows);
  // Blocking combine.
  Status Combine(const Handle& handle, const void* outputs, void* y);

 private:
  Buffer(std::unique_ptr<Peers> peers, std::unique_ptr<Exchange> exchange)
      : peers_(std::move(peers)), exchange_(std::move(exchange)) {}

  std::unique_ptr<Peers> peers_;
  std::unique_ptr<Exchange> exchange_;
  bool entered_ = false;
};

}  // namespace tangram::dispatch
