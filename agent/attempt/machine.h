// The state machine of one agent's attempts, from Prepare to Retire (docs/architecture.md,
// section 4):
//
//   Idle -> Prepared -> Staging -> Staged -> Permitted -> Flipped -> Idle
//              any of the first four -> Failed -> Abort -> Idle
//
// Pure: no lock, clock or I/O. The caller passes one event at a time and carries out the returned
// step (actions.h). A rejection names the current state and changes nothing.
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
    int32_t rank = -1;     // in the active layout here; -1: none, or about to leave
    uint64_t epoch = 0;    // of the layout whose places it holds; 0: none
    bool removed = false;  // by a repair; released when the repair retires
  };
  // One rank's part in an attempt.
  struct Part {
    int32_t target_rank = -1;
    bool joining = false;
    bool leaving = false;
    bool flipped = false;
    bool committing = false;  // its memory commits; the result is a later event
    bool gone = false;        // its engine detached since
  };
  struct Attempt {
    Plan plan;
    Phase phase = Phase::kIdle;
    std::string error;
    std::map<uint32_t, Part> parts;  // by device
    std::set<uint32_t> words;        // by agents: ranks that voted
    bool contributed = false;        // by agents: our votes are sent
    bool held = false;               // no flip by votes before the outcome of the fence
    bool over = false;               // its outcome is decided; cleanup is in progress
    std::string reason;              // of its end
    std::deque<uint32_t> flipping;   // devices that committed; their gates flip next
    uint32_t failing = 0;            // the first device that did not commit
    Status failure;

    // No engine steps, so the agents exchange the votes.
    bool by_agents() const { return plan.kind == Kind::kFirst || plan.kind == Kind::kRepair; }
    bool any_flipped() const;
    bool committing() const;
  };
  // Consecutive flips under the permit of the first (run.cc).
  struct Run {
    uint64_t first = 0, last = 0;
    bool permitted = false;
    bool over = false;  // no more of its flips begin here
    std::string why;    // the reason why it ended before its last flip

    bool Has(uint64_t attempt) const { return first <= attempt && attempt <= last; }
  };
  // An attempt's state as other agents see it.
  struct View {
    Phase phase = Phase::kUnspecified;  // kUnspecified: unknown attempt
    bool flipped = false;
    bool contributed = false;
  };

  // Number of remembered flips. No peer queries an older one.
  static constexpr size_t kMostFlipped = 1024;

  // `members` by device. `abort_wait`: maximum wait of an abort if an engine has voted.
  Machine(std::string world, std::chrono::milliseconds abort_wait,
          std::vector<std::string> members);

  // `gates`: current state, by device.
  Step On(const Event& event, const Gates& gates);

  const std::vector<Rank>& ranks() const { return ranks_; }
  const Attempt* attempt() const { return attempt_ ? &*attempt_ : nullptr; }  // in progress
  const Attempt* last() const { return last_ ? &*last_ : nullptr; }           // the previous one
  const Run* run() const { return run_ ? &*run_ : nullptr; }                  // the newest
  uint64_t highest() const { return highest_; }
  // The device with the lowest epoch among the ranks in the world: its layout is active for all of
  // them. If no rank is in the world, among leavers that still hold their places.
  std::optional<uint32_t> InForce() const;
  uint64_t epoch() const;  // of that device; 0: none
  // Whether the attempt's own data can still be queried.
  bool Knows(uint64_t attempt) const;

  View ViewOf(uint64_t attempt, const Gates& gates) const;
  Status CheckWorld(const Header& header) const;
  Status CheckPeer(const Header& header) const;  // for another agent's call
  // Ok if a call is for the attempt in progress, by its number and epoch.
  Status CheckCurrent(const Header& header, const char* call) const;
  // Whether an engine may attach now.
  Status CheckAttach(uint32_t device) const;
  // Ok if other agents may read this agent's pages for this attempt.
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
  std::optional<Attempt> before_;  // flipped, and a repair follows it directly
  uint64_t highest_ = 0;
  std::set<uint64_t> flipped_;  // ids of flipped attempts; the newest kMostFlipped
  std::optional<Run> run_;
  bool expired_ = false;  // the abort in progress has waited for its maximum time
  struct Releasing {
    std::deque<uint32_t> devices;
    std::string reason;
  } releasing_;
};

}  // namespace tangram::attempt
