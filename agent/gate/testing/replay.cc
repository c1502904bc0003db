// Replays histories of the Spin model (tests/model/README.md, "Replay") and of the simulation of
// the driver through the real gate: ranks, each an AgentGate and an EngineGate over a page.
// Standard input has a line per event,
//
//   new EPOCH                 a history begins: fresh ranks
//   arm R ATTEMPT EPOCH       permitted to flip to EPOCH
//   word R ATTEMPT GO         votes; its engine prepared ATTEMPT, 0: none
//   heard R PULLED MEMBERS W W ..  has all votes of the mask: 1 stay, 2 go; then, unless PULLED:
//   go R | stay R             the decision of the votes
//   decline R                 it, or another one, could not pull its KV
//   flip|join R ATTEMPT EPOCH flips with its engine; a joiner votes with it
//   stop R PULLED             abandons its step
//   withdraw R ATTEMPT ARMED  an abort
//   mended R ATTEMPT EPOCH    flips by the agents' votes
//   forward R ATTEMPT EPOCH | fence R   the outcome, by a fence
//   is R ARMED LATCHED        the model's state of R
//
// and those of kOfAttempts, which are for agent/attempt/testing/replay.cc.
// After every event it also tries all transitions that the model lacks. It ends with 1 at the first
// difference. Otherwise it prints how often each transition of rules.h was taken, and ends with 0
// if none was missing.
#include <fmt/format.h>

#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "agent/gate/gate.h"

namespace tangram {
namespace {

constexpr size_t kMostRanks = 64;  // in a mask
const std::set<std::string> kOfAttempts = {"first", "begin", "mend", "went", "drop",
                                           "hold",  "run",   "walk", "burn"};
// In the model a flip is retired immediately. In reality the engine may end before that: see
// gate_test.cc.
constexpr std::pair kOutside(GateState::kFlipped, GateEvent::kFence);

std::string HashOf(uint64_t attempt) {
  std::string hash(32, 'h');
  for (size_t i = 0; i < 8; ++i) hash[i] = static_cast<char>(attempt >> (8 * i));
  return hash;
}

struct Difference {
  std::string what;
};

void Want(bool holds, const std::string& what) {
  if (!holds) throw Difference{what};
}

struct Rank {
  std::vector<uint64_t> memory = std::vector<uint64_t>(GatePageBytes(1, 1) / 8 + 1);
  AgentGate agent{reinterpret_cast<GatePage*>(memory.data()), 1, 1};
  EngineGate engine{agent.page()};
  uint64_t said = 0;  // attempt of its last vote; 0: it was "stay"
};

class Replay {
 public:
  void Take(const std::string& line) {
    std::istringstream in(line);
    std::string event;
    in >> event;
    if (event == "new") return New(Number(in));
    if (kOfAttempts.contains(event)) return;
    const uint64_t r = Number(in);
    Want(r < kMostRanks, "no such rank");
    Rank& rank = At(r);
    const GateState before = rank.agent.state();
    if (event == "arm") {
      const uint64_t attempt = Number(in), epoch = Number(in);
      Want(rank.agent.Arm(attempt, base_ + epoch, HashOf(attempt)).ok(), "the permit is refused");
      target_[attempt] = base_ + epoch;
      Count(before, GateEvent::kArm);
    } else if (event == "word") {
      const uint64_t attempt = Number(in);
      Word(rank, attempt, Number(in) != 0);
    } else if (event == "heard") {
      Heard(r, in);
    } else if (event == "go" || event == "stay") {
      const bool go = rank.engine.Decide(words_[r], words_[r].size());
      Want(go == (event == "go"), fmt::format("the gate says {}", go ? "go" : "stay"));
      if (!go) Count(before, GateEvent::kUnlatch);
    } else if (event == "decline") {
      rank.engine.Decline("KV was not carried");
      Count(before, GateEvent::kUnlatch);
    } else if (event == "flip" || event == "join") {
      const uint64_t attempt = Number(in), epoch = Number(in);
      if (event == "join") Word(rank, attempt, true);
      Flipped(rank, rank.agent.Flip(attempt, base_ + epoch, false), attempt, epoch);
      Count(GateState::kLatched, GateEvent::kFlip);
    } else if (event == "mended") {
      const uint64_t attempt = Number(in), epoch = Number(in);
      Flipped(rank, rank.agent.Flip(attempt, base_ + epoch, true), attempt, epoch);
      rank.agent.SetStopped(false);
      Count(before, GateEvent::kFlipByWords);
    } else if (event == "forward") {
      const uint64_t attempt = Number(in), epoch = Number(in);
      if (before == GateState::kIdle) {  // it was staged, and learns of the permit with the outcome
        Want(rank.agent.Arm(attempt, base_ + epoch, HashOf(attempt)).ok(), "the permit is refused");
      }
      const GateState now = rank.agent.state();
      Flipped(rank, rank.agent.FlipStopped(attempt, base_ + epoch), attempt, epoch);
      Count(now, GateEvent::kFlipStopped);
    } else if (event == "stop") {
      rank.engine.Stop(Number(in) != 0);
      Want(rank.engine.stopped(), "it goes on");
      if (before == GateState::kLatched && !rank.engine.latched()) {
        Count(before, GateEvent::kUnlatch);
      }
    } else if (event == "withdraw") {
      const uint64_t attempt = Number(in);
      const bool armed = Number(in) != 0;
      const AgentGate::Withdrawal got = rank.agent.Withdraw(attempt);
      Want(got == (armed ? AgentGate::Withdrawal::kWithdrawn : AgentGate::Withdrawal::kNotArmed),
           fmt::format("the abort is answered {}", static_cast<int>(got)));
      if (armed) Count(before, GateEvent::kWithdraw);
    } else if (event == "fence") {
      rank.agent.Fence();
      Want(rank.agent.state() == GateState::kIdle, "a fenced rank is still armed");
      Count(before, GateEvent::kFence);
    } else if (event == "is") {
      const bool armed = Number(in) != 0, latched = Number(in) != 0;
      const GateState want = latched ? GateState::kLatched
                             : armed ? GateState::kArmed
                                     : GateState::kIdle;
      Want(rank.agent.state() == want,
           fmt::format("state {}, the model has {}", static_cast<int>(rank.agent.state()),
                       static_cast<int>(want)));
    } else {
      Want(false, "no such event");
    }
    Probe(rank);
  }

