#include "agent/device/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace tangram::device {

Arena::Arena(uint64_t bytes, uint64_t unit) : bytes_(bytes), unit_(unit), free_bytes_(bytes) {
  if (bytes > 0) Insert(0, bytes);
}

Result<std::unique_ptr<Arena>> Arena::Without(uint64_t bytes, uint64_t unit,
                                              std::vector<Extent> used) {
  auto out = std::make_unique<Arena>(0, unit);
  std::sort(used.begin(), used.end(),
            [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
  uint64_t next = 0;  // all bytes before it are used or entered as free
  for (const Extent& extent : used) {
    const bool units = extent.length != 0 && extent.offset % unit == 0 && extent.length % unit == 0;
    if (!units || extent.offset < next || extent.offset > bytes ||
        extent.length > bytes - extent.offset) {
      return Status{
          Code::kInvalid,
          fmt::format("{} bytes at {}: {} {}", extent.length, extent.offset,
                      units ? "used twice, or not inside an arena of" : "no whole units of",
                      units ? bytes : unit)};
    }
    if (extent.offset > next) out->Insert(next, extent.offset - next);
    out->free_bytes_ += extent.offset - next;
    next = extent.offset + extent.length;
  }
  if (bytes > next) out->Insert(next, bytes - next);
  out->free_bytes_ += bytes - next;
  out->bytes_ = bytes;
  return out;
}

uint64_t Arena::free_bytes() const {
  const std::scoped_lock lock(mu_);
  return free_bytes_;
}

Result<std::vector<Extent>> Arena::Take(uint64_t bytes) {
  if (bytes == 0 || bytes % unit_ != 0) {
    return Status(Code::kInvalid, fmt::format("{} bytes are not a multiple of {}", bytes, unit_));
  }
  const std::scoped_lock lock(mu_);
  if (bytes > free_bytes_) {
    return Status(Code::kNoMemory,
                  fmt::format("{} bytes requested, {} of {} are free", bytes, free_bytes_, bytes_));
  }
  free_bytes_ -= bytes;
  std::vector<Extent> out;
  const auto fits = by_length_.lower_bound({bytes, 0});
  auto next = fits == by_length_.end() ? free_.begin() : free_.find(fits->second);
  while (bytes > 0) {
    const auto run = next++;
    const auto [offset, length] = *run;
    const uint64_t take = std::min(length, bytes);
    Erase(run);
    if (take < length) Insert(offset + take, length - take);
    out.push_back({offset, take});
    bytes -= take;
  }
  return out;
}

void Arena::Insert(uint64_t offset, uint64_t length) {
  free_.emplace(offset, length);
  by_length_.emplace(length, offset);
}

void Arena::Erase(Runs::iterator run) {
  by_length_.erase({run->second, run->first});
  free_.erase(run);
}

void Arena::Give(std::span<const Extent> extents) {
  const std::scoped_lock lock(mu_);
  GiveLocked(extents);
}

void Arena::GiveLocked(std::span<const Extent> extents) {
  for (const Extent& extent : extents) {
    free_bytes_ += extent.length;
    auto next = free_.lower_bound(extent.offset);
    uint64_t offset = extent.offset;
    uint64_t length = extent.length;
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        length += before->second;
        Erase(before);
      }
    }
    if (next != free_.end() && next->first == extent.offset + extent.length) {
      length += next->second;
      Erase(next);
    }
    Insert(offset, length);
  }
}

bool Arena::ClaimLocked(const Extent& extent) {
  auto run = free_.upper_bound(extent.offset);
  if (run == free_.begin()) return false;
  const auto [offset, length] = *--run;
  const uint64_t skip = extent.offset - offset;
  // Subtracts instead of adding, because a claimed extent may have any numbers.
  if (skip > length || extent.length > length - skip) return false;
  Erase(run);
  if (skip > 0) Insert(offset, skip);
  if (extent.length < length - skip) {
    Insert(extent.offset + extent.length, length - skip - extent.length);
  }
  free_bytes_ -= extent.length;
  return true;
}

Status Arena::Claim(std::span<const Extent> extents) {
  const std::scoped_lock lock(mu_);
  if (extents.empty()) return {Code::kInvalid, "empty claim"};
  for (size_t i = 0; i < extents.size(); ++i) {
    const Extent& extent = extents[i];
    const bool units =
        extent.length != 0 && extent.offset % unit_ == 0 && extent.length % unit_ == 0;
    if (units && ClaimLocked(extent)) continue;
    GiveLocked(extents.first(i));
    return {Code::kInvalid,
            fmt::format("claim of {} bytes at {}: {} {}", extent.length, extent.offset,
                        units ? "not free in an arena of" : "no whole units of",
                        units ? bytes_ : unit_)};
  }
  return OkStatus();
}

ArenaBlock::ArenaBlock(std::shared_ptr<Arena> arena, std::vector<Extent> extents)
    : arena_(std::move(arena)), extents_(std::move(extents)) {
  for (const Extent& extent : extents_) bytes_ += extent.length;
}

ArenaBlock::~ArenaBlock() { arena_->Give(extents_); }

}  // namespace tangram::device
