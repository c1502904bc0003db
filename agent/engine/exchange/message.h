// What a rank asks of another in one layer: rows, and which choices to run on each.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "agent/base/status.h"
#include "agent/engine/wire/bytes.h"

namespace tangram::engine {

// Of a row's numbers, as they travel.
enum class Element : uint32_t { kF32 = 1, kBf16 = 2 };
constexpr size_t BytesOf(Element element) { return element == Element::kF32 ? 4 : 2; }

struct RowFormat {
  uint32_t hidden = 0, top_k = 0;
  Element element = Element::kF32;
  bool operator==(const RowFormat&) const = default;
  // Of a row in a message: x, choices, weights.
  uint64_t row_bytes() const {
    return uint64_t{hidden} * BytesOf(element) +
           uint64_t{top_k} * (sizeof(int32_t) + sizeof(float));
  }
};

// x [rows, hidden] of `element`; choices [rows, top_k], -1: not here; weights F32 [rows, top_k].
struct RowMessage {
  static constexpr int32_t kNone = -1;

  uint32_t rows = 0;
  const uint8_t *x = nullptr, *choices = nullptr, *weights = nullptr;  // in the bytes, unaligned

  // Rows by number of x [*, hidden] and weights [*, top_k]; `choices` [rows, top_k] are those of
  // these rows. Nothing for no rows.
  static Bytes Encode(const RowFormat& format, std::span<const uint32_t> rows, const void* x,
                      const float* weights, std::span<const int32_t> choices);
  // kInternal: another size or format than this one. `bytes` must outlive it. Choices are not
  // looked at.
  static Result<RowMessage> Decode(const RowFormat& format, std::span<const uint8_t> bytes);
};

// count numbers of `element` as F32, exactly.
void ToFloat(Element element, const void* from, size_t count, float* to);

}  // namespace tangram::engine
