// Replays histories of the Spin model (tests/model/README.md, "Replay") through the shipping
// attempts. Each rank is an agent (Machine) over a gate that follows rules.h. Standard input has
// one event per line: those of agent/gate/testing/replay.cc (`heard` has no effect here), and
//
//   new EPOCH | first MEMBERS          a history begins; these ranks are members of that epoch
//   begin ATTEMPT EPOCH BEFORE AFTER   the members of either mask prepare and stage an attempt
//   mend R ATTEMPT EPOCH MEMBERS       the same for a repair, by one rank
//   went R ATTEMPT                     an abort that finds the attempt flipped
//   drop R ATTEMPT                     an abort of a repair without a permit
//   hold R ATTEMPT                     a leader looks: no flip by votes before the outcome
//   run ATTEMPT                        the next attempt begins a run up to this one
//   walk R ATTEMPT EPOCH               the run continues with it, until its pieces are verified
//   burn R ATTEMPT                     an abort of the run up to it: flips not begun are withdrawn
//
// The machine must reply as the model does. After every event, calls for which the model has no
// transition are tried: they must be rejected and change nothing. The program exits with 1 at the
// first difference, or if a call of kWanted is missing. It prints the counts of calls by phase.
#include <fmt/format.h>

#include <bit>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "agent/attempt/testing/hands.h"

namespace tangram::attempt::testing {
namespace {

constexpr size_t kMostRanks = 64;  // in a mask

// Calls with their phases. A joiner without a permit (forward STAGED) is missing: the model permits
// joiners first.
const std::set<std::string> kWanted = {
    "prepare none",   "prepare FLIPPED",   "stage PREPARED",  "permit STAGED",   "seen STAGED",
    "flip PERMITTED", "join PERMITTED",    "words PERMITTED", "abort PERMITTED", "abort none",
    "drop STAGED",    "hold STAGED",       "hold PERMITTED",  "stay none",       "stay STAGED",
    "stay PERMITTED", "forward PERMITTED", "retire FLIPPED",  "walk none",       "burn none",
    "burn PERMITTED",
};

struct Difference {
  std::string what;
};

void Want(bool holds, const std::string& what) {
  if (!holds) throw Difference{what};
}

uint64_t Number(std::istringstream& in) {
  uint64_t n = 0;
  Want(static_cast<bool>(in >> n), "a number is missing");
  return n;
}

// The rank's place among the members of a mask; -1: no member.
int32_t PlaceOf(size_t rank, uint64_t members) {
  if ((members >> rank & 1) == 0) return -1;
  return std::popcount(members & ((uint64_t{1} << rank) - 1));
}

std::string PodOf(size_t rank) { return "pod" + std::to_string(rank); }

// An agent with one rank.
class Agent {
 public:
  Agent(size_t rank, uint64_t epoch, uint64_t members, std::map<std::string, uint64_t>* taken)
      : rank_(rank), taken_(taken) {
    const int32_t place = PlaceOf(rank, members);
    if (place < 0) return;
    gate().epoch = epoch;
    (void)Said(Resumed{0, Hands::MemberOf(0), place, epoch, 0});
  }

  // Takes an attempt up to phase Staged.
  void Stage(Kind kind, uint64_t attempt, uint64_t epoch, uint64_t members, uint64_t run_last = 0,
             bool by_run = false) {
    const Header header{"w", epoch - 1, attempt};
    Count(by_run ? "walk" : "prepare");
    Prepare ask = AskPrepare(kind, header);
    ask.by_run = by_run;
    members_ = members;
    Later next = Tell(ask);
    Want(std::holds_alternative<Build>(next), "Prepare is refused");
    Plan plan = PlanFor(kind, attempt, epoch, members);
    plan.run_last = run_last;
    next = Tell(Built{plan});
    if (const auto* keep = std::get_if<KeepOld>(&next)) next = Tell(Kept{keep->attempt});
    Want(std::holds_alternative<Reserve>(next), "the plan is refused: " + Why(next));
    Ok(Tell(Reserved{attempt, OkStatus()}), "what is reserved");
    Count("stage");
    Want(std::holds_alternative<StartStaging>(Tell(attempt::Stage{header})), "Stage is refused");
    Ok(Tell(Begun{attempt}), "staging");
    if (by_run) Refused(Tell(attempt::Permit{header, true}), "a permit for what is not verified");
    Ok(Tell(Staged{attempt, OkStatus()}), "what is staged");
    Want(PhaseNow() == Phase::kStaged, "it is not staged");
  }

