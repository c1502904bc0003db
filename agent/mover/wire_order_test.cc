// Every interleaving of several agents' actions for concurrent batches between them, with a death,
// an abort or a hang of any agent at any moment.
#include "agent/mover/wire_order.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace tangram::mover {
namespace {

struct Batch {
  int from = 0, to = 0;
};

// State of a batch, in addition to that of its two ends.
struct Flight {
  WireReader reader;
  WireSource source;
  bool began = false;
  bool asked = false, go = false;                     // sent, and not received yet
  bool reader_closed = false, source_closed = false;  // its end of the connection
};

struct World {
  std::vector<Flight> flights;
  std::array<bool, 4> dead{};
  std::array<bool, 4> receiving{}, sending{};  // turns (locks) that are held
  int faults = 0;

  std::string Key() const {
    std::string out(reinterpret_cast<const char*>(&dead), sizeof dead);
    out.append(reinterpret_cast<const char*>(&receiving), sizeof receiving);
    out.append(reinterpret_cast<const char*>(&sending), sizeof sending);
    out.push_back(static_cast<char>(faults));
    for (const Flight& f : flights) {
      out.push_back(static_cast<char>(f.reader.over() * 8 + f.reader.posted() * 4 +
                                      f.reader.has_turn() * 2 + f.began));
      out.push_back(
          static_cast<char>(f.source.over() * 8 + f.source.posted() * 4 + f.asked * 2 + f.go));
      out.push_back(static_cast<char>(f.reader_closed * 2 + f.source_closed));
      out.push_back(static_cast<char>(waits(f.source)));
    }
    return out;
  }
  // Distinguishes idle and waiting sources by their reaction to a turn.
  static int waits(WireSource source) { return static_cast<int>(source.On(WireEvent::kTurn)); }
};

// Differences between the explored worlds.
struct Rules {
  bool one_turn = false;  // one turn for both directions, instead of two
  int faults = 0;         // deaths, aborts and hangs in all
};

class Explorer {
 public:
  Explorer(std::vector<Batch> batches, Rules rules) : batches_(std::move(batches)), rules_(rules) {}

  // Runs all interleavings; returns the first violation, or an empty text.
  std::string Play() {
    World world;
    world.flights.resize(batches_.size());
    std::vector<World> left{world};
    seen_.insert(world.Key());
    while (!left.empty() && wrong_.empty()) {
      const World now = left.back();
      left.pop_back();
      bool moved = false;
      EachStep(now, [&](const World& next, bool fault) {
        moved = moved || !fault;
        if (seen_.insert(next.Key()).second) left.push_back(next);
      });
      if (!moved) Judge(now);
    }
    return wrong_;
  }
  size_t states() const { return seen_.size(); }
  size_t ends() const { return ends_; }

 private:
  using Step = std::function<void(const World&, bool fault)>;

  bool& ReceiveTurn(World* w, size_t b) const {
    return (rules_.one_turn ? w->sending : w->receiving)[size_t(batches_[b].to)];
  }
  bool& SendTurn(World* w, size_t b) const { return w->sending[size_t(batches_[b].from)]; }

  void Do(World* w, size_t b, bool reader, WireAct act) const {
    Flight& f = w->flights[b];
    bool& turn = reader ? ReceiveTurn(w, b) : SendTurn(w, b);
    bool& closed = reader ? f.reader_closed : f.source_closed;
    switch (act) {
      case WireAct::kAsk:
        f.asked = true;
        break;
      case WireAct::kPost:
        if (!reader) f.go = true;
        break;
      case WireAct::kAbort:
        closed = true;
        [[fallthrough]];
      case WireAct::kGiveBack:
        turn = false;
        break;
      case WireAct::kAbortBare:
        closed = true;
        break;
      case WireAct::kWait:
      case WireAct::kNothing:
        break;
    }
  }

  void Tell(const World& now, size_t b, bool reader, WireEvent event, bool fault, const Step& step,
            const std::function<void(World*)>& also = {}) const {
    World next = now;
    if (also) also(&next);
    Flight& f = next.flights[b];
    Do(&next, b, reader, reader ? f.reader.On(event) : f.source.On(event));
    step(next, fault);
  }

  void EachStep(const World& now, const Step& step) const {
    for (size_t b = 0; b < batches_.size(); ++b) {
      EachStepOf(now, b, step);
    }
    if (now.faults == rules_.faults) return;
    for (size_t agent = 0; agent < now.dead.size(); ++agent) {
      if (now.dead[agent]) continue;
      World next = now;
      next.dead[agent] = true;
      ++next.faults;
      next.receiving[agent] = next.sending[agent] = false;
      step(next, true);
    }
  }

