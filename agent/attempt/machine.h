// What follows from what happens to the attempts of one agent, from Prepare to Retire
// (docs/architecture.md, section 4):
//
//   Idle -> Prepared -> Staging -> Staged -> Permitted -> Flipped -> Idle
//              any of the first four -> Failed -> Abort -> Idle
//
// Pure: no lock, no clock, no I/O. Who runs it tells one event at a time and does what the
// answer says (actions.h). A refusal names what is current, and leaves everything as it was.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/attempt/actions.h"

namespace tangram::attempt {

class Machine {
 public:
  // A local rank.
  struct Rank {
    std::string member;
    int32_t rank = -1;     // in the layout in force here; -1: none, or about to leave
    uint64_t epoch = 0;    // of the layout that it has places of; 0: none
    bool removed = false;  // by a repair; released when that retires
  };
  // What one rank does in an attempt.
  struct Part {
    int32_t target_rank = -1;
    bool joining = false;
    bool leaving = false;
    bool flipped = false;
    bool committing = false;  // its memory is on the way; the outcome will be told
    bool gone = false;        // its engine, since then
  };
  struct Attempt {
    Plan plan;
    Phase phase = Phase::kIdle;
    std::string error;
    std::map<uint32_t, Part> parts;  // by device
    std::set<uint32_t> words;        // by agents: ranks that gave theirs
    bool contributed = false;        // by agents: ours are out
    bool held = false;               // no flip by words until the outcome is told
    bool over = false;               // its outcome is settled; it is being cleared up
    std::string reason;              // of its end
    std::deque<uint32_t> flipping;   // devices that committed, and flip at once
    uint32_t failing = 0;            // the next device, which did not, and why
    Status failure;

    // No engine steps: the agents exchange the words.
    bool by_agents() const { return plan.kind == Kind::kFirst || plan.kind == Kind::kRepair; }
    bool any_flipped() const;
    bool committing() const;
  };
  // Attempts of flips that follow one another under the permit of the first (run.cc).
  struct Run {
    uint64_t first = 0, last = 0;
    bool permitted = false;
    bool over = false;  // nothing more of it is begun here
    std::string why;    // it is over before its last flip

    bool Has(uint64_t attempt) const { return first <= attempt && attempt <= last; }
  };
  // What another agent learns of an attempt.
  struct View {
    Phase phase = Phase::kUnspecified;  // kUnspecified: never heard of
    bool flipped = false;
    bool contributed = false;
  };

  // The number of flips that are remembered. No peer asks about an older one.
  static constexpr size_t kMostFlipped = 1024;

  // Members by device. `abort_wait`: for an engine that gave its word.
  Machine(std::string world, std::chrono::milliseconds abort_wait,
          std::vector<std::string> members);

  // `gates`: by device, as they are now.
  Step On(const Event& event, const Gates& gates);

  const std::vector<Rank>& ranks() const { return ranks_; }
  const Attempt* attempt() const { return attempt_ ? &*attempt_ : nullptr; }  // under way
  const Attempt* last() const { return last_ ? &*last_ : nullptr; }           // the one before
  const Run* run() const { return run_ ? &*run_ : nullptr; }                  // the newest
  uint64_t highest() const { return highest_; }
  // The device of the lowest epoch of the ranks in the world: what is in force here for all of
  // them. With none in the world, that of leavers which still hold their places.
  std::optional<uint32_t> InForce() const;
  uint64_t epoch() const;  // of that; 0: none
  // Whether something may still be asked about the attempt's own data.
  bool Knows(uint64_t attempt) const;

  View ViewOf(uint64_t attempt, const Gates& gates) const;
  Status CheckWorld(const Header& header) const;
  Status CheckPeer(const Header& header) const;  // the same, of another agent's call
  // That a call is for the attempt under way, by its number and epoch.
  Status CheckCurrent(const Header& header, const char* call) const;
  // Whether an engine may attach now.
  Status CheckAttach(uint32_t device) const;
  // Whether other agents may read, for this attempt, what is here.
  Status CheckPull(const Header& header) const;
  // `ahead`: before the flip, while engines step.
  Status CheckKvPull(const Header& header, uint32_t device, bool ahead) const;

 private:
  // prepare.cc
  Step Do(const Prepare& event, const Gates& gates);
  Step Do(const Built& event, const Gates& gates);
  Step Do(const Reserved& event, const Gates& gates);
  Step Do(const Stage& event, const Gates& gates);
  Step Do(const Begun& event, const Gates& gates);
  Step Do(const Staged& event, const Gates& gates);
  Status FindParts(Attempt* attempt) const;
  Status CheckConcerned(const Attempt& attempt, const Gates& gates, Step* step) const;
  Step Fail(const std::string& error);
  // flip.cc
  Step Do(const Permit& event, const Gates& gates);
  Step Do(const PermitSeen& event, const Gates& gates);
  Step Do(const Armed& event, const Gates& gates);
  Step Do(const WordsOut& event, const Gates& gates);
  Step Do(const Word& event, const Gates& gates);
  Step Do(const EngineFlip& event, const Gates& gates);
  Step Do(const Committed& event, const Gates& gates);
  Step Do(const GateFlipped& event, const Gates& gates);
  Status CheckPermit() const;
  bool WordsComplete() const;
  Step FlipAll(By by, Step step = {});
  Step FlipGates(By by, Step step);
  Step FlipFailed(By by, uint32_t device, const Status& status, Step step);
  Step AfterFlips(By by, Step step);
  // end.cc
  Step Do(const Abort& event, const Gates& gates);
  Step Do(const TakenBack& event, const Gates& gates);
  Step Do(const PeersSaid& event, const Gates& gates);
  Step Do(const Dropped& event, const Gates& gates);
  Step Do(const Retire& event, const Gates& gates);
  Step Do(const Returned& event, const Gates& gates);
  Step Do(const EngineGone& event, const Gates& gates);
  Step Do(const EngineCame& event, const Gates& gates);
  Step AfterPeers(Step step) const;
  Step GiveUp(Step step = {}, bool keep = false);
  void CloseFlipped(Attempt* attempt, Step* step);
  // run.cc
  Step Do(const RunStuck& event, const Gates& gates);
  Status CheckRun(uint64_t attempt, const Gates& gates) const;
  void EndRun(const std::string& why, Step* step = nullptr);
  uint64_t UnderWay(uint64_t attempt) const;
  // fence.cc
  Step Do(const Resolve& event, const Gates& gates);
  Step Do(const Release& event, const Gates& gates);
  Step Do(const Kept& event, const Gates& gates);
  Step Do(const Dismissed& event, const Gates& gates);
  Step Do(const Emptied& event, const Gates& gates);
  Step Do(const Resumed& event, const Gates& gates);
  Step Over(const Resolve& event);
  Step GoForward(Step step = {});
  Step ReleaseNext(Step step);

  const std::string world_;
  const std::chrono::milliseconds abort_wait_;
  std::vector<Rank> ranks_;
  std::optional<Attempt> attempt_, last_;
  std::optional<Attempt> before_;  // flipped, and a repair follows it at once
  uint64_t highest_ = 0;
  std::set<uint64_t> flipped_;  // attempts that did; the newest kMostFlipped
  std::optional<Run> run_;
  bool expired_ = false;  // the abort under way has waited for as long as it may
  struct Releasing {
    std::deque<uint32_t> devices;
    std::string reason;
  } releasing_;
};

}  // namespace tangram::attempt
