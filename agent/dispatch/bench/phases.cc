#include "agent/dispatch/bench/phases.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <vector>

namespace tangram::dispatch::bench {

Phases::Phases(const Format& format, uint32_t tokens, uint64_t partials, uint64_t sent, size_t ring,
               const uint16_t* x, RowMemory& outputs, RowMemory& packed, uint16_t* y)
    : places_(size_t{tokens} * format.top_k) {
  std::iota(places_.begin(), places_.end(), 0);
  std::shuffle(places_.begin(), places_.end(), std::mt19937(1));
  const size_t row = RowBytes(Element::kBf16, format.hidden), slots = ring / row;
  std::memset(ring_.Get(slots * row), 1, slots * row);
  const auto slot = [at = ring_.data(), row, slots](uint64_t i) { return at + i % slots * row; };
  const auto* const from = reinterpret_cast<const uint8_t*>(x);
  const auto pack = [=, this, &packed] {
    for (size_t i = 0; i < places_.size(); ++i)
      Stream(from + i / format.top_k * row, row, packed.data() + places_[i] * row);
    EndStreams();
  };
  const auto read = [=, this, &outputs] {
    // memchr for an absent byte reads all of the memory at full speed.
    if (std::memchr(outputs.data(), 0, places_.size() * row) != nullptr) std::abort();
  };
  const auto write_y = [=] {
    for (uint32_t t = 0; t < tokens; ++t)
      Stream(slot(t), row, reinterpret_cast<uint8_t*>(y) + t * row);
    EndStreams();
  };
  const auto weigh = [=, this, &outputs] {
    // Sum i is over places_[i * all / partials] up to the beginning of the next sum.
    const auto of = [&](uint64_t i, std::span<Weighted> into) {
      const size_t begin = i * places_.size() / partials, end = (i + 1) * places_.size() / partials;
      for (size_t p = begin; p < end; ++p)
        into[p - begin] = {outputs.data() + places_[p] * row, .125f};
      return std::span<const Weighted>(into.first(end - begin));
    };
    std::array<Weighted, Format::kMostTopK> here, there;
    for (uint64_t i = 0; i < partials; ++i)
      Partial(Element::kBf16, of(i, here), format.hidden, Element::kBf16, slot(i),
              i + 1 < partials ? of(i + 1, there) : std::span<const Weighted>());
  };
  const auto rings = [=] {
    for (uint64_t i = 0; i < sent; ++i) std::memcpy(slot(i), from + i % tokens * row, row);
  };
  const auto sum = [=] {
    std::array<const void*, Format::kMostTopK> of;
    std::vector<uint8_t> out(row);
    uint64_t i = 0;
    for (uint32_t t = 0; t < tokens; ++t) {
      size_t count = 0;
      for (; i < (t + 1) * partials / tokens; ++i) of[count++] = slot(i);
      Sum(Element::kBf16, std::span(of).first(count), format.hidden, out.data());
    }
  };
  run_ = {pack, read, write_y, weigh, rings, sum};
  const uint64_t all = places_.size();
  const std::array<uint64_t, kPhasesOfAPair.size()> rows{tokens + all, all,      tokens,
                                                         all,          2 * sent, partials};
  for (size_t p = 0; p < rows.size(); ++p) bytes_[p] = static_cast<double>(rows[p] * row);
}

}  // namespace tangram::dispatch::bench