  uint64_t histories() const { return histories_; }
  const std::map<std::pair<GateState, GateEvent>, uint64_t>& taken() const { return taken_; }

 private:
  static uint64_t Number(std::istringstream& in) {
    uint64_t n = 0;
    Want(static_cast<bool>(in >> n), "a number is missing");
    return n;
  }

  void New(uint64_t epoch) {
    ++histories_;
    base_ = epoch;
    target_.clear();
    ranks_.clear();
    words_.clear();
  }

  // A rank begins idle when it is first named.
  Rank& At(size_t r) {
    while (ranks_.size() <= r) {
      words_.emplace_back();
      ranks_.emplace_back(std::make_unique<Rank>())->agent.SetEpoch(base_);
    }
    return *ranks_[r];
  }

  void Word(Rank& rank, uint64_t attempt, bool go) {
    const uint64_t epoch = rank.agent.page()->epoch.load();
    const GateState before = rank.agent.state();
    // An engine prepares the target of its agent, whether it is permitted or not.
    const uint64_t target = target_.contains(attempt) ? target_[attempt] : epoch + 1;
    for (int twice = 0; twice < 2; ++twice) {  // repeating it changes nothing
      const GateVote word = rank.engine.Word(attempt, target, HashOf(attempt));
      const GateVote want =
          go ? GateVote{target, GateHashWord(HashOf(attempt))} : GateVote{epoch, 0};
      Want(word == want, fmt::format("the word is ({}, {:x}), the model's ({}, {:x})", word.epoch,
                                     word.hash, want.epoch, want.hash));
    }
    rank.said = go ? attempt : 0;
    if (!go) return;
    Count(before, GateEvent::kWord);
    Count(GateState::kLatched, GateEvent::kWord);
  }

  // The votes that a rank has from its members.
  void Heard(size_t r, std::istringstream& in) {
    const bool pulled = Number(in) != 0;
    const uint64_t members = Number(in);
    const uint64_t epoch = ranks_[r]->agent.page()->epoch.load();
    words_[r].clear();
    uint64_t said = 0;
    for (size_t m = 0; in >> said; ++m) {
      if (!(members >> m & 1)) continue;
      Want(said != 0, fmt::format("the word of rank {} is missing", m));
      const uint64_t attempt = said == 2 && !pulled ? Attempt(m) : 0;
      words_[r].push_back(attempt == 0
                              ? GateVote{epoch, 0}
                              : GateVote{target_.at(attempt), GateHashWord(HashOf(attempt))});
    }
    if (pulled) return;
    // An active mask is no world: with one vote fewer, or one more, no rank flips. Checked only for
    // a rank that is not latched, which this cannot unlatch.
    if (ranks_[r]->engine.latched()) return;
    Want(!ranks_[r]->engine.Decide(words_[r], words_[r].size()), "a go without a latch");
  }