  // The permit comes from the driver, or from a peer if the driver is away.
  void Permit(uint64_t attempt) {
    Want(PhaseNow() == Phase::kStaged, "the permit comes to what is not staged");
    const auto* run = machine().run();
    const bool by_run = run != nullptr && run->Has(attempt) && attempt > run->first;
    const bool seen = rank_ % 2 == 1 && !machine().attempt()->by_agents() && !by_run;
    Count(by_run ? "run" : seen ? "seen" : "permit");
    Later next = seen ? Tell(PermitSeen{attempt}) : Tell(attempt::Permit{HeaderOf(), by_run});
    if (std::holds_alternative<TellWords>(next)) next = Tell(Begun{attempt});
    Ok(next, "the permit");
    Want(PhaseNow() == Phase::kPermitted, "it is not permitted");
    if (machine().attempt()->held) HoldsItsWord();
  }

  void Word(bool go) {
    if (go) Want(hands_.Move(0, GateEvent::kWord), "no word without a permit");
  }
  void Unlatch() {
    if (gate().state == GateState::kLatched) (void)hands_.Move(0, GateEvent::kUnlatch);
  }
  void Stop(bool pulled) {
    if (!pulled) Unlatch();
    gate().stopped = true;
  }

  void Flip(const char* how, uint64_t attempt, uint64_t epoch) {
    Count(how);
    Want(AttemptNow() == attempt, "another attempt is under way");
    Ok(Finish(Tell(EngineFlip{HeaderOf(), 0, kTarget})), "the engine's flip");
    Flipped(epoch);
    const auto* run = machine().run();
    if (run != nullptr && !run->over && run->Has(attempt) && attempt < run->last) {
      gate().steps = 0;
      Refused(Tell(attempt::Retire{HeaderOf(), true}),
              "a flip is retired that others may not have");
      gate().steps = 1;
      Ok(Finish(Tell(attempt::Retire{HeaderOf(), true})), "the retirement");
      return;
    }
    Retire();
    Want(Said(Abort{{"w", epoch - 1, attempt}, "late"}).flipped,
         "an abort after the flip is not told so");
  }

  // Takes the run's next flip up to phase Staged.
  void Walk(uint64_t attempt, uint64_t epoch) {
    Stage(Kind::kLayout, attempt, epoch, members_, 0, true);
  }
  // The model aborts or continues the attempt in progress in a separate step.
  void Burn(uint64_t last) {
    Count("burn");
    const Abort abort{{"w", machine().epoch(), last}, "model"};
    if (machine().attempt() == nullptr) {
      Want(!Said(abort).flipped || machine().highest() == last, "a run is over, and was not");
    } else if (gate().state == GateState::kLatched) {
      Want(std::holds_alternative<AskPeers>(Tell(abort)), "an abort of a word that was given");
      Refused(Tell(PeersSaid{AttemptNow(), Say::kNothing, {}, true}),
              "an abort of a word that was given");
    } else {
      Ok(Tell(RunStuck{last, "model"}), "the end of the run");
    }
    Want(machine().run() == nullptr || machine().run()->over, "the run goes on");
  }

  // The votes of all arrive.
  void Mend(uint64_t attempt, uint64_t epoch) {
    Want(AttemptNow() == attempt && PhaseNow() == Phase::kPermitted, "the repair is not permitted");
    Count("words");
    const std::vector<std::string> pods = machine().attempt()->plan.pods;
    Later next = Tell(WordsOut{attempt});
    for (uint32_t place = 0; place < pods.size(); ++place) {
      if (pods[place] == PodOf(rank_)) continue;
      Want(!std::holds_alternative<Commit>(next), "it flips before all words are there");
      next = Tell(attempt::Word{HeaderOf(), kTarget, {place}, pods[place]});
    }
    Want(std::holds_alternative<Commit>(next), "all words are there, and it does not flip");
    Ok(Finish(next), "the flip by words");
    Flipped(epoch);
    Want(!gate().stopped, "it still stands still");
    Retire();
  }

  void Withdraw(const char* how, uint64_t attempt) {
    Want(AttemptNow() == attempt, "another attempt is under way");
    Count(how);
    const Answer answer = Ok(Finish(Tell(Abort{HeaderOf(), "model"})), "the abort");
    Want(!answer.flipped && machine().attempt() == nullptr, "it is not taken back");
    Want(gate().state == GateState::kIdle, "its gate is not idle");
  }
  void Went(uint64_t attempt) {
    Count("abort");
    Want(Ok(Tell(Abort{{"w", machine().epoch(), attempt}, "model"}), "the abort").flipped,
         "an abort is told that it did not flip");
  }

