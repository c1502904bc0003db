// The engine when something died: it stands still, follows what the fence and the repair made
// of the world, and goes on with the requests that it still has (docs/architecture.md,
// section 8).
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <string>

#include "agent/base/fault.h"
#include "agent/engine/turn/turn.h"

namespace tangram::engine {
namespace {

const fault::Point kGiveUp("engine.give_up");
const fault::Point kRepairEnter("engine.repair_enter");

constexpr int kStillMs = 2;

// As agents and the operator have it.
constexpr const char* kCauses[] = {"", "gone", "silent", "stuck", "hostile", "gave up", "told"};
constexpr const char* kDoings[] = {"", "words", "dispatch", "combine", "exchange", "flip"};

}  // namespace

void Turn::GiveUp(const Status& why) {
  (void)fault::Hit("engine.give_up");
  // The others shall not wait for a timeout. What was half sent or half read goes, too.
  mesh_->HangUpAll();
  // Before anybody hears that it stands still: whom it reaches, it says once it does.
  unreachable_.clear();
  for (uint32_t r = 0; r < comm_.size(); ++r) {
    if (r != comm_.rank()) unreachable_.push_back(r);
  }
  world_->SetUnreachable(unreachable_);
  world_->Missed(comm_.missed());
  stopped_ = true;
  WatchTheOthers();
  spdlog::warn("step abandoned epoch={} step={} flip_may_have_committed={} error=\"{}{}\"", epoch(),
               step_, pending_.has_value(), why.message(), MissedText());
  // Who told the others that its KV is in place keeps its word: they may have flipped on it.
  world_->Stop(pending_.has_value());
}

std::string Turn::MissedText() const {
  std::string out;
  for (const tg_missed& missed : comm_.missed()) {
    out += fmt::format("; {} {} in {}", comm_.members()[missed.rank], kCauses[missed.cause],
                       kDoings[missed.doing]);
    if (missed.doing != TG_IN_DISPATCH && missed.doing != TG_IN_COMBINE) continue;
    for (uint32_t layer = 0; layer < world_->model().layers; ++layer)
      if (epoch_->maps->layers[layer].moe_ordinal == static_cast<int32_t>(missed.layer))
        out += fmt::format(" of layer {}", layer);
  }
  return out;
}

void Turn::WatchTheOthers() {
  // Nobody computes, so that the least is enough; twice, for one that maps what a repair brings.
  const Patience::Duration least = options_.patience.least;
  still_.emplace(comm_.size(), 2 * least, options_.patience.heartbeat(), time_.Now());
  moved_.assign(comm_.size(), 0);
}

void Turn::HangUpOnTheSilent() {
  still_->Look(time_.Now());
  if (still_->BeatDue()) mesh_->BeatStill(epoch());
  for (uint32_t r = 0; r < comm_.size(); ++r) {
    const std::string& member = comm_.members()[r];
    const uint64_t moved = mesh_->Moved(member);
    if (moved == moved_[r] && !still_->Silent(r)) continue;
    if (moved == moved_[r]) mesh_->HangUp(member);  // it dials again, if it lives
    moved_[r] = mesh_->Moved(member);
    still_->Heard(r);
  }
}

Status Turn::StandStill() {
  mesh_->Progress(kStillMs);
  HangUpOnTheSilent();
  std::vector<uint32_t> unreachable;
  for (uint32_t r = 0; r < comm_.size(); ++r) {
    const std::string& member = comm_.members()[r];
    // Somebody who did not notice yet would wait for us. Only a repair can bring us together.
    const std::optional<Tag> tag = mesh_->Waiting(member);
    const bool repaired =
        tag && preparation_ && preparation_->repair() && preparation_->target_epoch() == tag->epoch;
    // One that went ahead of us in the repair waits for us, unless it gave that up by now.
    if (tag && (!repaired || mesh_->LeftFrame(member))) mesh_->HangUp(member);
    if (!mesh_->Connected({&member, 1})) unreachable.push_back(r);
  }
  if (unreachable != unreachable_) {
    unreachable_ = std::move(unreachable);
    world_->SetUnreachable(unreachable_);
  }
  ReportLoad(false);  // gateways hear that this rank lives
  return CheckPreparation();
}

Status Turn::Fenced() {
  return {Code::kUnavailable, "this rank did not respond in time and was removed from the world"};
}

Status Turn::Follow(const tg_event& event) {
  if (epoch() == event.target_epoch) return OkStatus();  // entered already
  if (event.repair) {
    (void)fault::Hit("engine.repair_enter");
    ++flips_;
    return Enter(Entry::kRepaired);
  }
  if (pending_ && pending_->target_epoch == event.target_epoch) {
    ++flips_;
    spdlog::info("flip had committed epoch={}", event.target_epoch);
    return EnterPending();
  }
  if (epoch_ == nullptr) return Enter(Entry::kEmpty);
  // Somebody flipped, so every member had all it needed, and said so.
  return {Code::kInternal, "the agents flipped to epoch " + std::to_string(event.target_epoch) +
                               ", but this engine has no KV for it"};
}

}  // namespace tangram::engine
