// Where dispatch and combine have their memory, for who makes it (no header of CUDA is needed).
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/dispatch.h"
#include "kernels/parameters.h"

namespace tangram::kernels {

// Of parameters whose shape is set (hidden to sums, most_locals, capacity).
// Bytes of an inbox, both halves of it; at a multiple of 128.
uint64_t InboxBytes(const DispatchParameters& shape);
DispatchInbox InboxOf(const DispatchParameters& shape, uint32_t half);
// Sets the addresses of scratch (pair to scales) to memory from `at` on, a multiple of 128, and
// returns how many bytes they take. `pair` to `sent` and `wait` are to be zeros at first.
uint64_t PutScratch(uint64_t at, DispatchParameters* parameters);
// A grid for a kernel of a pair, of at most so many
// blocks (at least 1). A graph keeps it, so it is for as many rows as there may be.
Launch DispatchLaunch(std::string_view kernel, const DispatchParameters& parameters,
                      uint32_t most_blocks);

}  // namespace tangram::kernels
