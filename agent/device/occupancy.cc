#include "agent/device/occupancy.h"

#include <fmt/format.h>

#include <iterator>

namespace tangram::device {

Status Occupancy::Take(std::span<const Placement> placements) {
  const std::scoped_lock lock(mu_);
  for (size_t i = 0; i < placements.size(); ++i) {
    const uint64_t at = placements[i].at, bytes = placements[i].slice.bytes;
    const bool outside = at % unit_ != 0 || at > bytes_ || bytes > bytes_ - at;
    if (!outside && TakeLocked(at, bytes)) continue;
    for (const Placement& taken : placements.first(i)) DropLocked(taken.at, taken.slice.bytes);
    return {Code::kInvalid, fmt::format("cannot map {} bytes at {} of a space of {}{}", bytes, at,
                                        bytes_, outside ? "" : ": part of it is mapped")};
  }
  return OkStatus();
}

void Occupancy::Drop(uint64_t at, uint64_t bytes) {
  const std::scoped_lock lock(mu_);
  DropLocked(at, bytes);
}

bool Occupancy::TakeLocked(uint64_t at, uint64_t bytes) {
  const auto next = taken_.lower_bound(at);
  if (next != taken_.end() && next->first < at + bytes) return false;
  if (next != taken_.begin() && std::prev(next)->second > at) return false;
  taken_.emplace_hint(next, at, at + bytes);
  return true;
}

void Occupancy::DropLocked(uint64_t at, uint64_t bytes) {
  const uint64_t end = at + bytes;
  auto it = taken_.lower_bound(at);
  if (it != taken_.begin() && std::prev(it)->second > at) {
    const auto before = std::prev(it);
    if (before->second > end) it = taken_.emplace_hint(it, end, before->second);
    before->second = at;
  }
  while (it != taken_.end() && it->first < end) {
    if (it->second > end) taken_.emplace(end, it->second);
    it = taken_.erase(it);
  }
}

}  // namespace tangram::device
