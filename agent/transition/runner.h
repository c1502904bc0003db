// Carries out the machine's actions until a call has its reply.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <variant>

#include "agent/transition/core.h"

namespace tangram {

class Stager;
class Walker;
class Words;

// May be called from any thread; driver calls exclude each other (Core::calls).
class Runner {
 public:
  explicit Runner(Core* core);
  ~Runner();  // stops all work on attempts

  // Data of a call besides its event.
  struct Call {
    JobPtr job;            // Prepare: what to build
    std::stop_token stop;  // the caller no longer waits
  };
  attempt::Answer Run(const attempt::Event& event);
  attempt::Answer Run(const attempt::Event& event, const Call& call);
  // A driver call for `attempt` is about to end the run that has this attempt or precedes it. Ends
  // the run's waits, for example for a stopped engine.
  void Interrupt(uint64_t attempt);

 private:
  struct Progress;
  using End = std::variant<attempt::Event, attempt::Answer>;

  // Each carries out one action and returns its result, or the reply.
  End Do(const attempt::Build& next, const Progress& progress);
  End Do(const attempt::KeepOld& next, const Progress& progress);
  End Do(const attempt::Reserve& next, const Progress& progress);
  End Do(const attempt::StartStaging& next, const Progress& progress);
  End Do(const attempt::TellWords& next, const Progress& progress);
  End Do(const attempt::Commit& next, const Progress& progress);
  End Do(const attempt::AskPeers& next, const Progress& progress);
  End Do(const attempt::Drop& next, const Progress& progress);
  End Do(const attempt::ReturnOld& next, const Progress& progress);
  End Do(const attempt::Dismiss& next, const Progress& progress);
  End Do(const attempt::Empty& next, const Progress& progress);
  End Do(const attempt::Wait& next, const Progress& progress);
  End Do(const attempt::Answer& next, const Progress& progress);

  JobPtr JobOf(uint64_t attempt);
  JobPtr Stop(uint64_t attempt);  // stops the work on it

  Core* const core_;
  const std::unique_ptr<Words> words_;
  const std::unique_ptr<Stager> stager_;  // destroyed before words_, which it may be about to start
  const std::unique_ptr<Walker> walker_;  // destroyed before both
};

}  // namespace tangram
