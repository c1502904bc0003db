// The engine when something died: it stands still, follows what the fence and the repair made
// of the world, and goes on with the requests that it still has (docs/architecture.md,
// section 8).
#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>

#include "agent/base/fault.h"
#include "e2e/engine/step/engine.h"

namespace tangram::engine {
namespace {

const fault::Point kGiveUp("engine.give_up");
const fault::Point kRepairEnter("engine.repair_enter");

constexpr int kStillMs = 2;

// Is all KV of a request of home `rank` on that rank?
bool HomeOnly(const std::vector<kv::LayerGroups>& groups, uint32_t rank) {
  return std::all_of(groups.begin(), groups.end(), [&](const kv::LayerGroups& layer) {
    return std::any_of(layer.begin(), layer.end(), [&](const kv::Group& group) {
      return group.ranks.size() == 1 && group.ranks[0] == rank;
    });
  });
}

}  // namespace

void Engine::GiveUp(const Status& why) {
  (void)fault::Hit("engine.give_up");
  // The others shall not wait for a timeout. What was half sent or half read goes, too.
  mesh_->HangUpAll();
  // Before anybody hears that it stands still: whom it reaches, it says once it does.
  unreachable_.clear();
  for (uint32_t r = 0; r < comm_.size(); ++r) {
    if (r != comm_.rank()) unreachable_.push_back(r);
  }
  world_->SetUnreachable(unreachable_);
  stopped_ = true;
  WatchTheOthers();
  spdlog::warn("epoch {} step {} is given up{}: {}", epoch(), step_,
               pending_ ? ", the flip that it was for may be a fact" : "", why.message());
  // Who told the others that its KV is in place keeps its word: they may have flipped on it.
  world_->Stop(pending_.has_value());
}

void Engine::WatchTheOthers() {
  // Nobody computes, so that the least is enough; twice, for one that maps what a repair brings.
  const Patience::Duration least = options_.patience.least;
  still_.emplace(comm_.size(), 2 * least, least / 4, Wait::Clock::now());
  moved_.assign(comm_.size(), 0);
}

void Engine::HangUpOnTheSilent() {
  still_->Look(Wait::Clock::now());
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

Status Engine::StandStill() {
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

Status Engine::Follow(const tg_event& event) {
  if (maps_ != nullptr && maps_->epoch == event.target_epoch) return OkStatus();  // entered already
  if (event.repair) return EnterRepaired();
  if (pending_ && pending_->target_epoch == event.target_epoch) {
    ++flips_;
    spdlog::info("epoch {}: the flip was a fact", event.target_epoch);
    return EnterPending();
  }
  if (maps_ == nullptr) return Enter(std::move(pages_), Adopted{}, 0);
  // Somebody flipped, so every member had all it needed, and said so.
  return {Code::kInternal, "the agents flipped to epoch " + std::to_string(event.target_epoch) +
                               ", for which this engine has no KV"};
}

Status Engine::EnterRepaired() {
  (void)fault::Hit("engine.repair_enter");
  const tg_maps* maps = world_->maps();
  Result<std::vector<kv::LayerGroups>> groups = GroupsOf(*maps, world_->model());
  if (!groups.ok()) return groups.status();
  const auto rank = static_cast<uint32_t>(maps->rank);
  const bool keeps = maps_ != nullptr && HomeOnly(groups_, comm_.rank()) && HomeOnly(*groups, rank);
  size_t running = 0;
  const std::vector<const Sequence*> all = scheduler_.All(&running);
  Adopted adopted;
  std::set<uint32_t> blocks;
  for (size_t i = 0; i < all.size(); ++i) {
    Sequence sequence = *all[i];
    if (i < running && keeps) {
      blocks.insert(sequence.blocks.begin(), sequence.blocks.end());
      adopted.running.push_back(std::move(sequence));
      continue;
    }
    // Its KV is lost, in part at least, but its tokens are all here: it is computed again.
    sequence.computed = 0;
    sequence.blocks.clear();
    adopted.waiting.push_back(std::move(sequence));
  }
  Result<PageStore> pages = PageStore(pages_.total());
  if (keeps) pages = pages_.OnlyOf(comm_.rank(), blocks, rank);
  if (!pages.ok()) return pages.status();
  ++flips_;
  spdlog::info("epoch {}: repaired; {} of {} requests keep their KV", maps->epoch,
               adopted.running.size(), all.size());
  const uint32_t next_block = scheduler_.next_block();
  return Enter(std::move(*pages), std::move(adopted), next_block);
}

std::map<std::string, v1::Roster> Engine::Rosters() const {
  std::map<std::string, v1::Roster> out;
  size_t running = 0;
  for (const Sequence* sequence : scheduler_.All(&running)) {
    out[sequence->gateway].add_requests(sequence->id());
  }
  return out;
}

}  // namespace tangram::engine
