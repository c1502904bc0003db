#include "agent/device/runs.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "agent/device/hash.h"

namespace tangram::device {
namespace {

// Copies of a constant size are a few instructions; a call costs as much as the bytes of a short
// line. Lines are multiples of kBytes.
template <size_t kBytes>
void CopyLinesBy(const Strip& to, const Strip& from) {
  auto* out = reinterpret_cast<std::byte*>(to.address);
  const auto* in = reinterpret_cast<const std::byte*>(from.address);
  for (uint64_t l = 0; l < to.lines; ++l, out += to.pitch, in += from.pitch) {
    for (uint64_t at = 0; at < to.bytes; at += kBytes) std::memcpy(out + at, in + at, kBytes);
  }
}

constexpr uint64_t kShort = 1 << 10;  // bytes per line; beyond it memcpy is as fast

}  // namespace

void CopyLines(const Strip& to, const Strip& from) {
  auto* out = reinterpret_cast<std::byte*>(to.address);
  const auto* in = reinterpret_cast<const std::byte*>(from.address);
  if (to.pitch == to.bytes && from.pitch == from.bytes) {
    std::memcpy(out, in, to.lines * to.bytes);
    return;
  }
  if (to.bytes <= kShort && to.bytes % 64 == 0) return CopyLinesBy<64>(to, from);
  if (to.bytes <= kShort && to.bytes % 16 == 0) return CopyLinesBy<16>(to, from);
  for (uint64_t l = 0; l < to.lines; ++l, out += to.pitch, in += from.pitch) {
    std::memcpy(out, in, to.bytes);
  }
}

namespace {

// Bytes that are copied, then hashed while cached.
constexpr uint64_t kBlock = 64 << 10;

Strip Lines(const Strip& strip, uint64_t first, uint64_t count) {
  return {strip.address + first * strip.pitch, count, strip.bytes, strip.pitch};
}

// Adds about one block of lines to the hash. Separate lines are gathered first: a hash of many
// short pieces costs several times as much as one of their sum.
void Add(const Strip& strip, Hasher* hasher) {
  const uint64_t bytes = strip.lines * strip.bytes;
  const auto* in = reinterpret_cast<const std::byte*>(strip.address);
  if (strip.pitch == strip.bytes || strip.lines == 1) return hasher->Add({in, bytes});
  thread_local std::vector<std::byte> buffer;
  if (buffer.size() < bytes) buffer.resize(bytes);
  CopyLines({reinterpret_cast<uint64_t>(buffer.data()), strip.lines, strip.bytes, strip.bytes},
            strip);
  hasher->Add(std::span(buffer).first(bytes));
}

// Calls `each` for groups of lines of about one block; for parts of a single long line.
template <typename Each>
void EachBlock(const Strip& strip, Each&& each) {
  if (strip.lines == 1) {
    for (uint64_t at = 0; at < strip.bytes; at += kBlock) {
      const uint64_t bytes = std::min(kBlock, strip.bytes - at);
      each(at, Strip{strip.address + at, 1, bytes, bytes});
    }
    return;
  }
  const uint64_t lines = std::max<uint64_t>(1, kBlock / strip.bytes);
  for (uint64_t l = 0; l < strip.lines; l += lines) {
    each(l, Lines(strip, l, std::min(lines, strip.lines - l)));
  }
}

void CopyStrip(const Strip& to, const Strip& from, Hasher* hasher) {
  if (hasher == nullptr) return CopyLines(to, from);
  EachBlock(to, [&](uint64_t at, const Strip& block) {
    CopyLines(block, to.lines == 1 ? Strip{from.address + at, 1, block.bytes, block.bytes}
                                   : Lines(from, at, block.lines));
    Add(block, hasher);
  });
}

}  // namespace

bool SamePlanes(const Shape& a, const Shape& b) {
  return std::equal(a.planes.begin(), a.planes.end(), b.planes.begin(), b.planes.end(),
                    [](const Shape::Plane& one, const Shape::Plane& other) {
                      return one.lines == other.lines && one.bytes == other.bytes;
                    });
}

uint64_t Shape::unit_bytes() const {
  uint64_t out = 0;
  for (const Plane& plane : planes) out += plane.lines * plane.bytes;
  return out;
}

Memory FirstByte(const Memory& memory) {
  if (memory.shape == nullptr) return memory.Part(0, 1);
  return {memory.device, memory.address + memory.unit * memory.shape->planes.front().bytes, 1};
}

bool CopyStrips(const Memory& to, const Memory& from, uint64_t* hash) {
  if (to.shape != nullptr && from.shape != nullptr && !SamePlanes(*to.shape, *from.shape)) {
    return false;
  }
  Hasher hasher;
  EachPair(to, from, [&](const Strip& strip, const Strip& source) {
    CopyStrip(strip, source, hash != nullptr ? &hasher : nullptr);
  });
  if (hash != nullptr) *hash = hasher.Value();
  return true;
}

void Gather(const Memory& from, std::span<std::byte> to) { CopyStrips(Memory::Own(to), from); }

uint64_t HashStrips(const Memory& memory) {
  Hasher hasher;
  EachStrip(memory, nullptr, [&](const Strip& strip) {
    EachBlock(strip, [&](uint64_t, const Strip& block) { Add(block, &hasher); });
  });
  return hasher.Value();
}

}  // namespace tangram::device
