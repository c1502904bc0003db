// The order of actions of both ends when a batch is sent over a comm channel (README.md, "The order
// on a wire"). Pure, so a test can run every interleaving of several pairs (wire_order_test.cc).
//
// An agent has two turns (locks), for all its channels and peers: one for the batch that it
// receives, one for the batch that it sends. So a device runs at most two kernels of channels, and
// each waits only for its twin at the other end, which is or will be launched: the reader takes its
// turn first and then sends its request; the source takes its turn last, and posts immediately.
#pragma once

namespace tangram::mover {

enum class WireEvent {
  kTurn,     // this end got its turn
  kAsked,    // source: the reader requests a batch
  kGo,       // reader: the source posts
  kDone,     // all posted work has ended
  kRefused,  // reader: the source does not hold it, not yet or no longer
  kBroken,   // other end lost or too late, library error, or stop requested
};

enum class WireAct {
  kNothing,
  kWait,       // for this end's turn
  kAsk,        // reader: sends the request, holding the turn
  kPost,       // reader: posts receives; source: says "go" and posts sends
  kGiveBack,   // the turn; no work is posted
  kAbort,      // the channel; then release the turn, if held
  kAbortBare,  // the channel; no turn is held
};

// One batch at the receiving end.
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
    return Break();  // the other end violates the order
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

// The same batch at the sending end.
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
