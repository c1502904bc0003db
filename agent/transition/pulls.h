// Reads of this agent's ranks by other agents, and KV reads for this agent's engines.
#pragma once

#include <optional>
#include <stop_token>
#include <string>

#include "agent/transition/core.h"

namespace tangram {

// Whether a flip from `base` (may be null) to the job's target moves KV.
bool CarriesKv(const Job& job, const v1::Layout* base);

// `pod`: of the caller's certificate. kUnauthenticated: the target does not assign these pieces to
// its ranks; kNotHeld, kStaleAttempt: another attempt; errors of RankMemory::OpenPull.
Result<v1::OpenPullResponse> OpenPull(Core* core, const v1::OpenPullRequest& request,
                                      const std::string& pod);

// Returns the bytes; nothing: pulls ahead of the flip are deferred now because steps take too long.
// kUnavailable: the attempt ended, or `stop` was requested.
Result<std::optional<uint64_t>> KvPull(Core* core, uint32_t device, const v1::KvPull& pull,
                                       std::stop_token stop);

}  // namespace tangram
