// What a home asks of an owner of experts in one layer: some of its rows, and which pieces to run
// on each.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "agent/base/status.h"
#include "agent/engine/wire/bytes.h"

namespace tangram::engine {

// One row of a message for one piece.
struct ExpertEntry {
  uint32_t row;
  uint32_t expert;
  uint32_t piece;  // index into tg_expert.pieces
  float weight;
};

struct ExpertMessage {
  uint64_t rows = 0;
  const float* x = nullptr;  // [rows, hidden], in the bytes that were decoded
  std::vector<ExpertEntry> entries;

  // `rows` of n [*, hidden], by number.
  static Bytes Encode(std::span<const uint32_t> rows, std::span<const float> n, size_t hidden,
                      const std::vector<ExpertEntry>& entries);
  // Every entry's row is one of the message. kInternal: malformed. `bytes` must outlive it.
  static Result<ExpertMessage> Decode(const Bytes& bytes, size_t hidden);
};

}  // namespace tangram::engine
