// What is asked and answered about KV at the data port (agent/mover/data_server.h has the form).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "agent/base/status.h"
#include "agent/device/memory.h"
#include "agent/net/frame.h"

namespace tangram::mover {

// A request on a KV connection, read off its stream. The body is its ranges, or a token of
// kKvTokenBytes (no number of ranges has as many bytes) that replaces the connection's grant.
inline constexpr size_t kKvTokenBytes = 16;
net::FrameReader KvRequests();
// The request that has the token in it.
std::vector<std::byte> KvTokenRequest(std::span<const std::byte> token);
// What a request's ranges name. kInvalid: a range is too long, or not inside the region.
Result<std::vector<device::Memory>> RangesOf(std::span<const uint8_t> body,
                                             const device::Memory& region);

// What the answer to a KV request hashes to: the hash of its ranges' hashes, in order
// (device::HashOf), so that each is hashed where it lies.
class KvDigest {
 public:
  void Add(uint64_t hash) { hashes_.push_back(hash); }
  uint64_t Value() const;

 private:
  std::vector<uint64_t> hashes_;
};

// The hashes of all ranges, of one device, at once.
Status HashAll(std::span<const device::Memory> ranges, std::span<uint64_t> hashes);

}  // namespace tangram::mover
