// Random histories of one agent's attempts: calls at any moment; engines that step, stop, detach
// and attach; peers that reply anything; failing work. Invariants are checked after each event.
// PROPERTY_SEED=n runs only history n.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <list>
#include <optional>
#include <random>
#include <set>

#include "agent/attempt/testing/hands.h"

namespace tangram::attempt::testing {
namespace {

constexpr uint32_t kRanks = 3;
constexpr int kHistories = 5'000;
constexpr int kEvents = 400;

class History {
 public:
  explicit History(uint64_t seed) : random_(seed) {}

  void Play() {
    for (int i = 0; i < kEvents && !::testing::Test::HasFailure(); ++i) One();
    // Whatever is in progress, the end of the world frees everything.
    Drain();
    Call(Release{{"w", 0, 0}, {}, true, "end"}, true);
    Drain();
    EXPECT_EQ(machine().attempt(), nullptr);
    EXPECT_EQ(machine().epoch(), 0u);
    for (const Hands::Gate& gate : hands_.gates) EXPECT_EQ(gate.state, GateState::kIdle);
  }

  size_t flips() const { return flipped_.size(); }
  size_t aborts() const { return aborted_.size(); }

 private:
  // A call without a reply so far, or work outside calls.
  struct Running {
    Event event;
    Later next;
    bool driver = false;
  };
  using Place = std::list<Running>::iterator;

  const Machine& machine() const { return hands_.machine; }
  uint64_t Number(uint64_t below) { return random_() % below; }
  bool Chance(uint64_t percent) { return Number(100) < percent; }

  // Completes everything in progress.
  void Drain() {
    for (int i = 0; i < 1000 && !calls_.empty() && !::testing::Test::HasFailure(); ++i) Any();
    EXPECT_TRUE(calls_.empty()) << "a call has no end";
  }

  void Any() { Advance(std::next(calls_.begin(), static_cast<long>(Number(calls_.size())))); }

  void One() {
    const uint64_t what = Number(100);
    if (what < 45 && !calls_.empty()) return Any();
    if (what < 70) {
      for (const Running& call : calls_) {
        if (call.driver) return;
      }
      return Call(DriverCall(), true);
    }
    const auto device = static_cast<uint32_t>(Number(kRanks));
    if (what < 90) return Engine(device);
    if (what < 94 && !staging_.empty()) {
      const uint64_t attempt = *staging_.begin();
      staging_.erase(attempt);
      const bool ok = Chance(85);
      if (ok) staged_.insert(attempt);
      return Call(Staged{attempt, ok ? OkStatus() : Status{Code::kUnavailable, "no source"}});
    }
    if (what < 95 && machine().attempt())
      return Call(PermitSeen{machine().attempt()->plan.attempt});
    if (what < 97 && !words_.empty()) {
      const uint64_t attempt = *words_.begin();
      words_.erase(attempt);
      return Call(WordsOut{attempt});
    }
    Call(Word{HeaderNow(), "target", {static_cast<uint32_t>(2 + Number(2))}, "other"});
  }

  Header HeaderNow() {
    const Machine::Attempt* attempt = machine().attempt();
    uint64_t id = attempt && Chance(80) ? attempt->plan.attempt : machine().highest() + Number(3);
    if (Chance(5)) id = Number(machine().highest() + 1);
    const uint64_t from = attempt ? attempt->plan.from_epoch : machine().epoch();
    return {Chance(98) ? "w" : "v", Chance(95) ? from : Number(9), id};
  }

