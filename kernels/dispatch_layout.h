// Memory layout of dispatch and combine, for code that allocates it (needs no CUDA header).
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/dispatch.h"
#include "kernels/parameters.h"

namespace tangram::kernels {

// Needs parameters whose shape is set (hidden to sums, most_locals, capacity). Bytes of an inbox,
// both halves; allocate it at a multiple of 128.
uint64_t InboxBytes(const DispatchParameters& shape);
DispatchInbox InboxOf(const DispatchParameters& shape, uint32_t half);
// Sets the addresses of scratch (pair to scales) to memory from `at` on, a multiple of 128, and
// returns its bytes. The caller zeroes `pair` to `sent` and `wait` first.
uint64_t PutScratch(uint64_t at, DispatchParameters* parameters);
// A grid for a kernel of a pair, of at most `most_blocks` blocks (at least 1). A graph keeps it, so
// it is sized for the maximum number of rows.
Launch DispatchLaunch(std::string_view kernel, const DispatchParameters& parameters,
                      uint32_t most_blocks);

}  // namespace tangram::kernels
