// What other agents may read of this one's ranks, and what an engine has its agent read of theirs.
#pragma once

#include <optional>
#include <stop_token>
#include <string>

#include "agent/transition/core.h"

namespace tangram {

// Whether a flip from `base` (may be null) to the job's target moves KV.
bool CarriesKv(const Job& job, const v1::Layout* base);

// `pod`: of the caller's certificate. kUnauthenticated: the target does not bring that to its
// ranks; kNotHeld, kStaleAttempt: another attempt; what RankMemory::OpenPull says.
Result<v1::OpenPullResponse> OpenPull(Core* core, const v1::OpenPullRequest& request,
                                      const std::string& pod);

// Answers the bytes; nothing: it is ahead of the flip, and steps are too long for more of it now.
// kUnavailable: the attempt ended, or `stop` was asked for.
Result<std::optional<uint64_t>> KvPull(Core* core, uint32_t device, const v1::KvPull& pull,
                                       std::stop_token stop);

}  // namespace tangram