  Event DriverCall() {
    const Header header = HeaderNow();
    const Machine::Attempt* attempt = machine().attempt();
    const bool permitted = attempt && attempt->phase == Phase::kPermitted;
    if (Chance(permitted ? 20 : 2)) return Abort{header, "random"};
    if (!attempt || Chance(10)) return AskPrepare(header);
    switch (Number(14)) {
      case 0:
      case 1:
        return Retire{header};
      case 2:
        return Abort{header, "random"};
      case 3:
        return Resolve{header, static_cast<Outcome>(Number(4)), Lost(), "random"};
      case 4:
        return Release{{"w", header.epoch + 1, 0}, Lost(), Chance(20), "random"};
      case 5:
      case 6:
      case 7:
        return Permit{header};
      case 8:
        return AskPrepare(header);
      default:
        return Stage{header};
    }
  }
  std::vector<std::string> Lost() {
    std::vector<std::string> out;
    for (const Machine::Rank& rank : machine().ranks()) {
      if (Chance(30)) out.push_back(rank.member);
    }
    return out;
  }
  Prepare AskPrepare(Header header) {
    header.epoch = Chance(97) ? machine().epoch() : 4;
    const bool first = header.epoch == 0;
    const bool stands = std::any_of(hands_.gates.begin(), hands_.gates.end(),
                                    [](const Hands::Gate& gate) { return gate.stopped; });
    const Kind kind = first    ? Kind::kFirst
                      : stands ? Kind::kRepair
                               : static_cast<Kind>(2 + Number(4));
    return {header, kind, header.epoch + 1, "request " + std::to_string(Number(20) == 0),
            Chance(97) ? OkStatus() : Status{Code::kBadGeometry, "another model"}};
  }
  Plan PlanOf(const Prepare& asked) {
    Plan plan;
    plan.attempt = asked.header.attempt;
    plan.kind = asked.kind;
    plan.from_epoch = asked.header.epoch;
    plan.target_epoch = asked.target_epoch;
    plan.request_hash = asked.request_hash;
    plan.target_hash = "target";
    for (uint32_t device = 0; device < kRanks; ++device) {
      const Machine::Rank& rank = machine().ranks()[device];
      const bool in = rank.rank >= 0;
      bool target = in || asked.kind == Kind::kFirst || (asked.kind == Kind::kJoin && Chance(50));
      if ((asked.kind == Kind::kLeave || asked.kind == Kind::kRepair) && Chance(30)) target = false;
      plan.target_ranks.push_back(target ? static_cast<int32_t>(plan.pods.size()) : -1);
      if (target) plan.pods.push_back("here");
      if (Chance(2) || (!target && (asked.kind != Kind::kLeave || !in))) continue;
      const int32_t number = asked.kind == Kind::kLeave ? rank.rank : plan.target_ranks.back();
      plan.parts.push_back({rank.member, static_cast<uint32_t>(number)});
    }
    for (uint64_t n = Number(2); n > 0; --n) plan.pods.push_back("other");
    return plan;
  }

  // An engine that waits for its flip's reply does nothing else.
  void Engine(uint32_t device) {
    Hands::Gate& gate = hands_.gates[device];
    if (flipping_.contains(device)) {
      if (Chance(5)) Call(EngineGone{device});
      return;
    }
    const Machine::Attempt* attempt = machine().attempt();
    const bool mine = attempt && !attempt->by_agents() && attempt->plan.attempt == gate.attempt;
    switch (Number(8)) {
      case 0:
        if (Chance(8)) return Call(EngineGone{device});
        break;
      case 1:
        if (machine().CheckAttach(device).ok()) return Call(EngineCame{device});
        break;
      case 2:
        if (Chance(90)) break;
        if (Chance(80)) (void)hands_.Move(device, GateEvent::kUnlatch);  // else: reported "pulled"
        gate.stopped = true;
        break;
      case 3:
        (void)hands_.Move(device, GateEvent::kUnlatch);
        break;
      case 4:
        if (!gate.stopped && gate.epoch != 0) ++gate.steps;
        break;
      default:
        if (mine && !gate.stopped && gate.state == GateState::kArmed) {
          (void)hands_.Move(device, GateEvent::kWord);
        } else if (attempt) {
          flipping_.insert(device);
          Call(
              EngineFlip{{"w", attempt->plan.from_epoch, attempt->plan.attempt}, device, "target"});
        }
    }
  }

