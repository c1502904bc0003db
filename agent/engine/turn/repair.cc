// The engine after a rank died. It stops, follows the outcome of the fence and of the repair, and
// continues with the requests that it still has (docs/architecture.md, section 8).
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

// The names that agents and the operator use.
constexpr const char* kCauses[] = {"", "gone", "silent", "stuck", "hostile", "gave up", "told"};
constexpr const char* kDoings[] = {"", "words", "dispatch", "combine", "exchange", "flip"};

}  // namespace

void Turn::GiveUp(const Status& why) {
  (void)fault::Hit("engine.give_up");
  // The others must not wait for a timeout. Partly sent and partly read frames are dropped, too.
  mesh_->HangUpAll();
  // Set before `stopped` is visible: this rank reports the peers that it reaches only once it has
  // stopped.
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
  // A rank that has confirmed its KV to the others keeps its vote: they may have flipped on it.
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
  // No rank computes, so the minimum is enough. It is doubled for a rank that maps pieces of a
  // repair.
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
    if (moved == moved_[r]) mesh_->HangUp(member);  // a live peer dials again
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
    // A peer that has not noticed yet would wait for us. Only a repair can reconnect us for
    // exchanges.
    const std::optional<Tag> tag = mesh_->Waiting(member);
    const bool repaired =
        tag && preparation_ && preparation_->repair() && preparation_->target_epoch() == tag->epoch;
    // A peer that is ahead of us in the repair waits for us, unless it has abandoned that by now.
    if (tag && (!repaired || mesh_->LeftFrame(member))) mesh_->HangUp(member);
    if (!mesh_->Connected({&member, 1})) unreachable.push_back(r);
  }
  if (unreachable != unreachable_) {
    unreachable_ = std::move(unreachable);
    world_->SetUnreachable(unreachable_);
  }
  ReportLoad(false);  // gateways learn that this rank is alive
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
  // Some rank flipped, so every member had confirmed all its KV.
  return {Code::kInternal, "the agents flipped to epoch " + std::to_string(event.target_epoch) +
                               ", but this engine has no KV for it"};
}

}  // namespace tangram::engine
