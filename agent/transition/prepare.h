// Prepare: builds and checks the target, gets memory and the consent of engines, before a byte
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

// Builds the job's target unless it is built from `base`. Returns the machine's plan for the ranks
// with these members. Errors as of BuildTarget.
Result<attempt::Plan> Build(const Core& core, Job* job,
                            const std::shared_ptr<const v1::Layout>& base,
                            const std::vector<std::string>& members);

// The consent of the device's engine, if it has one. Errors of the engine; kUnavailable: `stop` was
// requested meanwhile.
Status PrepareEngine(Core* core, Job* job, uint32_t device, const std::stop_token& stop);

// Reserves memory for every part and gets the engines' consent (except Job::asks_when_staged); on
// error, undoes all. kEngine, kNoMemory, kBadPlan, and errors of PrepareEngine.
Status Reserve(Core* core, Job* job, const std::stop_token& stop);

}  // namespace tangram
