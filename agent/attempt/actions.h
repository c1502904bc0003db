// The machine's output after an event (README.md).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "agent/attempt/events.h"

namespace tangram::attempt {

// Marks: done immediately, before the next event, and cannot fail.
struct SetStopped {
  uint32_t device = 0;
  bool stopped = false;
};
struct FenceGate {
  uint32_t device = 0;
};
struct ResetGate {
  uint32_t device = 0;
  uint64_t attempt = 0;
};
struct Leave {  // the rank is in no layout
  uint32_t device = 0;
};
struct AllFlipped {  // all parts of the attempt; the target is active here
  uint64_t attempt = 0;
  By by = By::kEngine;
};
enum class End : uint8_t { kFlipped, kAborted, kRefused };
struct Ended {  // its cost can be counted
  uint64_t attempt = 0;
  End end = End::kAborted;
};
using Mark = std::variant<SetStopped, FenceGate, ResetGate, Leave, AllFlipped, Ended>;

// A log line.
struct Line {
  enum class Level : uint8_t { kInfo, kWarn, kError } level = Level::kInfo;
  std::string text;
};

// The reply to the sender of the event.
struct Answer {
  Status status{};
  bool flipped = false;  // of an abort
  bool acted = false;    // the call changed something
};

// Done immediately, as marks are. The result is the next event, before any other.
struct Arm {  // the gates of all parts, or none
  uint64_t attempt = 0;
  bool forward = false;
};
struct TakeBack {  // the permit, from the gates of all parts, or of none
  uint64_t attempt = 0;
};
struct FlipGate {
  uint64_t attempt = 0;
  uint32_t device = 0;
  By by = By::kEngine;
};
using AtOnce = std::variant<Arm, TakeBack, FlipGate>;

// Actions that take time. Other events may come meanwhile. Each one's result is an event.
struct Build {};  // build the target from the plan, and check it: Built
struct KeepOld {  // retain a flip's old pieces for a repair: Kept
  uint64_t attempt = 0;
};
struct Reserve {  // memory, and the engines' consent: Reserved
  uint64_t attempt = 0;
};
struct StartStaging {  // Begun; then Staged
  uint64_t attempt = 0;
};
struct TellWords {  // send our votes. Begun; then WordsOut
  uint64_t attempt = 0;
};
struct Commit {  // one device after another, until one fails: Committed
  uint64_t attempt = 0;
  std::vector<uint32_t> devices;
  By by = By::kEngine;
};
struct AskPeers {  // PeersSaid
  uint64_t attempt = 0;
};
struct Drop {  // stop its work, free or keep its reserved memory: Dropped
  uint64_t attempt = 0;
  std::string reason;
  bool keep = false;
};
struct ReturnOld {  // free the places of the previous layout: Returned
  uint64_t attempt = 0;
};
struct Dismiss {  // evict the engine of a released rank: Dismissed
  uint32_t device = 0;
  std::string reason;
};
struct Empty {  // free that rank's memory; its next member id is `member`: Emptied
  uint32_t device = 0;
  std::string member;
};
struct Wait {};  // until something changed, briefly at most; then pass the same event again

// The reply, or an action that takes time.
using Later = std::variant<Answer, Build, KeepOld, Reserve, StartStaging, TellWords, Commit,
                           AskPeers, Drop, ReturnOld, Dismiss, Empty, Wait>;
using Next = std::variant<AtOnce, Later>;

// All marks are done before `next`.
struct Step {
  std::vector<Mark> marks;
  Next next = Later{};
  bool changed = false;  // waiting callers must check again
  std::vector<Line> lines = {};
};

}  // namespace tangram::attempt
