// A rank with a clock: a step lasts as long as the table says, and no permit, fence or query waits
// for its end.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <thread>

#include "agent/engine/world/groups.h"
#include "e2e/engine/step/reference.h"

namespace tangram::engine {
namespace {

using Clock = std::chrono::steady_clock;

// Interval between checks for such events.
constexpr auto kLook = std::chrono::milliseconds(5);
// Smoothing factor of the experts' imbalance (about 16 steps).
constexpr double kSmooth = 1. / 16;

}  // namespace

Result<PacedLayout> Reference::PaceFor(const tg_maps& maps, bool repair) const {
  if (!pacer_.options().table) return PacedLayout{};
  const Result<std::vector<kv::LayerGroups>> groups = GroupsOf(maps, world_->model());
  if (!groups.ok()) return groups.status();
  std::string told;
  Result<PacedLayout> out = pacer_.LayoutOf(maps, *groups, world_->model().experts, repair, &told);
  if (!told.empty()) spdlog::warn("pace table incomplete epoch={} error=\"{}\"", maps.epoch, told);
  return out;
}

Status Reference::Fits(const tg_maps& target, bool repair) {
  return PaceFor(target, repair).status();
}

void Reference::SetPace(const StepInput& input) {
  if (!pacer_.options().table) return;
  std::vector<std::vector<PacedItem>> homes;
  double executed = 0, most = 0;
  for (const Announced& home : homes_) {
    std::vector<PacedItem>& items = homes.emplace_back();
    for (const BatchItem& item : home.batch.items) items.push_back({item.start, item.count});
    executed += home.figures.executed;
    most = std::max<double>(most, home.figures.executed);
  }
  uint32_t ranks = 0;
  for (const PacedLayout::Part& part : paced_.layout.parts)
    ranks = std::max(ranks, part.shape.ranks);
  if (pacer_.options().imbalance && executed > 0) {
    paced_.imbalance += kSmooth * (most * ranks / executed - paced_.imbalance);
  }
  const Pacer::Duration lasts = pacer_.Of(paced_.layout, homes, paced_.imbalance, epoch_->number(),
                                          input.step, std::chrono::system_clock::now());
  paced_.until = paced_.begun + lasts;
}

Status Reference::AwaitPace(Between& between) {
  if (!pacer_.options().table) return OkStatus();
  if (Clock::now() > paced_.until) {
    paced_.ended = Paced::Ended::kLate;
    return OkStatus();
  }
  ++pace_waits_;
  while (true) {
    TANGRAM_RETURN_IF_ERROR(between.Answer());
    if (between.Hurries()) {
      paced_.ended = Paced::Ended::kCut;
      return OkStatus();
    }
    const Clock::time_point now = Clock::now();
    if (now >= paced_.until) break;
    std::this_thread::sleep_for(std::min<Clock::duration>(kLook, paced_.until - now));
  }
  paced_.ended = Paced::Ended::kInTime;
  return OkStatus();
}

void Reference::NotePace() {
  const bool in_time = paced_.ended == Paced::Ended::kInTime;
  meter_.Note(homes_, (in_time ? paced_.until : Clock::now()) - paced_.begun,
              paced_.ended != Paced::Ended::kCut);
  if (paced_.ended == Paced::Ended::kUnpaced) return;
  PaceCounts& counts = paced_.counts;
  ++counts.steps;
  counts.overruns += paced_.ended == Paced::Ended::kLate;
  counts.cut += paced_.ended == Paced::Ended::kCut;
  counts.seconds += std::chrono::duration<double>(paced_.until - paced_.begun).count();
}

}  // namespace tangram::engine