  void EachStepOf(const World& now, size_t b, const Step& step) const {
    const Flight& f = now.flights[b];
    const bool reads = !now.dead[size_t(batches_[b].to)],
               sends = !now.dead[size_t(batches_[b].from)];
    World probe = now;
    if (reads && !f.began) {
      World next = now;
      next.flights[b].began = true;
      Do(&next, b, true, next.flights[b].reader.Begin());
      step(next, false);
      return;
    }
    const bool reader = reads && f.began && !f.reader.over();
    const bool source = sends && !f.source.over();
    // The reader.
    if (reader && !f.reader.has_turn() && !ReceiveTurn(&probe, b)) {
      Tell(now, b, true, WireEvent::kTurn, false, step,
           [&](World* w) { ReceiveTurn(w, b) = true; });
    }
    if (reader && f.go) {
      Tell(now, b, true, WireEvent::kGo, false, step, [&](World* w) { w->flights[b].go = false; });
    }
    // The source.
    if (source && f.asked) {
      Tell(now, b, false, WireEvent::kAsked, false, step,
           [&](World* w) { w->flights[b].asked = false; });
    }
    if (source && World::waits(f.source) == static_cast<int>(WireAct::kPost) &&
        !SendTurn(&probe, b)) {
      Tell(now, b, false, WireEvent::kTurn, false, step, [&](World* w) { SendTurn(w, b) = true; });
    }
    // Kernels end together, and only if both are there.
    if (f.reader.posted() && f.source.posted()) {
      if (reader)
        Tell(now, b, true, WireEvent::kDone, false, step, [&](World* w) {
          if (source) Do(w, b, false, w->flights[b].source.On(WireEvent::kDone));
        });
    }
    // The connection reports the loss of one end to the other.
    const bool source_gone = !sends || f.source_closed, reader_gone = !reads || f.reader_closed;
    if (reader && source_gone) Tell(now, b, true, WireEvent::kBroken, false, step);
    if (source && reader_gone) Tell(now, b, false, WireEvent::kBroken, false, step);
    // A stop, a library error, or a timeout: at either end, at any moment.
    if (now.faults < rules_.faults) {
      if (reader) Tell(now, b, true, WireEvent::kBroken, true, step, [](World* w) { ++w->faults; });
      if (source && World::waits(f.source) == static_cast<int>(WireAct::kPost)) {
        Tell(now, b, false, WireEvent::kBroken, true, step, [](World* w) { ++w->faults; });
      }
      // Instead of its turn: the lease ended.
      if (reader && source && f.reader.has_turn() && !f.reader.posted() &&
          World::waits(f.source) == static_cast<int>(WireAct::kPost)) {
        Tell(now, b, true, WireEvent::kRefused, true, step, [&](World* w) {
          ++w->faults;
          w->flights[b].source.On(WireEvent::kBroken);
        });
      }
      if (source && f.source.posted()) {
        Tell(now, b, false, WireEvent::kBroken, true, step, [](World* w) { ++w->faults; });
      }
    }
  }

  // No end can act any more.
  void Judge(const World& now) {
    ++ends_;
    for (size_t b = 0; b < batches_.size(); ++b) {
      const Flight& f = now.flights[b];
      const bool reads = !now.dead[size_t(batches_[b].to)];
      const bool sends = !now.dead[size_t(batches_[b].from)];
      if (reads && !f.reader.over()) wrong_ = "a reader waits for ever";
      if (sends && f.source.posted() && !f.source.over()) wrong_ = "a source is left in a call";
    }
    for (size_t agent = 0; agent < now.dead.size(); ++agent) {
      if (!now.dead[agent] && (now.receiving[agent] || now.sending[agent])) {
        wrong_ = wrong_.empty() ? "a turn is never given back" : wrong_;
      }
    }
  }

  const std::vector<Batch> batches_;
  const Rules rules_;
  std::set<std::string> seen_;
  size_t ends_ = 0;
  std::string wrong_;
};

const std::vector<Batch> kPair{{0, 1}, {1, 0}, {0, 1}};
const std::vector<Batch> kRing{{0, 1}, {1, 2}, {2, 0}};
const std::vector<Batch> kTwoRings{{0, 1}, {1, 2}, {2, 3}, {3, 0}, {1, 0}};

TEST(WireOrder, CompletesWithoutDeadlockInAnyTopology) {
  for (const auto& batches : {kPair, kRing, kTwoRings}) {
    Explorer explorer(batches, {});
    EXPECT_EQ(explorer.Play(), "");
    EXPECT_GT(explorer.states(), 100U);
    EXPECT_GE(explorer.ends(), 1U);
  }
}

TEST(WireOrder, EndsEveryCallAfterDeathAbortOrHang) {
  for (const auto& batches : {kPair, kRing}) {
    Explorer explorer(batches, {.faults = 2});
    EXPECT_EQ(explorer.Play(), "");
    EXPECT_GT(explorer.states(), 10'000U);
  }
  Explorer four(kTwoRings, {.faults = 1});
  EXPECT_EQ(four.Play(), "");
}

// The search finds errors: with one turn for both directions, agents in a ring hold theirs and wait
// for each other's.
TEST(WireOrder, DeadlocksWithOneLockForBothDirections) {
  for (const auto& batches : {kPair, kRing, kTwoRings}) {
    EXPECT_EQ(Explorer(batches, {.one_turn = true}).Play(), "a reader waits for ever");
  }
}

TEST(WireOrder, AbortsOnProtocolViolation) {
  WireReader reader;
  EXPECT_EQ(reader.Begin(), WireAct::kWait);
  EXPECT_EQ(reader.On(WireEvent::kGo), WireAct::kAbortBare) << "before it asked";
  EXPECT_EQ(reader.On(WireEvent::kDone), WireAct::kNothing);
  WireSource source;
  EXPECT_EQ(source.On(WireEvent::kAsked), WireAct::kWait);
  EXPECT_EQ(source.On(WireEvent::kTurn), WireAct::kPost);
  EXPECT_EQ(source.On(WireEvent::kAsked), WireAct::kAbort) << "for another, in the middle of one";
  EXPECT_TRUE(source.over());
}

}  // namespace
}  // namespace tangram::mover
