#include "agent/engine/ahead/copies.h"

#include <spdlog/spdlog.h>

namespace tangram::engine {
namespace {

constexpr int kLookMs = 100;  // between two signs that this rank lives

}  // namespace

bool Copies::MayBegin() {
  if (under_way_ || given_up()) return false;
  if (pause_ == 0) return true;
  --pause_;
  return false;
}

void Copies::Failed(const Status& why) {
  spdlog::warn("KV ahead of the flip: {}", why.message());
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

std::optional<bool> Copies::TakeUp(Between* waits) {
  while (under_way_) {
    const auto came = world_->KvStaged(waits == nullptr ? 0 : kLookMs);
    if (came.ok() && came->state == WorldView::StagedKv::State::kUnderWay) {
      if (waits == nullptr) return std::nullopt;
      waits->Lives();
      continue;
    }
    under_way_ = false;
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
  return std::nullopt;
}

}  // namespace tangram::engine
