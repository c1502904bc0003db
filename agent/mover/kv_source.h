// KV of another agent's rank, as a source of a job: read range by range from its region, over one
// channel per attempt. Transports keep the connection for later attempts. So a flip needs no
// handshake with a peer whose KV was copied ahead, or in an earlier flip.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/mover/mover.h"
#include "agent/mover/transport.h"
#include "tangram/v1/engine.pb.h"

namespace tangram::mover {

// The channel to one rank, over any transport that reaches it. One thread at a time.
class KvLink {
 public:
  KvLink(Opener opener, std::shared_ptr<Transports> transports, v1::Header header,
         v1::PeerAddress peer)
      : opener_(std::move(opener)),
        transports_(std::move(transports)),
        header_(std::move(header)),
        peer_(std::move(peer)) {}

  const std::string& member() const { return peer_.member(); }
  uint64_t attempt() const { return header_.attempt(); }
  // The transport of the channel, or of the last one; empty before the first.
  std::string transport() const { return transport_ == nullptr ? "" : transport_->name(); }
  // At most kMostRanges ranges of at most kMostRangeBytes each; errors as in KvChannel::Read. An
  // error ends the channel; the next read opens another.
  Status Read(std::span<const KvRange> ranges, const std::stop_token& stop);

 private:
  Status Connect(const std::stop_token& stop);  // if not yet connected
  Result<std::unique_ptr<KvChannel>> Open(Transport& transport, const std::stop_token& stop);

  const Opener opener_;
  const std::shared_ptr<Transports> transports_;
  const v1::Header header_;
  const v1::PeerAddress peer_;
  Transport* transport_ = nullptr;  // of the channel
  std::unique_ptr<KvChannel> channel_;
};

// Offsets of a job's units in the regions of their sources: by range, by unit.
using KvOffsets = std::vector<std::vector<uint64_t>>;

// A connection as a source. A range has at most as many units as a read allows, each of less than 4
// GiB.
class KvSource final : public Source {
 public:
  KvSource(KvLink* link, const KvOffsets* offsets) : link_(link), offsets_(offsets) {}
  std::string name() const override { return "KV of " + link_->member(); }
  Status Bring(std::span<const mover::Range> job, std::span<const size_t> wanted,
               const Arrived& arrived, const std::stop_token& stop) override;

 private:
  KvLink* const link_;
  const KvOffsets* const offsets_;
};

}  // namespace tangram::mover
