#include "e2e/engine/step/engine.h"

#include <spdlog/spdlog.h>

namespace tangram::engine {

Result<std::unique_ptr<Engine>> Engine::Make(Options options, WorldView* world, Mesh* mesh,
                                             Inbox* inbox, Sink* sink) {
  auto reference = Reference::Make(options.reference, world, sink);
  if (!reference.ok()) return reference.status();
  return std::unique_ptr<Engine>(
      new Engine(std::move(options), world, mesh, inbox, sink, std::move(*reference)));
}

Status Engine::Run(const std::atomic<bool>& stop) {
  TANGRAM_RETURN_IF_ERROR(turn_.Run(stop));
  const PaceCounts& paced = reference_->pace_counts();
  if (paced.steps > 0) {
    spdlog::info("steps paced steps={} overruns={} truncated={}", paced.steps, paced.overruns,
                 paced.cut);
  }
  return OkStatus();
}

}  // namespace tangram::engine
