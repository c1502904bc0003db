// Carries out what the machine says, until the call that began it is answered.
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
  ~Runner();  // ends what works on attempts

  // What a call brings beside its event.
  struct Call {
    JobPtr job;            // Prepare: what to build
    std::stop_token stop;  // nobody waits for the answer any more
  };
  attempt::Answer Run(const attempt::Event& event);
  attempt::Answer Run(const attempt::Event& event, const Call& call);
  // A driver call for `attempt` is about to end the run, which is of it or came before: what that
  // waits for (an engine that stands still, say) is waited for no longer.
  void Interrupt(uint64_t attempt);

 private:
  struct Progress;
  using End = std::variant<attempt::Event, attempt::Answer>;

  // One each: what to do, and then what to tell.
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
  JobPtr Stop(uint64_t attempt);  // and what works on it sees that soon

  Core* const core_;
  const std::unique_ptr<Words> words_;
  const std::unique_ptr<Stager> stager_;  // goes before: it may be about to start the words
  const std::unique_ptr<Walker> walker_;  // and this one before both
};

}  // namespace tangram