  void Call(const Event& event, bool driver = false) {
    const std::string before = State();
    calls_.push_back({event, Tell(event), driver});
    const auto* answer = std::get_if<Answer>(&calls_.back().next);
    if (answer != nullptr && !answer->status.ok() && !std::holds_alternative<Permit>(event)) {
      EXPECT_EQ(State(), before) << "a refusal changed something: " << answer->status.message();
    }
  }

  // The machine's visible state, except why an attempt fails.
  std::string State() const {
    std::string out = std::to_string(machine().highest());
    for (const auto* attempt : {machine().attempt(), machine().last()}) {
      out += attempt == nullptr
                 ? " -"
                 : " " + std::to_string(attempt->plan.attempt) + NameOf(attempt->phase);
      if (attempt != nullptr && attempt->held) out += "h";
    }
    for (const Machine::Rank& rank : machine().ranks()) {
      out += " " + rank.member + ":" + std::to_string(rank.rank) + ":" + std::to_string(rank.epoch);
    }
    return out;
  }

  // Does the action that a call waits for, and passes its result.
  void Advance(Place call) {
    const Event event = call->event;
    const Later next = call->next;
    if (const auto* answer = std::get_if<Answer>(&next)) {
      const bool driver = call->driver;
      if (const auto* flip = std::get_if<EngineFlip>(&event)) flipping_.erase(flip->device);
      calls_.erase(call);
      return Answered(event, *answer, driver);
    }
    if (std::holds_alternative<Build>(next) && Chance(10)) {  // the plan is invalid
      calls_.erase(call);
      return;
    }
    call->next = Tell(EndOf(event, next));
  }

  Event EndOf(const Event& event, const Later& next) {
    const auto result = [&] {
      return Chance(88) ? OkStatus() : Status{Code::kInternal, "it does not work"};
    };
    if (std::holds_alternative<Build>(next)) return Built{PlanOf(std::get<Prepare>(event))};
    if (const auto* keep = std::get_if<KeepOld>(&next)) return Kept{keep->attempt};
    if (const auto* reserve = std::get_if<Reserve>(&next))
      return Reserved{reserve->attempt, result()};
    if (const auto* start = std::get_if<StartStaging>(&next)) {
      staging_.insert(start->attempt);
      return Begun{start->attempt};
    }
    if (const auto* words = std::get_if<TellWords>(&next)) {
      words_.insert(words->attempt);
      return Begun{words->attempt};
    }
    if (const auto* commit = std::get_if<Commit>(&next)) {
      Committed end{commit->attempt, commit->devices, commit->devices.size(), commit->by, {}, {}};
      for (const uint32_t device : commit->devices) {
        committing_.erase(device);
        if (Chance(80)) end.attached.insert(device);
      }
      if (end.status = result(); !end.status.ok()) end.done = Number(end.done);
      return end;
    }
    if (const auto* ask = std::get_if<AskPeers>(&next)) {
      std::set<uint32_t> gone;
      for (uint32_t device = 0; device < kRanks; ++device) {
        if (Chance(50) && !flipping_.contains(device)) gone.insert(device);
      }
      return PeersSaid{ask->attempt, static_cast<Say>(Number(3)), gone, Chance(20)};
    }
    if (const auto* drop = std::get_if<Drop>(&next)) {
      staging_.erase(drop->attempt);  // its work was stopped
      words_.erase(drop->attempt);
      return Dropped{drop->attempt};
    }
    if (const auto* back = std::get_if<ReturnOld>(&next)) return Returned{back->attempt, result()};
    if (const auto* dismiss = std::get_if<Dismiss>(&next)) return Dismissed{dismiss->device};
    if (const auto* empty = std::get_if<Empty>(&next)) return Emptied{empty->device};
    return event;  // Wait
  }

