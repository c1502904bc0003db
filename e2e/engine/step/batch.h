// The batch of one home in a step, as all ranks of its groups know it.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/engine/wire/bytes.h"

namespace tangram::engine {

struct BatchItem {
  uint32_t start = 0;
  uint32_t count = 0;
  std::vector<uint32_t> blocks;  // of the home, reaching position start + count - 1
};

struct Batch {
  std::vector<BatchItem> items;

  uint32_t Rows() const {
    uint32_t rows = 0;
    for (const BatchItem& item : items) rows += item.count;
    return rows;
  }
};

}  // namespace tangram::engine
