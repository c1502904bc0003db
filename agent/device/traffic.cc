#include "agent/device/traffic.h"

#include <fmt/format.h>

#include <memory>
#include <string_view>
#include <vector>

#include "agent/device/runs.h"
#include "kernels/kernels.h"

namespace tangram::device {
namespace {

constexpr uint64_t kAlign = 256;
constexpr uint32_t kBlocks = 32;  // as in CudaKernels

uint64_t Aligned(uint64_t at) { return (at + kAlign - 1) / kAlign * kAlign; }

// Zeroed memory that the system populates at the first touch.
class Slab {
 public:
  explicit Slab(uint64_t bytes) : bytes_(new std::byte[bytes + kAlign]()) {}
  uint64_t at() const { return Aligned(reinterpret_cast<uint64_t>(bytes_.get())); }

 private:
  const std::unique_ptr<std::byte[]> bytes_;
};

template <typename Parameters>
kernels::Traffics Count(std::string_view kernel, const kernels::Launch& grid,
                        const Parameters& parameters) {
  return kernels::Find(kernel)->count(grid.blocks, grid.threads, &parameters);
}

kernels::Traffics CountStrips(std::vector<kernels::CopyStrip> strips) {
  if (strips.empty()) return {};
  kernels::CopyStripsParameters parameters;
  parameters.units = kernels::NumberStrips(strips);
  parameters.strips = reinterpret_cast<uint64_t>(strips.data());
  parameters.count = strips.size();
  return Count("copy_strips", kernels::CopyStripsLaunch(parameters, kBlocks), parameters);
}

kernels::CopyStrip Joined(const Strip& to, const Strip& from) {
  return {.to = to.address,
          .to_pitch = to.pitch,
          .from = from.address,
          .from_pitch = from.pitch,
          .bytes = to.bytes,
          .lines = to.lines};
}

void CountCopies(const Memory& to, const Memory& from, MoveTraffic* out) {
  std::vector<kernels::CopyStrip> strips, all;
  const auto in_order = [](const Strip& s) { return s.lines == 1 || s.pitch == s.bytes; };
  EachPair(to, from, [&](const Strip& target, const Strip& source) {
    all.push_back(Joined(target, source));
    if (in_order(target) && in_order(source)) {
      ++out->ranges;
      out->range_bytes += target.lines * target.bytes;
    } else {
      strips.push_back(all.back());
    }
  });
  out->strips = CountStrips(std::move(strips));
  out->alone = CountStrips(std::move(all));
}

// Each unit has a hash; an interleaved unit is gathered before.
void CountHashes(const Memory& memory, uint64_t unit_bytes, MoveTraffic* out) {
  const uint64_t units = memory.bytes / unit_bytes;
  const bool interleaved = memory.shape != nullptr;
  const Slab gathered(interleaved ? units * Aligned(unit_bytes) : 0);
  const Slab hashes(units * sizeof(uint64_t));
  std::vector<kernels::CopyStrip> strips;
  std::vector<kernels::HashRange> ranges;
  for (uint64_t u = 0; u < units; ++u) {
    const Memory unit = memory.Part(u * unit_bytes, unit_bytes);
    kernels::HashRange& range = ranges.emplace_back();
    range = {.from = unit.address, .bytes = unit_bytes, .hash = hashes.at() + u * sizeof(uint64_t)};
    if (!interleaved) continue;
    uint64_t at = range.from = gathered.at() + u * Aligned(unit_bytes);
    EachStrip(unit, nullptr, [&](const Strip& strip) {
      strips.push_back(Joined({at, strip.lines, strip.bytes, strip.bytes}, strip));
      at += strip.lines * strip.bytes;
    });
  }
  out->gather = CountStrips(std::move(strips));
  kernels::HashParameters parameters;
  parameters.units = kernels::NumberRanges(ranges);
  const Slab scratch(kernels::HashScratchBytes(parameters.units, units));
  parameters.ranges = reinterpret_cast<uint64_t>(ranges.data());
  parameters.count = units;
  parameters.scratch = scratch.at();
  out->sums = Count("hash_sums", kernels::HashSumsLaunch(parameters, kBlocks), parameters);
  out->chain = Count("hash_chain", kernels::HashChainLaunch(parameters, kBlocks), parameters);
}

}  // namespace

Result<MoveTraffic> CountMove(const UnitMove& move, const Shape& slab, bool interleaved) {
  const uint64_t unit = slab.unit_bytes();
  const auto fits = [&](uint64_t first, uint64_t units) {
    return first <= units && move.count <= units - first;
  };
  if (unit == 0 || move.count == 0 || !fits(move.to_first, move.to_units) ||
      !fits(move.from_first, move.from_units)) {
    return Status{Code::kInvalid,
                  fmt::format("{} units of {} bytes from number {} of a slab of {} to number {} of "
                              "one of {}: give some that both have",
                              move.count, unit, move.from_first, move.from_units, move.to_first,
                              move.to_units)};
  }
  Shape to_shape = slab, from_shape = slab;
  to_shape.units = move.to_units;
  from_shape.units = move.from_units;
  const Slab to_slab(move.to_units * unit), from_slab(move.from_units * unit);
  const auto units_of = [&](const Slab& bytes, const Shape& shape, uint64_t first) {
    if (interleaved) return Memory{nullptr, bytes.at(), move.count * unit, &shape, first};
    return Memory{nullptr, bytes.at() + first * unit, move.count * unit};
  };
  const Memory to = units_of(to_slab, to_shape, move.to_first);
  MoveTraffic out;
  CountCopies(to, units_of(from_slab, from_shape, move.from_first), &out);
  CountHashes(to, unit, &out);
  return out;
}

}  // namespace tangram::device