  Later Tell(const Event& event) {
    const Gates gates = hands_.Looks();
    const uint64_t highest = machine().highest();
    const auto before = machine().attempt() ? std::optional(*machine().attempt()) : std::nullopt;
    const size_t marked = hands_.marks.size();
    const Later next = hands_.Tell(event);
    EXPECT_GE(machine().highest(), highest) << "a number that is burned stays so";
    EXPECT_EQ(hands_.failed_flips, 0) << "what was committed did not flip";
    for (size_t i = marked; i < hands_.marks.size(); ++i) {
      const auto* ended = std::get_if<Ended>(&hands_.marks[i]);
      if (ended == nullptr || ended->end == End::kRefused) continue;
      if (ended->end == End::kAborted) aborted_.insert(ended->attempt);
      EXPECT_TRUE(over_.insert(ended->attempt).second) << "it ended before";
    }
    CheckPhase(before);
    CheckGivenUp(event, before, gates);
    CheckNext(next, gates, highest);
    for (const uint64_t id : flipped_) {
      EXPECT_TRUE(machine().ViewOf(id, hands_.Looks()).flipped) << "a flip is forgotten";
    }
    if (const Machine::Attempt* attempt = machine().attempt(); attempt && attempt->any_flipped()) {
      flipped_.insert(attempt->plan.attempt);
    }
    for (const uint64_t id : aborted_) {
      EXPECT_FALSE(machine().ViewOf(id, hands_.Looks()).flipped) << "aborted, and it flipped";
    }
    return next;
  }

  void CheckPhase(const std::optional<Machine::Attempt>& before) {
    const Machine::Attempt* now = machine().attempt();
    if (!before || !now || before->plan.attempt != now->plan.attempt) return;
    if (before->phase == now->phase) return;
    using enum Phase;
    static const std::set<std::pair<Phase, Phase>> kLegal = {
        {kIdle, kPrepared},     {kPrepared, kStaging}, {kStaging, kStaged},  {kStaged, kPermitted},
        {kPermitted, kFlipped}, {kIdle, kFailed},      {kPrepared, kFailed}, {kStaging, kFailed},
        {kStaged, kFailed},     {kPermitted, kFailed}};
    EXPECT_TRUE(kLegal.contains({before->phase, now->phase}))
        << NameOf(before->phase) << " to " << NameOf(now->phase);
    EXPECT_FALSE(now->phase == kFailed && now->any_flipped()) << "a flip was given up";
  }

  // A latched vote is not withdrawn, except by a fence after its engine detached, stopped, or is no
  // longer a member.
  void CheckGivenUp(const Event& event, const std::optional<Machine::Attempt>& before,
                    const Gates& gates) const {
    const Machine::Attempt* now = machine().attempt();
    if (!before || !now || before->plan.attempt != now->plan.attempt) return;
    if (before->phase != Phase::kPermitted || now->phase != Phase::kFailed) return;
    const auto* said = std::get_if<PeersSaid>(&event);
    if (said != nullptr) {
      EXPECT_EQ(said->say, Say::kBurned);
    } else if (!std::holds_alternative<Abort>(event)) {
      return;
    }
    EXPECT_TRUE(said != nullptr || !now->by_agents());
    for (const auto& [device, part] : now->parts) {
      if (gates[device].state != GateState::kLatched) continue;
      EXPECT_TRUE(said != nullptr && said->gone.contains(device)) << "a word was given";
    }
  }