  void Hold(uint64_t attempt) {
    Want(AttemptNow() == attempt, "another attempt is under way");
    Count("hold");
    Ok(Tell(Resolve{HeaderOf(), Outcome::kHold, {}, "model"}), "the hold");
    if (PhaseNow() == Phase::kPermitted) HoldsItsWord();
  }

  void Forward(uint64_t attempt, uint64_t epoch) {
    Want(AttemptNow() == attempt, "another attempt is under way");
    Count("forward");
    Ok(Finish(Tell(Resolve{HeaderOf(), Outcome::kForward, {}, "model"})), "the outcome");
    Flipped(epoch);
    Want(gate().stopped, "it does not stand still");
  }

  // A rank at the fence's epoch stays there. A flip that brought it there is the outcome.
  void Fence() {
    const bool forward = PhaseNow() == Phase::kFlipped;
    Count(forward ? "forward" : "stay");
    const uint64_t epoch = machine().epoch();
    const Header header = machine().attempt() != nullptr ? HeaderOf() : Header{"w", epoch, 0};
    Ok(Finish(Tell(Resolve{header, forward ? Outcome::kForward : Outcome::kStay, {}, "model"})),
       "the outcome");
    Want(machine().epoch() == epoch && (forward || machine().attempt() == nullptr),
         "it does not stay");
    Want(forward || gate().state == GateState::kIdle, "a fenced rank is still armed");
  }

  void Is(bool armed, bool latched) {
    const GateState want = latched ? GateState::kLatched
                           : armed ? GateState::kArmed
                                   : GateState::kIdle;
    Want(gate().state == want, fmt::format("gate {}, the model has {}",
                                           static_cast<int>(gate().state), static_cast<int>(want)));
  }

  // Tries calls for which the model has no transition.
  void Probe() {
    const Machine::Attempt* now = machine().attempt();
    const Header header =
        now != nullptr ? HeaderOf() : Header{"w", machine().epoch(), machine().highest()};
    Header next = header;
    next.attempt = machine().highest() + 1;
    const bool member = machine().ranks()[0].rank >= 0;
    Refused(Tell(attempt::Permit{next}), "a permit of another attempt");
    Prepare again = AskPrepare(Kind::kLayout, header);
    again.request_hash = "another";
    Refused(Tell(again), "an attempt that is burned, or under way with another plan");
    if (const auto* run = machine().run(); run != nullptr && (run->over || gate().stopped)) {
      for (const uint64_t attempt : {run->first + 1, run->last}) {
        Prepare onward = AskPrepare(Kind::kLayout, {"w", machine().epoch(), attempt});
        onward.request_hash = "onward";
        onward.by_run = true;
        Refused(Tell(onward), "a flip of a run that is over");
      }
      if (PhaseNow() == Phase::kStaged) {
        Refused(Tell(attempt::Permit{header, true}), "the permit of a run that is over");
      }
    }
    if (now == nullptr) {
      if (!member || gate().stopped) return;
      next.epoch = machine().epoch();
      Want(std::holds_alternative<Build>(Tell(AskPrepare(Kind::kRepair, next))),
           "Prepare is refused");
      Refused(Tell(Built{PlanFor(Kind::kRepair, next.attempt, next.epoch + 1, 1 << rank_)}),
              "a repair of who steps");
      return;
    }
    Refused(Tell(AskPrepare(Kind::kLayout, next)), "a second attempt");
    if (now->phase == Phase::kFlipped) return;
    Refused(Tell(attempt::Retire{header}), "a flip is retired that was none");
    if (now->by_agents()) return;
    if (gate().state != GateState::kLatched || gate().stopped)
      Refused(Tell(EngineFlip{header, 0, kTarget}), "an engine's flip");
    const auto* run = machine().run();
    const bool walks = run != nullptr && !run->over;  // an abort would end the run
    if (gate().state == GateState::kLatched && !walks) {
      Want(std::holds_alternative<AskPeers>(Tell(Abort{header, "probe"})),
           "an abort of a word that was given");
      Refused(Tell(PeersSaid{header.attempt, Say::kNothing, {}, true}),
              "an abort of a word that was given");
    }
    if (member && !gate().stopped) {
      Refused(Tell(Resolve{header, Outcome::kStay, {}, "probe"}),
              "an outcome for who has not stopped");
      Refused(Tell(Resolve{header, Outcome::kForward, {}, "probe"}),
              "an outcome for who has not stopped");
    }
  }

