// The identity and purpose of a connection: the first message of both sides. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "agent/base/status.h"
#include "agent/dispatch/link.h"
#include "agent/dispatch/shm.h"
#include "agent/dispatch/slot.h"

namespace tangram::dispatch {

// A rank during its lifetime: if it joins again, it has a later generation or another name.
struct MemberId {
  std::string name;
  uint64_t generation = 0;
  bool operator==(const MemberId&) const = default;
  auto operator<=>(const MemberId&) const = default;
};
std::string NameOf(const MemberId& id);

struct Hello {
  static constexpr size_t kBytes = 512;
  static constexpr size_t kMostName = 192;
  enum class Path : uint32_t { kSharedMemory = 1, kTcp = 2 };

  MemberId from, to;
  Path path = Path::kTcp;
  Lane lane = Lane::kDispatch;  // for kTcp
  // For kTcp: both lanes of a link belong to one attempt of the dialling side.
  uint64_t attempt = 0;
  Format format;
  Geometry geometry;

  // kBytes bytes. kInvalid: a name is empty or too long.
  Result<std::array<uint8_t, kBytes>> Encode() const;
  // kInvalid: not a valid hello.
  static Result<Hello> Decode(std::span<const uint8_t, kBytes> bytes);
};

}  // namespace tangram::dispatch
