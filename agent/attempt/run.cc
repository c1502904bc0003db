// A run: consecutive flips under the permit of the first, which the agents do by themselves
// (docs/architecture.md, 4.1). Each flip is an attempt and passes the same checks. This file
// decides when the next flip may begin, and what ends the run.
#include <fmt/format.h>

#include <algorithm>

#include "agent/attempt/machine.h"
#include "agent/attempt/step.h"

namespace tangram::attempt {

// Ok if the run may continue with `attempt` here. The fence decides about a stopped rank. After an
// abort, an outcome or a release, the run does not continue.
Status Machine::CheckRun(uint64_t attempt, const Gates& gates) const {
  if (!run_ || !run_->Has(attempt) || run_->over) {
    return {Code::kStaleAttempt, fmt::format("the run of attempt {} has ended{}", attempt,
                                             run_ && !run_->why.empty() ? ": " + run_->why : "")};
  }
  if (!run_->permitted) {
    return {Code::kWrongPhase, fmt::format("the run of attempt {} has no permit", attempt)};
  }
  for (uint32_t device = 0; device < ranks_.size(); ++device) {
    if (ranks_[device].rank < 0 || !gates[device].stopped) continue;
    return {Code::kStaleAttempt,
            fmt::format("member {} has stopped, and with it the run of attempt {}",
                        ranks_[device].member, attempt)};
  }
  return OkStatus();
}

// Aborts the flips that have not begun. The gate decides the attempt in progress.
void Machine::EndRun(const std::string& why, Step* step) {
  if (!run_ || run_->over) return;
  run_->over = true;
  highest_ = std::max(highest_, run_->last);
  if (flipped_.contains(run_->last) || (attempt_ && attempt_->plan.attempt == run_->last)) return;
  run_->why = why;
  if (step == nullptr) return;
  step->changed = true;
  step->lines.push_back(
      {Line::Level::kWarn, fmt::format("run ended first_attempt={} last_attempt={} reason=\"{}\"",
                                       run_->first, run_->last, why)});
}

// Maps an attempt of a run to the run's attempt in progress, if there is one.
uint64_t Machine::UnderWay(uint64_t attempt) const {
  const bool of_run = run_ && run_->Has(attempt) && attempt_ && run_->Has(attempt_->plan.attempt);
  return of_run ? attempt_->plan.attempt : attempt;
}

Step Machine::Do(const RunStuck& event, const Gates&) {
  Step step;
  if (run_ && run_->Has(event.attempt)) EndRun(event.why, &step);
  return Done(std::move(step));
}

}  // namespace tangram::attempt
