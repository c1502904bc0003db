// Requests and replies for KV at the data port (agent/mover/data_server.h has the format).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "agent/base/status.h"
#include "agent/device/memory.h"
#include "agent/net/frame.h"

namespace tangram::mover {

// A request on a KV connection, read from its stream. The body has its ranges, or a token of
// kKvTokenBytes that replaces the connection's grant (no number of ranges has as many bytes).
inline constexpr size_t kKvTokenBytes = 16;
net::FrameReader KvRequests();
// A request with a token.
std::vector<std::byte> KvTokenRequest(std::span<const std::byte> token);
// The memory of a request's ranges. kInvalid: a range is too long, or not inside the region.
Result<std::vector<device::Memory>> RangesOf(std::span<const uint8_t> body,
                                             const device::Memory& region);

// The hash of the reply to a KV request: the hash of its ranges' hashes, in order (device::HashOf),
// so each range is hashed in place.
class KvDigest {
 public:
  void Add(uint64_t hash) { hashes_.push_back(hash); }
  uint64_t Value() const;

 private:
  std::vector<uint64_t> hashes_;
};

// Hashes all ranges, which are of one device, in one batch.
Status HashAll(std::span<const device::Memory> ranges, std::span<uint64_t> hashes);

}  // namespace tangram::mover
