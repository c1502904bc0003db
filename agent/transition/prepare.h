// Prepare: the target is built from the plan and checked, memory and engines agree, before a byte
// moves. Nothing here is under the core's lock; driver calls exclude each other.
#pragma once

#include <stop_token>

#include "agent/transition/core.h"

namespace tangram {

// kBadGeometry: the plan is for another model, granule_rows or page size.
Status CheckGeometry(const Core& core, const v1::PrepareRequest& request);

// Builds the job's target from the active layout (`base`, may be null) and the plan. Changes only
// the job, so that a run can build a flip's target before its turn. kBadPlan, and errors of
// Validate.
Status BuildTarget(const Core& core, Job* job, const std::shared_ptr<const v1::Layout>& base);

// Builds the job's target if it is not built from `base` yet, and answers what the machine wants to
// know of it, for the ranks with these members. Errors as of BuildTarget.
Result<attempt::Plan> Build(const Core& core, Job* job,
                            const std::shared_ptr<const v1::Layout>& base,
                            const std::vector<std::string>& members);

// The consent of the device's engine, if it has one. What engines say, and kUnavailable: `stop`
// came while it was waited for.
Status PrepareEngine(Core* core, Job* job, uint32_t device, const std::stop_token& stop);

// Memory for every part, and the engines' consent unless that is asked for when bytes are staged:
// all, or nothing is left of it. kEngine, kNoMemory, kBadPlan, and errors of PrepareEngine.
Status Reserve(Core* core, Job* job, const std::stop_token& stop);

}  // namespace tangram
