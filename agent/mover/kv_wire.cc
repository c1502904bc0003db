#include "agent/mover/kv_wire.h"

#include <fmt/format.h>

#include <cstring>

#include "agent/device/device.h"
#include "agent/device/hash.h"
#include "agent/mover/transport.h"

namespace tangram::mover {
namespace {

constexpr size_t kRangeBytes = 12;       // per range of a KV request: u64 offset, u32 length
constexpr uint32_t kToken = UINT32_MAX;  // in place of the number of ranges: a token follows
static_assert(kKvTokenBytes % kRangeBytes != 0);

}  // namespace

net::FrameReader KvRequests() {
  return {sizeof(uint32_t), [](std::span<const std::byte> header) -> Result<size_t> {
            uint32_t count = 0;
            std::memcpy(&count, header.data(), sizeof count);
            if (count == kToken) return kKvTokenBytes;
            if (count > kMostRanges) {
              return Status{
                  Code::kInvalid,
                  fmt::format("KV request has {} ranges, the maximum is {}", count, kMostRanges)};
            }
            return count * kRangeBytes;
          }};
}

std::vector<std::byte> KvTokenRequest(std::span<const std::byte> token) {
  std::vector<std::byte> out(sizeof kToken);
  std::memcpy(out.data(), &kToken, sizeof kToken);
  out.insert(out.end(), token.begin(), token.end());
  return out;
}

Result<std::vector<device::Memory>> RangesOf(std::span<const uint8_t> body,
                                             const device::Memory& region) {
  std::vector<device::Memory> out;
  out.reserve(body.size() / kRangeBytes);
  for (size_t at = 0; at + kRangeBytes <= body.size(); at += kRangeBytes) {
    uint64_t offset = 0;
    uint32_t length = 0;
    std::memcpy(&offset, body.data() + at, sizeof offset);
    std::memcpy(&length, body.data() + at + sizeof offset, sizeof length);
    if (length > kMostRangeBytes) {
      return Status{Code::kInvalid, fmt::format("KV range has {} bytes, the maximum is {}", length,
                                                kMostRangeBytes)};
    }
    if (offset > region.bytes || length > region.bytes - offset) {
      return Status{
          Code::kInvalid,
          fmt::format("KV range of {} bytes at offset {} exceeds the {} bytes of KV memory", length,
                      offset, region.bytes)};
    }
    out.push_back(region.Part(offset, length));
  }
  return out;
}

uint64_t KvDigest::Value() const { return device::HashOf(std::as_bytes(std::span(hashes_))); }

Status HashAll(std::span<const device::Memory> ranges, std::span<uint64_t> hashes) {
  std::vector<device::HashOp> ops;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].device == nullptr) {
      TANGRAM_RETURN_IF_ERROR(device::HashNow(ranges[i], &hashes[i]));
    } else {
      ops.push_back({ranges[i], &hashes[i]});
    }
  }
  return ops.empty() ? OkStatus() : ops[0].of.device->Hash(ops).Wait();
}

}  // namespace tangram::mover
