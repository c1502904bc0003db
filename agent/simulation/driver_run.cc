// A run: consecutive flips under one permit, done by the agents themselves
// (operator/internal/driver: run.go).
#include <algorithm>
#include <memory>
#include <utility>

#include "agent/layout/layout.h"
#include "agent/simulation/driver.h"
#include "agent/simulation/driver_records.h"
#include "agent/simulation/world.h"

namespace tangram::simulation {
namespace {

constexpr Nanos kLookEvery = 40 * kMillisecond;

// The members' inventories after a layout's old places are retired.
std::map<std::string, v1::Inventory> HeldIn(const v1::Layout& layout) {
  std::map<std::string, v1::Inventory> out;
  for (int rank = 0; rank < layout.members_size(); ++rank) {
    v1::Inventory& held = out[layout.members(rank).id()];
    held.set_dense(true);
    for (const layout::PlacedPiece& piece : layout::PiecesOf(
             layout, Model::Get().checkpoint->geometry(), static_cast<uint32_t>(rank))) {
      held.add_layer(piece.layer);
      held.add_bank(piece.bank);
      held.add_slot(piece.slot);
      held.add_expert(piece.expert);
      held.add_granule_start(piece.run.start);
      held.add_granule_count(piece.run.count);
    }
  }
  return out;
}

Inventories Pointers(const std::map<std::string, v1::Inventory>& held) {
  Inventories out;
  for (const auto& [member, inventory] : held) out[member] = &inventory;
  return out;
}

}  // namespace

v1::Header Driver::HeaderIn(const Flip& flip, size_t place) {
  v1::Header header = flip.header;
  header.set_epoch(header.epoch() + place);
  header.set_attempt(header.attempt() + place);
  return header;
}

// Further flips after one that deals experts. Each starts from the state that the previous one
// leaves.
std::vector<v1::Layout> Driver::Onward(const v1::Layout& first, size_t flips) {
  std::vector<v1::Layout> out;
  const std::vector<bool> active(static_cast<size_t>(first.members_size()), true);
  for (size_t i = 0; i < flips; ++i) {
    const v1::Layout& from = i == 0 ? first : out.back();
    const auto held = HeldIn(from);
    const Inventories pointers = Pointers(held);
    const Planner planner{Model::Get().checkpoint->geometry(), Model::Get().banks, pointers,
                          world_->dice()};
    out.push_back(planner.Dealt(from, active));
  }
  return out;
}

void Driver::AddRun(const Truth& truth, const Flip& flip,
                    std::map<size_t, v1::PrepareRequest>* requests) {
  const v1::Layout* from = &flip.target;
  for (size_t i = 0; i < flip.follow.size(); ++i) {
    const v1::Layout& target = flip.follow[i];
    const auto held = HeldIn(*from);
    const Inventories pointers = Pointers(held);
    const Planner planner{Model::Get().checkpoint->geometry(), Model::Get().banks, pointers,
                          world_->dice()};
    for (auto& [agent, request] : *requests) {
      v1::PrepareRequest& next = *request.add_next();
      *next.mutable_header() = HeaderIn(flip, i + 1);
      next.set_kind(v1::FLIP_KIND_LAYOUT);
      next.set_target_epoch(target.epoch());
      next.set_target_hash(layout::HashOf(target));
      *next.mutable_layout() = target;
      for (const std::string& id : flip.members) {
        const Truth::Rank* rank = truth.RankOf(id);
        if (rank == nullptr || rank->agent != agent) continue;
        *next.add_parts() = planner.PartOf(id, from, target);
      }
    }
    from = &target;
  }
}

// Waits until all have done the last flip. False: the run ended earlier, or needs a repair.
bool Driver::Walk(const Flip& flip) {
  const bool hasty = world_->Fails(4);
  const Nanos until =
      world_->time().now() + (hasty ? world_->dice().Between(0, 2 * kSecond) : 12 * kSecond);
  while (world_->time().now() < until) {
    const Statuses statuses = AskAll();
    size_t done = 0;
    bool stuck = false;
    for (const auto& status : statuses) {
      for (int i = 0; status && i < status->ranks_size(); ++i) {
        const v1::TransitionStatus& t = status->ranks(i).transition();
        if (!Contains(flip.members, status->ranks(i).member().id())) continue;
        if (t.attempt() < flip.header.attempt() || t.attempt() > flip.last.attempt()) continue;
        const bool last = t.attempt() == flip.last.attempt();
        done += last && (t.phase() == v1::PHASE_FLIPPED || t.phase() == v1::PHASE_IDLE);
        stuck |= t.phase() == v1::PHASE_FAILED || (!last && t.run_last() == 0);
      }
    }
    if (Broken(flip, statuses)) return false;
    if (done == flip.members.size()) return true;
    if (stuck) break;
    world_->time().Sleep(kLookEvery);
  }
  EndRun(flip.agents, flip.header, flip.last);
  return false;
}

// Ends the run on all these agents. Flips in progress are then handled like any attempt.
bool Driver::EndRun(const std::vector<size_t>& agents, const v1::Header& first,
                    const v1::Header& last) {
  ++world_->checker.reached["run ended"];
  for (const size_t agent : agents) {
    bool said = false;
    const Nanos until = world_->time().now() + 1'500 * kMillisecond;
    while (!said) {
      const auto answer = world_->Call<Result<bool>>(
          process_, At(agent), "abort", kSecond,
          [last](Executor& executor) { return executor.Abort(last, "the driver says so"); },
          Status{Code::kUnavailable, "away"});
      if (answer.ok()) {
        said = true;
        world_->checker.RunEnded(first.attempt(), last.attempt(), *At(agent));
      } else if (answer.status().code() != Code::kUnavailable || world_->time().now() > until) {
        return false;
      } else {
        world_->time().Sleep(kLookEvery);
      }
    }
  }
  return Burn(first.attempt(), "");
}

// Ends runs of dead drivers. True: there were some.
bool Driver::EndRuns(const Truth& truth) {
  std::map<uint64_t, std::vector<size_t>> runs;
  for (size_t agent = 0; agent < truth.statuses().size(); ++agent) {
    const auto& status = truth.statuses()[agent];
    if (!status || !truth.Believed(agent)) continue;
    for (const v1::RankStatus& rank : status->ranks()) {
      const uint64_t last = rank.transition().run_last();
      if (last == 0) continue;
      auto& agents = runs[last];
      if (agents.empty() || agents.back() != agent) agents.push_back(agent);
    }
  }
  for (const auto& [last, agents] : runs) {
    v1::Header header;
    header.set_world(kWorld);
    header.set_epoch(truth.epoch());
    header.set_attempt(last);
    (void)EndRun(agents, header, header);
  }
  return !runs.empty();
}

}  // namespace tangram::simulation
