// Copies of KV, one pull of the agent's at a time: ahead of a flip, begun and taken up at
// boundaries, and in it, waited for.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "agent/engine/turn/backend.h"
#include "agent/engine/world/world.h"

namespace tangram::engine {

class Copies {
 public:
  // Of one pull, about: it is told with the layout of an attempt, and what it brings may be in
  // vain.
  static constexpr uint64_t kAtOnce = 1 << 20;  // bytes

  explicit Copies(WorldView* world) : world_(world) {}

  // Another attempt: what failed before is forgotten, what is under way stays so.
  void Restart() { failures_ = pause_ = 0; }
  bool under_way() const { return under_way_; }
  // Asked once at a boundary: false while a pull is under way, and for some boundaries after one
  // that failed.
  bool MayBegin();
  // So many failed in a row that what is left is the flip's.
  bool given_up() const { return failures_ >= kFailures; }
  // Until TakeUp tells of it, the targets are the agent's. False: nothing was begun.
  bool Begin(std::span<const tg_kv_move> moves);
  // As Begin: it could not even be asked for.
  void Failed(const Status& why);
  // Whether what was begun is here, once (not: it failed or was put off, and may be begun again);
  // nothing: there is nothing, or it is under way. Who gives `waits` waits for it, for
  // limits::kKvPull, and tells the others every limits::kSlice that this rank lives, as long as
  // they wait.
  std::optional<bool> TakeUp(Between* waits);

  // In the flip: copies all, some kPullAtOnce bytes at a time, and waits, with `between`'s
  // heartbeats, for limits::kKvPull each. Bytes copied. kUnavailable: the flip is in vain or the
  // agent takes too long; something is under way still, its targets are the agent's, and it is
  // taken up by TakeUp. kEngine: the pull failed.
  static constexpr uint64_t kPullAtOnce = 16 << 20;
  Result<uint64_t> Pull(std::span<const tg_kv_move> moves, Between& between);

  uint64_t bytes() const { return bytes_; }
  uint64_t pulls() const { return pulls_; }
  uint64_t failed() const { return failed_; }
  // Of `pulls`: those that the agent put off, since steps took too long. No failures.
  uint64_t put_off() const { return put_off_; }

 private:
  static constexpr uint32_t kFailures = 4;
  static constexpr uint32_t kPause = 16;  // boundaries

  // Waits for what is under way: kUnderWay if nobody waits for it any more, or for too long.
  Result<WorldView::StagedKv> Await(Between& between);

  WorldView* const world_;
  bool under_way_ = false, flip_ = false;  // flip_: it was begun by Pull
  uint32_t failures_ = 0, pause_ = 0;
  uint64_t bytes_ = 0, pulls_ = 0, failed_ = 0, put_off_ = 0;
};

}  // namespace tangram::engine
