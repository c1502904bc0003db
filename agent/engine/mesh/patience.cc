#include "agent/engine/mesh/patience.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace tangram::engine {
namespace {

constexpr double kFirst = 1024;  // ns
constexpr double kPerOctave = 4;
constexpr double kQuantile = .99;

size_t SizeOf(uint64_t rows) { return static_cast<size_t>(std::bit_width(rows)); }

}  // namespace

void Patience::Learn(uint64_t rows, Duration took) {
  Histogram& of = sizes_[std::min(SizeOf(rows), kSizes - 1)];
  const double octaves = std::log2(std::max(1.0, static_cast<double>(took.count()) / kFirst));
  ++of.bins[std::min(static_cast<size_t>(octaves * kPerOctave), kBins - 1)];
  if (++of.total < kKept) return;
  of.total = 0;
  for (uint32_t& bin : of.bins) of.total += bin /= 2;
}

Patience::Duration Patience::Limit(std::optional<uint64_t> rows) const {
  const Duration least = bounds_.least, most = std::max<Duration>(bounds_.most, least);
  if (rows) {
    const size_t size = std::min(SizeOf(*rows), kSizes - 1);
    if (const std::optional<Duration> limit = Learned(sizes_[size], bounds_.factor))
      return std::max(least, *limit);
    const std::optional<Duration> limit = Guessed(size);
    return limit ? std::min(most, std::max(bounds_.rare * least, *limit)) : most;
  }
  std::optional<Duration> longest;
  for (const Histogram& of : sizes_) {
    if (const std::optional<Duration> limit = Learned(of, bounds_.factor))
      longest = std::max(longest.value_or(Duration(0)), *limit);
  }
  return longest ? std::min(most, std::max(bounds_.other * least, *longest)) : most;
}

std::optional<Patience::Duration> Patience::Guessed(size_t size) const {
  std::optional<Duration> guess;
  for (size_t more = size + 1; more < kSizes && !guess; ++more)
    guess = Learned(sizes_[more], bounds_.factor);
  for (size_t fewer = size; fewer-- > 0;) {
    const double rows = std::exp2(static_cast<double>(size - fewer));
    if (const auto limit = Learned(sizes_[fewer], bounds_.factor * rows))
      return std::min(guess.value_or(*limit), *limit);
  }
  return guess;
}

std::optional<Patience::Duration> Patience::Learned(const Histogram& of, double factor) const {
  if (of.total < bounds_.samples) return std::nullopt;
  const auto wanted = static_cast<uint32_t>(std::ceil(kQuantile * of.total));
  uint32_t seen = 0;
  size_t bin = 0;
  while (bin + 1 < kBins && (seen += of.bins[bin]) < wanted) ++bin;
  const double quantile = kFirst * std::exp2(static_cast<double>(bin + 1) / kPerOctave);
  const auto most = static_cast<double>(Duration(std::max(bounds_.most, bounds_.least)).count());
  return Duration(static_cast<int64_t>(std::min(factor * quantile, most)));
}

}  // namespace tangram::engine