  std::string State() const {
    std::string out = fmt::format("{} {} {} {} {}", machine().highest(), machine().epoch(),
                                  machine().ranks()[0].rank,
                                  static_cast<int>(hands_.gates[0].state), hands_.gates[0].stopped);
    if (const auto* now = machine().attempt())
      out += fmt::format(" {} {} {}", now->plan.attempt, static_cast<int>(now->phase),
                         now->words.size());
    return out;
  }

 private:
  static constexpr const char* kTarget = "target";

  const Machine& machine() const { return hands_.machine; }
  Hands::Gate& gate() { return hands_.gates[0]; }
  Later Tell(const Event& event) { return hands_.Tell(event); }
  Answer Said(const Event& event) { return Ok(Tell(event), "an event"); }
  uint64_t AttemptNow() const {
    return machine().attempt() == nullptr ? 0 : machine().attempt()->plan.attempt;
  }
  Phase PhaseNow() const {
    return machine().attempt() == nullptr ? Phase::kUnspecified : machine().attempt()->phase;
  }
  Header HeaderOf() const { return {"w", machine().attempt()->plan.from_epoch, AttemptNow()}; }

  static std::string Why(const Later& next) {
    const auto* answer = std::get_if<Answer>(&next);
    return answer == nullptr ? "it is not answered" : answer->status.message();
  }
  static Answer Ok(const Later& next, const std::string& what) {
    const auto* answer = std::get_if<Answer>(&next);
    Want(answer != nullptr && answer->status.ok(), what + ": " + Why(next));
    return *answer;
  }
  void Refused(const Later& next, const char* what) {
    const auto* answer = std::get_if<Answer>(&next);
    Want(answer != nullptr && !answer->status.ok(),
         fmt::format("{} is not refused in {}", what, NameOf(PhaseNow())));
  }

  void Count(const std::string& call) {
    const std::string phase =
        machine().attempt() == nullptr ? "none" : std::string(NameOf(PhaseNow())).substr(6);
    ++(*taken_)[call + " " + phase];
  }

  static Prepare AskPrepare(Kind kind, const Header& header) {
    return {header, kind, header.epoch + 1, "request " + std::to_string(static_cast<int>(kind)),
            OkStatus()};
  }
  Plan PlanFor(Kind kind, uint64_t attempt, uint64_t epoch, uint64_t members) const {
    Plan plan;
    plan.attempt = attempt;
    plan.kind = kind;
    plan.from_epoch = epoch - 1;
    plan.target_epoch = epoch;
    plan.request_hash = "request " + std::to_string(static_cast<int>(kind));
    plan.target_hash = kTarget;
    for (size_t rank = 0; rank < kMostRanks; ++rank) {
      if ((members >> rank & 1) != 0) plan.pods.push_back(PodOf(rank));
    }
    plan.target_ranks = {PlaceOf(rank_, members)};
    const int32_t number = kind == Kind::kLeave ? machine().ranks()[0].rank : plan.target_ranks[0];
    plan.parts = {{Hands::MemberOf(0), static_cast<uint32_t>(number)}};
    return plan;
  }

  // Completes an action that takes time successfully.
  Later Finish(Later next) {
    if (const auto* commit = std::get_if<Commit>(&next)) {
      next = Tell(
          Committed{commit->attempt, commit->devices, commit->devices.size(), commit->by, {}, {0}});
    }
    if (const auto* drop = std::get_if<Drop>(&next)) next = Tell(Dropped{drop->attempt});
    if (const auto* old = std::get_if<ReturnOld>(&next))
      next = Tell(Returned{old->attempt, OkStatus()});
    return next;
  }

  void Flipped(uint64_t epoch) {
    Want(gate().epoch == epoch && gate().state == GateState::kFlipped,
         "it flipped and does not say so");
  }
  void Retire() {
    Count("retire");
    gate().steps = 1;
    Ok(Finish(Tell(attempt::Retire{HeaderOf()})), "the retirement");
    Want(machine().attempt() == nullptr && gate().state == GateState::kIdle,
         "a retired flip stays");
  }

  // All votes arrive, and the rank waits for the outcome.
  void HoldsItsWord() {
    const std::vector<std::string> pods = machine().attempt()->plan.pods;
    Ok(Tell(WordsOut{AttemptNow()}), "who is held");
    for (uint32_t place = 0; place < pods.size(); ++place) {
      if (pods[place] != PodOf(rank_))
        Ok(Tell(attempt::Word{HeaderOf(), kTarget, {place}, pods[place]}), "who is held");
    }
    Want(PhaseNow() == Phase::kPermitted, "who is held flips");
  }

