// A rank with a clock: the step lasts as long as the table says, and nobody who asks for something
// else waits for it.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <thread>

#include "e2e/engine/step/engine.h"

namespace tangram::engine {
namespace {

using Clock = std::chrono::steady_clock;

// Between two looks for what must not wait.
constexpr auto kLook = std::chrono::milliseconds(5);
// Waits that one attempt may end: this rank's permit came, and in the next step those of the others
// have, too. An attempt that is declined until requests have ended does not make the world hurry.
constexpr uint32_t kCuts = 2;
// Steps over which the imbalance of the experts is taken.
constexpr double kSmooth = 1. / 16;

}  // namespace

Result<PacedLayout> Engine::PaceFor(const tg_maps& maps, bool repair) const {
  if (!pacer_.options().table) return PacedLayout{};
  const Result<std::vector<kv::LayerGroups>> groups = GroupsOf(maps, world_->model());
  if (!groups.ok()) return groups.status();
  std::string told;
  Result<PacedLayout> out = pacer_.LayoutOf(maps, *groups, world_->model().experts, repair, &told);
  if (!told.empty()) spdlog::warn("epoch {}: {}", maps.epoch, told);
  return out;
}

void Engine::SetPace(const std::vector<Control>& controls) {
  if (!pacer_.options().table) return;
  std::vector<std::vector<PacedItem>> homes;
  double executed = 0, most = 0;
  for (const Control& control : controls) {
    std::vector<PacedItem>& items = homes.emplace_back();
    for (const BatchItem& item : control.batch.items) items.push_back({item.start, item.count});
    executed += control.figures.executed;
    most = std::max<double>(most, control.figures.executed);
  }
  uint32_t ranks = 0;
  for (const PacedLayout::Part& part : paced_.layout.parts)
    ranks = std::max(ranks, part.shape.ranks);
  if (pacer_.options().imbalance && executed > 0) {
    paced_.imbalance += kSmooth * (most * ranks / executed - paced_.imbalance);
  }
  const Pacer::Duration lasts = pacer_.Of(paced_.layout, homes, paced_.imbalance, epoch(), step_,
                                          std::chrono::system_clock::now());
  paced_.until = paced_.begun + lasts;
}

Status Engine::AwaitPace() {
  if (!pacer_.options().table) return OkStatus();
  Clock::time_point beaten = Clock::now();
  if (beaten > paced_.until) {
    paced_.ended = Paced::Ended::kLate;
    return OkStatus();
  }
  while (true) {
    if (world_->stopped()) return Fenced();
    Result<tg_event> event = world_->Poll(0);
    if (event.ok() && event->kind == TG_EVENT_FLIPPED) {
      kept_event_ = *event;  // nobody enters another epoch within a step
    } else if (event.ok()) {
      TANGRAM_RETURN_IF_ERROR(TakeEvent(*event));
    } else if (event.status().code() != Code::kUnavailable) {
      return event.status();
    }
    TANGRAM_RETURN_IF_ERROR(CheckPreparation());
    mesh_->Progress(0);
    if (PaceIsCut()) {
      paced_.ended = Paced::Ended::kCut;
      return OkStatus();
    }
    const Clock::time_point now = Clock::now();
    if (now >= paced_.until) break;
    if (now - beaten >=
        options_.patience.least / 4) {  // who waits for this rank hears that it lives
      mesh_->Beat();
      beaten = now;
    }
    std::this_thread::sleep_for(std::min<Clock::duration>(kLook, paced_.until - now));
  }
  paced_.ended = Paced::Ended::kInTime;
  return OkStatus();
}

void Engine::NotePace(const std::vector<Control>& controls) {
  const bool in_time = paced_.ended == Paced::Ended::kInTime;
  meter_.Note(controls, (in_time ? paced_.until : Clock::now()) - paced_.begun,
              paced_.ended != Paced::Ended::kCut);
  if (paced_.ended == Paced::Ended::kUnpaced) return;
  PaceCounts& counts = paced_.counts;
  ++counts.steps;
  counts.overruns += paced_.ended == Paced::Ended::kLate;
  counts.cut += paced_.ended == Paced::Ended::kCut;
  counts.seconds += std::chrono::duration<double>(paced_.until - paced_.begun).count();
}

bool Engine::PaceIsCut() {
  if (kept_event_ || (stop_ != nullptr && stop_->load(std::memory_order_relaxed)) ||
      !mesh_->Connected(comm_.members())) {  // the next exchange finds who is gone
    return true;
  }
  if (!preparation_ || !preparation_->answered() || preparation_->repair()) return false;
  if (paced_.cut_attempt != preparation_->attempt()) {
    paced_.cut_attempt = preparation_->attempt();
    paced_.cuts = 0;
  }
  // The word latches here as it would in the next step, which opens with it.
  if (paced_.cuts >= kCuts || world_->Word().epoch == maps_->epoch) return false;
  ++paced_.cuts;
  return true;
}

}  // namespace tangram::engine
