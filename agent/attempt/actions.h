// What follows from an event (README.md).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "agent/attempt/events.h"

namespace tangram::attempt {

// Marks: done at once, before another event is told, and nothing can go wrong.
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
struct AllFlipped {  // all parts of the attempt; the target is in force here
  uint64_t attempt = 0;
  By by = By::kEngine;
};
enum class End : uint8_t { kFlipped, kAborted, kRefused };
struct Ended {  // what it cost can be counted
  uint64_t attempt = 0;
  End end = End::kAborted;
};
using Mark = std::variant<SetStopped, FenceGate, ResetGate, Leave, AllFlipped, Ended>;

// For people to read.
struct Line {
  enum class Level : uint8_t { kInfo, kWarn, kError } level = Level::kInfo;
  std::string text;
};

// The answer to whoever told the event.
struct Answer {
  Status status{};
  bool flipped = false;  // of an abort
  bool acted = false;    // more was done than to say what is so
};

// Done at once like marks, and the outcome told before any other event.
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

// What takes time, while other events may come. Each tells its end.
struct Build {};  // the target from the plan, and check it: Built
struct KeepOld {  // of a flip, for a repair: Kept
  uint64_t attempt = 0;
};
struct Reserve {  // memory, and the engines' consent: Reserved
  uint64_t attempt = 0;
};
struct StartStaging {  // Begun; then Staged
  uint64_t attempt = 0;
};
struct TellWords {  // Begun; then WordsOut
  uint64_t attempt = 0;
};
struct Commit {  // one after another, until one fails: Committed
  uint64_t attempt = 0;
  std::vector<uint32_t> devices;
  By by = By::kEngine;
};
struct AskPeers {  // PeersSaid
  uint64_t attempt = 0;
};
struct Drop {  // end what works on it, give back what it reserved, or keep that: Dropped
  uint64_t attempt = 0;
  std::string reason;
  bool keep = false;
};
struct ReturnOld {  // the places of the layout before: Returned
  uint64_t attempt = 0;
};
struct Dismiss {  // the engine of a rank that is no member any more: Dismissed
  uint32_t device = 0;
  std::string reason;
};
struct Empty {  // the memory of that rank, which goes on as `member`: Emptied
  uint32_t device = 0;
  std::string member;
};
struct Wait {};  // until something changed, a moment at most; then the same event is told again

// The answer, or what takes time.
using Later = std::variant<Answer, Build, KeepOld, Reserve, StartStaging, TellWords, Commit,
                           AskPeers, Drop, ReturnOld, Dismiss, Empty, Wait>;
using Next = std::variant<AtOnce, Later>;

// All marks, then the next.
struct Step {
  std::vector<Mark> marks;
  Next next = Later{};
  bool changed = false;  // something that others may wait for
  std::vector<Line> lines = {};
};

}  // namespace tangram::attempt