  const size_t rank_;
  uint64_t members_ = 0;  // of the last staged attempt
  Hands hands_{1};
  std::map<std::string, uint64_t>* const taken_;
};

class Replay {
 public:
  void Take(const std::string& line) {
    std::istringstream in(line);
    std::string event;
    in >> event;
    if (event == "new") return New(Number(in));
    if (event == "first") return First(Number(in));
    if (event == "begin") return Begin(in);
    if (event == "run") {
      run_last_ = Number(in);
      return;
    }
    const uint64_t r = Number(in);
    Want(r < agents_.size(), "no such rank");
    Agent& agent = *agents_[r];
    if (event == "heard") return;
    if (event == "mend") {
      const uint64_t attempt = Number(in), epoch = base_ + Number(in);
      agent.Stage(Kind::kRepair, attempt, epoch, Number(in));
    } else if (event == "walk") {
      const uint64_t attempt = Number(in);
      agent.Walk(attempt, base_ + Number(in));
    } else if (event == "burn") {
      agent.Burn(Number(in));
    } else if (event == "arm") {
      agent.Permit(Number(in));
    } else if (event == "word") {
      (void)Number(in);
      agent.Word(Number(in) != 0);
    } else if (event == "go") {
      agent.Is(true, true);
    } else if (event == "stay" || event == "decline") {
      agent.Unlatch();
    } else if (event == "stop") {
      agent.Stop(Number(in) != 0);
    } else if (event == "flip" || event == "join") {
      const uint64_t attempt = Number(in), epoch = base_ + Number(in);
      if (event == "join") agent.Word(true);
      agent.Flip(event.c_str(), attempt, epoch);
    } else if (event == "mended") {
      const uint64_t attempt = Number(in);
      agent.Mend(attempt, base_ + Number(in));
    } else if (event == "withdraw" || event == "drop") {
      agent.Withdraw(event == "drop" ? "drop" : "abort", Number(in));
    } else if (event == "went") {
      agent.Went(Number(in));
    } else if (event == "hold") {
      agent.Hold(Number(in));
    } else if (event == "forward") {
      const uint64_t attempt = Number(in);
      agent.Forward(attempt, base_ + Number(in));
    } else if (event == "fence") {
      agent.Fence();
    } else if (event == "is") {
      const bool armed = Number(in) != 0;
      agent.Is(armed, Number(in) != 0);
    } else {
      Want(false, "no such event");
    }
    const std::string before = agent.State();
    agent.Probe();
    Want(agent.State() == before, "what was refused changed something");
  }

  uint64_t histories() const { return histories_; }
  const std::map<std::string, uint64_t>& taken() const { return taken_; }

 private:
  void New(uint64_t epoch) {
    ++histories_;
    base_ = epoch;
    run_last_ = 0;
    agents_.clear();
  }
  void First(uint64_t members) {
    for (size_t rank = 0; rank < 3; ++rank)
      agents_.push_back(std::make_unique<Agent>(rank, base_, members, &taken_));
  }
  void Begin(std::istringstream& in) {
    const uint64_t attempt = Number(in), epoch = base_ + Number(in), before = Number(in),
                   after = Number(in);
    const Kind kind = (after & ~before) != 0   ? Kind::kJoin
                      : (before & ~after) != 0 ? Kind::kLeave
                                               : Kind::kLayout;
    for (size_t rank = 0; rank < agents_.size(); ++rank) {
      if (((before | after) >> rank & 1) != 0)
        agents_[rank]->Stage(kind, attempt, epoch, after, run_last_);
    }
    run_last_ = 0;
  }

  uint64_t histories_ = 0, base_ = 0, run_last_ = 0;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::map<std::string, uint64_t> taken_;
};

int Main() {
  Replay replay;
  std::string line;
  uint64_t lines = 0;
  while (std::getline(std::cin, line)) {
    ++lines;
    try {
      replay.Take(line);
    } catch (const Difference& difference) {
      fmt::print("history {}, line {}: {}: {}\n", replay.histories(), lines, line, difference.what);
      return 1;
    }
  }
  int missing = 0;
  for (const std::string& call : kWanted) {
    const auto it = replay.taken().find(call);
    if (it != replay.taken().end()) continue;
    fmt::print("never: {}\n", call);
    ++missing;
  }
  for (const auto& [call, times] : replay.taken()) fmt::print("{}: {}\n", call, times);
  fmt::print("{} histories, {} events, {} calls never came\n", replay.histories(), lines, missing);
  return missing == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tangram::attempt::testing

int main() { return tangram::attempt::testing::Main(); }
