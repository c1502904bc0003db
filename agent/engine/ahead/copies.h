// Copies of KV, one pull of the agent at a time: ahead of a flip, begun and collected at
// boundaries; and in a flip, with a wait.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "agent/engine/turn/backend.h"
#include "agent/engine/world/world.h"

namespace tangram::engine {

class Copies {
 public:
  // The approximate size of one pull ahead of a flip. It uses an attempt's layout, and its bytes
  // may turn out useless.
  static constexpr uint64_t kAtOnce = 1 << 20;  // bytes

  explicit Copies(WorldView* world) : world_(world) {}

  // For another attempt: forgets earlier failures, keeps a pull in progress.
  void Restart() { failures_ = pause_ = 0; }
  bool under_way() const { return under_way_; }
  // Called once per boundary: false while a pull is in progress, and for some boundaries after a
  // failure.
  bool MayBegin();
  // After several failures in a row the rest is left to the flip.
  bool given_up() const { return failures_ >= kFailures; }
  // The agent may write to the targets until TakeUp returns a result. False: no pull was begun.
  bool Begin(std::span<const tg_kv_move> moves);
  // As a Begin whose request failed.
  void Failed(const Status& why);
  // Whether the pull that was begun has succeeded, once (false: it failed or was deferred, and may
  // be begun again); nullopt: no pull was begun, or it is in progress. With `waits` it waits for
  // the pull, for limits::kKvPull, and sends a heartbeat every limits::kSlice, while the others
  // wait.
  std::optional<bool> TakeUp(Between* waits);

  // In the flip: copies all, about kPullAtOnce bytes at a time, and waits, with `between`'s
  // heartbeats, for limits::kKvPull each. Returns the bytes copied. kUnavailable: the flip is
  // abandoned or the agent takes too long. Then a pull may be in progress still; the agent may
  // write to its targets until TakeUp returns its result. kEngine: the pull failed.
  static constexpr uint64_t kPullAtOnce = 16 << 20;
  Result<uint64_t> Pull(std::span<const tg_kv_move> moves, Between& between);

  uint64_t bytes() const { return bytes_; }
  uint64_t pulls() const { return pulls_; }
  uint64_t failed() const { return failed_; }
  // Of `pulls`: those that the agent deferred because steps took too long. No failures.
  uint64_t put_off() const { return put_off_; }

 private:
  static constexpr uint32_t kFailures = 4;
  static constexpr uint32_t kPause = 16;  // boundaries

  // Waits for the pull in progress: kUnderWay if the others no longer wait, or after too long.
  Result<WorldView::StagedKv> Await(Between& between);

  WorldView* const world_;
  bool under_way_ = false, flip_ = false;  // flip_: it was begun by Pull
  uint32_t failures_ = 0, pause_ = 0;
  uint64_t bytes_ = 0, pulls_ = 0, failed_ = 0, put_off_ = 0;
};

}  // namespace tangram::engine