  // The attempt of a member's "go". A member that continued gave it for the attempt that is latched
  // here.
  uint64_t Attempt(size_t m) const {
    if (m < ranks_.size() && ranks_[m]->said != 0) return ranks_[m]->said;
    for (const auto& rank : ranks_) {
      if (rank->said != 0) return rank->said;
    }
    return 0;
  }

  void Flipped(Rank& rank, const Status& status, uint64_t attempt, uint64_t epoch) {
    Want(status.ok(), "the flip is refused: " + status.message());
    Want(rank.agent.state() == GateState::kFlipped, "it flipped and does not say so");
    Want(rank.agent.page()->epoch.load() == base_ + epoch, "it flipped to another epoch");
    Want(rank.agent.Withdraw(attempt) == AgentGate::Withdrawal::kFlipped,
         "an abort after the flip is not told so");
    Want(!rank.agent.Arm(attempt + 1, base_ + epoch + 1, HashOf(attempt + 1)).ok(),
         "a permit before the flip is retired");
    rank.agent.Reset(attempt);
    Want(rank.agent.state() == GateState::kIdle, "a retired flip stays");
    Count(GateState::kFlipped, GateEvent::kReset);
  }

  // An event that no rule allows in this state is rejected, and changes nothing.
  void Probe(Rank& rank) {
    const GateState state = rank.agent.state();
    const uint64_t attempt = rank.agent.attempt(), epoch = rank.agent.page()->epoch.load();
    const auto refused = [&](bool ok, const char* what) {
      Want(!ok && rank.agent.state() == state && rank.agent.page()->epoch.load() == epoch,
           fmt::format("{} in state {}", what, static_cast<int>(state)));
    };
    const auto withdrawn = [&](uint64_t id) {
      return rank.agent.Withdraw(id) == AgentGate::Withdrawal::kWithdrawn;
    };
    refused(withdrawn(attempt + 1000), "another attempt's abort");
    refused(rank.agent.Flip(attempt + 1000, epoch + 1, false).ok(), "another attempt's flip");
    refused(rank.agent.FlipStopped(attempt + 1000, epoch + 1).ok(), "another attempt's outcome");
    if (state != GateState::kIdle) {
      refused(rank.agent.Arm(attempt + 1, epoch + 1, HashOf(attempt + 1)).ok(), "a second permit");
    }
    if (state != GateState::kArmed) {
      refused(withdrawn(attempt), "an abort");
      refused(rank.agent.Flip(attempt, epoch + 1, true).ok(), "a flip by words");
    }
    if (state != GateState::kLatched) {
      refused(rank.agent.Flip(attempt, epoch + 1, false).ok(), "an engine's flip");
    }
    if (state == GateState::kIdle) {
      refused(rank.agent.FlipStopped(attempt, epoch + 1).ok(), "an outcome");
    }
    rank.agent.Reset(attempt);
    Want(rank.agent.state() == state, "a flip is retired that was none");
  }

  void Count(GateState state, GateEvent event) {
    if (GateAfter(state, event)) ++taken_[{state, event}];
  }

  uint64_t histories_ = 0, base_ = 0;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::vector<GateVote>> words_;
  std::map<uint64_t, uint64_t> target_;  // epoch by attempt
  std::map<std::pair<GateState, GateEvent>, uint64_t> taken_;
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
  for (uint64_t state = 0; state < 4; ++state) {
    for (size_t event = 0; event < kGateEvents; ++event) {
      const std::pair key(static_cast<GateState>(state), static_cast<GateEvent>(event));
      if (!GateAfter(key.first, key.second) || key == kOutside) continue;
      const auto it = replay.taken().find(key);
      const uint64_t times = it == replay.taken().end() ? 0 : it->second;
      fmt::print("state {} event {}: {}\n", state, event, times);
      missing += times == 0;
    }
  }
  fmt::print("{} histories, {} events, {} transitions never taken\n", replay.histories(), lines,
             missing);
  return missing == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tangram

int main() { return tangram::Main(); }
