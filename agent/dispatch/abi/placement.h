// A layout of experts from a list of pieces, for callers without an agent. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "agent/base/status.h"
#include "agent/dispatch/include/tangram/dispatch.h"
#include "agent/dispatch/routes.h"

namespace tangram::dispatch {

// `pieces` are `piece_size` apart, in order of layer, expert and alternative (replica), each from 0
// on. kInvalid: another order, an expert without pieces, or an error of Routes::Of.
Result<Routes> RoutesOf(const tgd_piece* pieces, size_t count, size_t piece_size, uint32_t experts,
                        uint64_t epoch, uint32_t rank, uint32_t world_size);

}  // namespace tangram::dispatch
