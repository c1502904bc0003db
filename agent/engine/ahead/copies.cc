#include "agent/engine/ahead/copies.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>

#include "agent/base/limits.h"

namespace tangram::engine {
bool Copies::MayBegin() {
  if (under_way_ || given_up()) return false;
  if (pause_ == 0) return true;
  --pause_;
  return false;
}

void Copies::Failed(const Status& why) {
  spdlog::warn("KV copy ahead of the flip failed error=\"{}\"", why.message());
  ++failed_;
  ++failures_;
  pause_ = kPause;
}

bool Copies::Begin(std::span<const tg_kv_move> moves) {
  ++pulls_;
  const Status begun = world_->StageKv(moves);
  if (!begun.ok()) Failed(begun);
  under_way_ = begun.ok();
  return under_way_;
}

Result<WorldView::StagedKv> Copies::Await(Between& between) {
  constexpr auto kSlices = limits::kKvPull / limits::kSlice;
  Result<WorldView::StagedKv> came = WorldView::StagedKv{};
  for (auto slice = kSlices; slice > 0; --slice) {
    came = world_->KvStaged(static_cast<int>(limits::kSlice.count()));
    if (!came.ok() || came->state != WorldView::StagedKv::State::kUnderWay) break;
    if (!between.Lives().ok()) break;
  }
  return came;
}

std::optional<bool> Copies::TakeUp(Between* waits) {
  if (!under_way_) return std::nullopt;
  const auto came = waits == nullptr ? world_->KvStaged(0) : Await(*waits);
  if (came.ok() && came->state == WorldView::StagedKv::State::kUnderWay) return std::nullopt;
  under_way_ = false;
  if (std::exchange(flip_, false)) return std::nullopt;  // of a flip that was abandoned
  if (!came.ok()) {
    Failed(came.status());
    return false;
  }
  if (came->state == WorldView::StagedKv::State::kLater) {
    ++put_off_;
    return false;
  }
  failures_ = 0;
  bytes_ += came->bytes;
  return true;
}

Result<uint64_t> Copies::Pull(std::span<const tg_kv_move> moves, Between& between) {
  if (under_way_) {
    return Status{Code::kUnavailable, "the agent still copies KV for a previous flip"};
  }
  uint64_t bytes = 0;
  for (size_t begin = 0, end = 0; begin < moves.size(); begin = end) {
    for (uint64_t asked = 0; end < moves.size() && asked < kPullAtOnce; ++end) {
      asked += moves[end].length;
    }
    Status status = world_->PullKv(moves.subspan(begin, end - begin));
    if (status.ok()) {
      const auto came = Await(between);
      status = came.status();
      under_way_ = flip_ = came.ok() && came->state == WorldView::StagedKv::State::kUnderWay;
      if (under_way_) {
        return Status{Code::kUnavailable, "the KV copy did not end while other ranks waited"};
      }
      if (came.ok()) bytes += came->bytes;
    }
    // Also of a lost agent, which copies no more.
    if (!status.ok()) return Status{Code::kEngine, status.message()};
    TANGRAM_RETURN_IF_ERROR(between.Lives());
  }
  return bytes;
}

}  // namespace tangram::engine
