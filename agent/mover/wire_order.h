// Who of two ends does what, in which order, when a batch goes over a wire (README.md, "The order
// on a wire"): pure, so that every interleaving of several pairs can be played
// (wire_order_test.cc).
//
// An agent has two turns, whatever wires and peers it has: one for the batch that it receives, one
// for the batch that it sends. So at most two kernels of wires are on a device at once, and each
// waits for nothing but its twin at the other end, which is launched by then or will be: the reader
// takes its own turn first and asks then; the source takes its turn last, and posts at once.
#pragma once

namespace tangram::mover {

enum class WireEvent {
  kTurn,     // the own turn is free now
  kAsked,    // source: the reader asks for a batch
  kGo,       // reader: the source posts
  kDone,     // all that was posted is over
  kRefused,  // reader: the source does not have it, any more or yet
  kBroken,   // the other end is gone or too late, the library failed, or a stop was asked for
};

enum class WireAct {
  kNothing,
  kWait,       // for the own turn
  kAsk,        // reader: the source is told, holding the turn
  kPost,       // reader: receives; source: "go" is told, and sends
  kGiveBack,   // the turn; nothing is under way
  kAbort,      // the wire, then give the turn back, if it was taken
  kAbortBare,  // the wire; no turn is held
};

// One batch at the end that wants it.
class WireReader {
 public:
  WireAct Begin() { return Become(State::kWaits, WireAct::kWait); }
  WireAct On(WireEvent event) {
    if (event == WireEvent::kBroken) return Break();
    switch (state_) {
      case State::kWaits:
        if (event == WireEvent::kTurn) return Become(State::kAsked, WireAct::kAsk);
        break;
      case State::kAsked:
        if (event == WireEvent::kGo) return Become(State::kPosted, WireAct::kPost);
        if (event == WireEvent::kRefused) return Become(State::kOver, WireAct::kGiveBack);
        break;
      case State::kPosted:
        if (event == WireEvent::kDone) return Become(State::kOver, WireAct::kGiveBack);
        break;
      case State::kIdle:
      case State::kOver:
        return WireAct::kNothing;
    }
    return Break();  // the other end does not keep to the order
  }
  bool over() const { return state_ == State::kOver; }
  bool posted() const { return state_ == State::kPosted; }
  bool has_turn() const { return state_ == State::kAsked || state_ == State::kPosted; }

 private:
  enum class State { kIdle, kWaits, kAsked, kPosted, kOver };
  WireAct Become(State state, WireAct act) {
    state_ = state;
    return act;
  }
  WireAct Break() {
    const bool had = has_turn();
    if (state_ == State::kOver) return WireAct::kNothing;
    return Become(State::kOver, had ? WireAct::kAbort : WireAct::kAbortBare);
  }

  State state_ = State::kIdle;
};

// The same batch at the end that has it.
class WireSource {
 public:
  WireAct On(WireEvent event) {
    if (event == WireEvent::kBroken) return Break();
    switch (state_) {
      case State::kIdle:
        if (event == WireEvent::kAsked) return Become(State::kWaits, WireAct::kWait);
        break;
      case State::kWaits:
        if (event == WireEvent::kTurn) return Become(State::kPosted, WireAct::kPost);
        break;
      case State::kPosted:
        if (event == WireEvent::kDone) return Become(State::kOver, WireAct::kGiveBack);
        break;
      case State::kOver:
        return WireAct::kNothing;
    }
    return Break();
  }
  bool over() const { return state_ == State::kOver; }
  bool posted() const { return state_ == State::kPosted; }
  bool has_turn() const { return posted(); }

 private:
  enum class State { kIdle, kWaits, kPosted, kOver };
  WireAct Become(State state, WireAct act) {
    state_ = state;
    return act;
  }
  WireAct Break() {
    const bool had = has_turn();
    if (state_ == State::kOver) return WireAct::kNothing;
    return Become(State::kOver, had ? WireAct::kAbort : WireAct::kAbortBare);
  }

  State state_ = State::kIdle;
};

}  // namespace tangram::mover
