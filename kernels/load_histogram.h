// Kernel `load_histogram`: counts the tokens of each expert of a layer.
#pragma once

#include "kernels/parameters.h"
#include "kernels/work.h"

namespace tangram::kernels {

template <typename Memory>
TANGRAM_DEVICE void LoadHistogram(const Where& where, const LoadHistogramParameters& p,
                                  Memory& memory) {
  const Share share = ShareOf(p.count, where.block, where.blocks);
  for (uint64_t i = share.begin + where.thread; i < share.end; i += where.threads) {
    memory.Round();
    const auto id =
        static_cast<int32_t>(memory.template Load<uint32_t>(p.ids + i * sizeof(int32_t)));
    if (id < 0) continue;
    // Invalid ids are counted after the last expert.
    const uint64_t expert = Smaller<uint64_t>(static_cast<uint32_t>(id), p.experts);
    memory.template Add<uint64_t>(p.counts + expert * sizeof(uint64_t), 1);
  }
}

}  // namespace tangram::kernels
