// Frames of the mesh in their wire form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "agent/base/status.h"
#include "agent/engine/wire/bytes.h"

namespace tangram::engine {

// kBeat is a heartbeat: its sender is alive and waits. kStill says in addition that its sender has
// abandoned its epoch for good.
enum class FrameKind : uint32_t { kHello = 1, kWelcome = 2, kData = 3, kBeat = 4, kStill = 5 };

// On the wire, little-endian, followed by `length` bytes.
struct FrameHeader {
  static constexpr uint32_t kMagic = 0x314d4754;  // "TGM1"
  // No step of any model that an engine could run sends more to one peer.
  static constexpr uint64_t kMaxLength = 1ull << 30;
  static constexpr uint64_t kMaxHello = 4096;

  uint32_t magic = kMagic;
  FrameKind kind = FrameKind::kData;
  uint64_t epoch = 0, step = 0, sequence = 0;
  uint64_t length = 0;
};
static_assert(sizeof(FrameHeader) == 40);

// The payload size in a header. kInvalid: not a header of the mesh, or more than `most`.
Result<size_t> PayloadBytes(std::span<const std::byte> header, uint64_t most);

// The payload of a hello and of the welcome that answers it.
struct Hello {
  std::string world, from, to;  // the last two are member ids

  Bytes Encode() const;
  static Result<Hello> Decode(const Bytes& payload);
};

}  // namespace tangram::engine
