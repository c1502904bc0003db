// One rank of the reference engine: its backend under the step loop of all engines.
#pragma once

#include <atomic>
#include <memory>

#include "agent/engine/turn/turn.h"
#include "e2e/engine/step/reference.h"

namespace tangram::engine {

// One thread makes all calls. The pointers passed to Make must outlive the engine.
class Engine {
 public:
  struct Options {
    Reference::Options reference;
    Turn::Options turn;
  };

  // Errors as in Reference::Make.
  static Result<std::unique_ptr<Engine>> Make(Options options, WorldView* world, Mesh* mesh,
                                              Inbox* inbox, Sink* sink);
  // See Turn::Run.
  Status Run(const std::atomic<bool>& stop);

  const Turn& turn() const { return turn_; }
  const Reference& reference() const { return *reference_; }

 private:
  Engine(Options options, WorldView* world, Mesh* mesh, Inbox* inbox, Sink* sink,
         std::unique_ptr<Reference> reference)
      : reference_(std::move(reference)),
        turn_(options.turn, world, mesh, inbox, sink, reference_.get()) {}

  const std::unique_ptr<Reference> reference_;
  Turn turn_;
};

}  // namespace tangram::engine
