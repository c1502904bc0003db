// Who a connection is from, and what it is for: the first thing that both sides say. Pure.
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

// A rank, for as long as it lives: who joins again is of a later generation, or of another name.
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
  Lane lane = Lane::kDispatch;  // of kTcp
  // Of kTcp: both lanes of a link are of one attempt of the side that dials.
  uint64_t attempt = 0;
  Format format;
  Geometry geometry;

  // Of kBytes. kInvalid: a name is empty or too long.
  Result<std::array<uint8_t, kBytes>> Encode() const;
  // kInvalid: it is none.
  static Result<Hello> Decode(std::span<const uint8_t, kBytes> bytes);
};

}  // namespace tangram::dispatch
