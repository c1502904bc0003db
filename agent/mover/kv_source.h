// KV of another agent's rank, as a source of a job: read range by range from its region, over one
// connection that stays for the attempt, so that a flip pays for no handshake.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/mover/mover.h"
#include "agent/mover/puller.h"
#include "agent/net/stream.h"
#include "tangram/v1/engine.pb.h"

namespace tangram::mover {

// The connection to one rank. One thread at a time.
class KvLink {
 public:
  KvLink(Opener opener, std::shared_ptr<net::Credentials> credentials, v1::Header header,
         v1::PeerAddress peer)
      : opener_(std::move(opener)),
        credentials_(std::move(credentials)),
        header_(std::move(header)),
        peer_(std::move(peer)) {}

  const std::string& member() const { return peer_.member(); }
  uint64_t attempt() const { return header_.attempt(); }
  // Connects, if not yet connected.
  Status Warm(const std::stop_token& stop);

  struct Range {
    uint64_t source_offset = 0;
    device::Memory to;
  };
  // At most kMostRanges, of at most kMostRangeBytes each (data_server.h). kCorrupt: what came
  // differs from what the source says that it sent; kUnavailable: the source is away, or refuses.
  // Either ends the connection.
  Status Read(std::span<const Range> ranges, const std::stop_token& stop);

 private:
  Status Ask(std::span<const Range> ranges, const std::stop_token& stop);
  Status Receive(std::span<const Range> ranges, bool spoil, const std::stop_token& stop);

  const Opener opener_;
  const std::shared_ptr<net::Credentials> credentials_;
  const v1::Header header_;
  const v1::PeerAddress peer_;
  std::unique_ptr<net::Stream> stream_;
};

// A link as a source. Range i of the job is one unit of less than 4 GiB, which lies at
// (*offsets)[i] of the rank's region.
class KvSource final : public Source {
 public:
  KvSource(KvLink* link, const std::vector<uint64_t>* offsets) : link_(link), offsets_(offsets) {}
  std::string name() const override { return "KV of " + link_->member(); }
  Status Bring(std::span<const mover::Range> job, std::span<const size_t> wanted,
               const Arrived& arrived, const std::stop_token& stop) override;

 private:
  KvLink* const link_;
  const std::vector<uint64_t>* const offsets_;
};

}  // namespace tangram::mover
