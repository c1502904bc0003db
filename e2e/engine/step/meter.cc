#include "e2e/engine/step/meter.h"

#include <algorithm>
#include <bit>

namespace tangram::engine {

void StepMeter::Enter(uint64_t epoch) {
  epoch_ = epoch;
  cells_ = {};
}

void StepMeter::Note(std::span<const Announced> homes, std::chrono::nanoseconds took, bool whole) {
  Cell step;
  uint64_t tokens = 0;
  for (const Announced& home : homes) {
    for (const BatchItem& item : home.batch.items) {
      tokens += item.count;
      if (item.count == 1) {
        ++step.decode;
        step.context += item.start + 1;
      } else {
        step.prompt_tokens += item.count;
        step.before += uint64_t{item.start} * item.count;
      }
    }
  }
  if (tokens == 0) return;
  const double seconds = std::chrono::duration<double>(took).count();
  ++steps_;
  seconds_ += seconds;
  if (!whole) return;
  const size_t octave = std::min<size_t>(std::bit_width(tokens) - 1, kOctaves - 1);
  Cell& cell = cells_[step.prompt_tokens > 0 ? 1 : 0][octave];
  ++cell.steps;
  cell.seconds += seconds;
  cell.decode += step.decode;
  cell.context += step.context;
  cell.prompt_tokens += step.prompt_tokens;
  cell.before += step.before;
}

void StepMeter::Fill(v1::RankTelemetry* out) const {
  out->set_steps(steps_);
  out->set_step_seconds(seconds_);
  out->set_epoch(epoch_);
  for (const bool prefill : {false, true}) {
    for (size_t octave = 0; octave < kOctaves; ++octave) {
      const Cell& cell = cells_[prefill ? 1 : 0][octave];
      if (cell.steps == 0) continue;
      v1::StepCell* to = out->add_cells();
      to->set_octave(static_cast<uint32_t>(octave));
      to->set_prefill(prefill);
      to->set_steps(cell.steps);
      to->set_seconds(cell.seconds);
      to->set_decode(cell.decode);
      to->set_context(cell.context);
      to->set_prompt_tokens(cell.prompt_tokens);
      to->set_before(cell.before);
    }
  }
}

}  // namespace tangram::engine