  void CheckNext(const Later& next, const Gates& gates, uint64_t highest) {
    if (const auto* reserve = std::get_if<Reserve>(&next)) {
      EXPECT_GT(reserve->attempt, highest) << "burned, and it begins";
      EXPECT_FALSE(over_.contains(reserve->attempt)) << "over, and it begins";
      EXPECT_FALSE(aborted_.contains(reserve->attempt)) << "aborted, and it begins";
    }
    const bool ends = std::holds_alternative<Drop>(next) || std::holds_alternative<KeepOld>(next) ||
                      std::holds_alternative<ReturnOld>(next);
    EXPECT_FALSE(ends && !committing_.empty()) << "it ends while memory commits";
    const auto* commit = std::get_if<Commit>(&next);
    if (commit == nullptr) return;
    const Machine::Attempt& attempt = *machine().attempt();
    EXPECT_EQ(attempt.plan.attempt, commit->attempt);
    EXPECT_EQ(attempt.phase, Phase::kPermitted);
    EXPECT_TRUE(staged_.contains(commit->attempt)) << "not verified";
    EXPECT_FALSE(aborted_.contains(commit->attempt)) << "a word that was taken back";
    for (const uint32_t device : commit->devices) {
      EXPECT_TRUE(committing_.insert(device).second) << "it commits already";
      EXPECT_FALSE(attempt.parts.at(device).flipped);
    }
    switch (commit->by) {
      case By::kEngine:
        EXPECT_EQ(commit->devices.size(), 1u);
        EXPECT_EQ(gates[commit->devices.at(0)].state, GateState::kLatched);
        EXPECT_FALSE(gates[commit->devices.at(0)].stopped);
        EXPECT_FALSE(attempt.by_agents());
        break;
      case By::kWords:
      case By::kPeer:
        EXPECT_TRUE(attempt.by_agents());
        EXPECT_EQ(attempt.words.size(), attempt.plan.pods.size());
        EXPECT_FALSE(attempt.held);
        break;
      case By::kForward:
        for (const auto& [device, part] : attempt.parts) {
          EXPECT_TRUE(part.flipped || part.joining || hands_.gates[device].stopped);
        }
    }
  }

  // The same call, repeated immediately, gets the same reply and does nothing.
  void Answered(const Event& event, const Answer& answer, bool driver) {
    if (const auto* abort = std::get_if<Abort>(&event); abort && answer.status.ok()) {
      const uint64_t id = abort->header.attempt;
      (answer.flipped ? flipped_ : aborted_).insert(id);
      EXPECT_EQ(machine().ViewOf(id, hands_.Looks()).flipped, answer.flipped);
    }
    if (!driver || !calls_.empty() || !answer.status.ok() || std::holds_alternative<Release>(event))
      return;
    Hands copy = hands_;
    const Later again = copy.Tell(event);
    const auto* same = std::get_if<Answer>(&again);
    if (std::holds_alternative<Stage>(event) && machine().attempt() &&
        machine().attempt()->phase == Phase::kFailed) {
      return;  // it failed meanwhile
    }
    if (same == nullptr) {
      ADD_FAILURE() << "repeated, event " << event.index() << " begins action " << again.index();
      return;
    }
    EXPECT_TRUE(same->status.ok()) << "event " << event.index() << ": " << same->status.message();
    EXPECT_EQ(same->flipped, answer.flipped);
  }

  std::mt19937_64 random_;
  Hands hands_{kRanks};
  std::list<Running> calls_;
  std::set<uint64_t> staging_, staged_, words_;  // attempts
  std::set<uint32_t> flipping_, committing_;     // devices
  std::set<uint64_t> flipped_, aborted_, over_;  // attempts
};

TEST(Attempt, MaintainsInvariantsInRandomHistories) {
  size_t flips = 0, aborts = 0;
  const char* seed = std::getenv("PROPERTY_SEED");
  const uint64_t first = seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1;
  const uint64_t last = seed != nullptr ? first : kHistories;
  for (uint64_t s = first; s <= last; ++s) {
    History history(s);
    history.Play();
    flips += history.flips();
    aborts += history.aborts();
    ASSERT_FALSE(HasFailure()) << "PROPERTY_SEED=" << s;
  }
  if (seed != nullptr) return;
  EXPECT_GT(flips, last / 2) << "the histories get nowhere";
  EXPECT_GT(aborts, last / 2);
}

}  // namespace
}  // namespace tangram::attempt::testing
