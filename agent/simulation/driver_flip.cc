// One flip, from the intent to its end (operator/internal/driver: flip.go, settle.go).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "agent/layout/layout.h"
#include "agent/simulation/driver.h"
#include "agent/simulation/driver_records.h"
#include "agent/simulation/world.h"

namespace tangram::simulation {
namespace {

constexpr Nanos kLookEvery = 40 * kMillisecond;

attempt::Kind KindOf(v1::FlipKind kind) { return static_cast<attempt::Kind>(kind); }
static_assert(static_cast<int>(attempt::Kind::kRepair) == v1::FLIP_KIND_REPAIR);

}  // namespace

// True: the flip was retired.
bool Driver::Run(const Truth& truth, Flip flip) {
  flip.hash = layout::HashOf(flip.target);
  flip.before = flip.repairs() ? Members{} : truth.MembersOf(truth.layout());
  flip.after = truth.MembersOf(&flip.target);
  flip.members = flip.after;
  for (const std::string& id : flip.before) {
    if (!Contains(flip.members, id)) flip.members.push_back(id);
  }
  flip.agents = flip.repairs() ? truth.AgentsOf({&flip.target})
                               : truth.AgentsOf({truth.layout(), &flip.target});
  const Record<Intent> was = Load(world_->records.intent);
  Intent intent;
  intent.attempt = std::max({was.value.attempt, was.value.last, truth.highest()}) + 1;
  intent.from_epoch = truth.epoch();
  if (!flip.follow.empty()) intent.last = intent.attempt + flip.follow.size();
  intent.state = Intent::State::kProposed;
  // Set before the write: if the reply is lost, another driver aborts the attempt.
  if (!Save(&world_->records.intent, was.version, intent)) return false;
  const uint64_t version = was.version + 1;
  world_->checker.Proposed(intent.attempt, flip.kind, flip.target.epoch(), flip.hash,
                           truth.MembersOf(truth.layout()), flip.after);
  for (size_t i = 0; i < flip.follow.size(); ++i) {
    world_->checker.Follows(intent.attempt, i + 1, layout::HashOf(flip.follow[i]));
  }
  flip.header.set_world(kWorld);
  flip.header.set_epoch(truth.epoch());
  flip.header.set_attempt(intent.attempt);
  flip.last = HeaderIn(flip, flip.follow.size());
  const bool gives_up = world_->Fails(10);
  if (!UntilStaged(truth, flip) || gives_up || !MayPermit(flip)) {
    const auto flipped = AbortInOrder(truth, flip.agents, flip.header);
    if (flipped && !*flipped) (void)Burn(intent.attempt, truth.epoch() == 0 ? flip.hash : "");
    return false;
  }
  intent.state = Intent::State::kPermitted;
  if (!Save(&world_->records.intent, version, intent)) {
    // Whether or not it was written, no agent received the permit.
    const auto flipped = AbortInOrder(truth, flip.agents, flip.header);
    if (flipped && !*flipped) (void)Burn(intent.attempt, truth.epoch() == 0 ? flip.hash : "");
    return false;
  }
  if (!UntilFlipped(truth, flip)) return false;
  if (!flip.follow.empty() && !Walk(flip)) return false;
  const Nanos until = world_->time().now() + 3 * kSecond;
  while (world_->time().now() < until) {
    const Statuses statuses = AskAll();
    if (Broken(flip, statuses)) return false;
    if (RetireAll(flip, flip.agents)) {
      const Record<Intent> now = Load(world_->records.intent);
      intent.state = Intent::State::kDone;
      if (now.value.attempt == intent.attempt) {
        (void)Save(&world_->records.intent, now.version, intent);
      }
      ++world_->checker.reached[std::string("retired ") + attempt::NameOf(flip.kind)];
      if (!flip.follow.empty()) ++world_->checker.reached["retired run"];
      return true;
    }
    world_->time().Sleep(kLookEvery);
  }
  return false;
}

bool Driver::UntilStaged(const Truth& truth, const Flip& flip) {
  const Inventories held = truth.Held();
  const Planner planner{Model::Get().checkpoint->geometry(), Model::Get().banks, held,
                        world_->dice()};
  // Shared, because calls outlive a killed driver.
  const auto requests = std::make_shared<std::map<size_t, v1::PrepareRequest>>();
  for (const size_t agent : flip.agents) {
    v1::PrepareRequest& request = (*requests)[agent];
    *request.mutable_header() = flip.header;
    *request.mutable_geometry() = Model::Get().checkpoint->geometry().proto();
    request.set_kind(static_cast<v1::FlipKind>(flip.kind));
    request.set_target_epoch(flip.target.epoch());
    request.set_target_hash(flip.hash);
    *request.mutable_layout() = flip.target;
    for (const std::string& id : flip.members) {
      const Truth::Rank* rank = truth.RankOf(id);
      if (rank == nullptr || rank->agent != agent) continue;
      *request.add_parts() = planner.PartOf(id, truth.layout(), flip.target);
    }
    for (size_t r = 0; r < flip.after.size(); ++r) {
      v1::PeerAddress& peer = *request.add_peers();
      peer.set_rank(static_cast<uint32_t>(r));
      peer.set_member(flip.after[r]);
      const Truth::Rank* rank = truth.RankOf(flip.after[r]);
      if (rank == nullptr) return false;
      peer.set_agent(At(rank->agent)->address);
    }
  }
  AddRun(truth, flip, requests.get());
  const auto all_done = [](const std::vector<Call>& calls) {
    return std::all_of(calls.begin(), calls.end(), [](Call c) { return c == Call::kDone; });
  };
  if (!all_done(Each(flip.agents, "prepare", [requests](Executor& executor, size_t agent) {
        return executor.Prepare(requests->at(agent));
      }))) {
    return false;
  }
  const v1::Header header = flip.header;
  if (!all_done(Each(flip.agents, "stage",
                     [header](Executor& executor, size_t) { return executor.Stage(header); }))) {
    return false;
  }
  const Nanos until = world_->time().now() + 3 * kSecond;
  while (world_->time().now() < until) {
    const Statuses statuses = AskAll();
    size_t staged = 0;
    for (const auto& status : statuses) {
      for (int i = 0; status && i < status->ranks_size(); ++i) {
        const v1::TransitionStatus& t = status->ranks(i).transition();
        if (!Contains(flip.members, status->ranks(i).member().id())) continue;
        if (t.attempt() != flip.header.attempt()) continue;
        if (t.phase() == v1::PHASE_FAILED) return false;
        staged += t.phase() == v1::PHASE_STAGED || t.phase() == v1::PHASE_PERMITTED;
      }
    }
    if (staged == flip.members.size()) return true;
    if (Broken(flip, statuses)) return false;
    world_->time().Sleep(kLookEvery);
  }
  return false;
}

bool Driver::MayPermit(const Flip& flip) {
  const Record<Membership> now = Load(world_->records.membership);
  Membership next = now.value;
  if (flip.repairs()) {
    if (now.version != flip.fence_version) return false;
    next.repair = flip.header.attempt();
    return Save(&world_->records.membership, now.version, next);
  }
  if (flip.kind != attempt::Kind::kFirst) return true;
  if (now.value.epoch != 0) return false;
  next.epoch = flip.target.epoch();
  next.hash = flip.hash;
  next.members = flip.after;
  return Save(&world_->records.membership, now.version, next);
}

bool Driver::PermitAll(const Truth& truth, const Flip& flip) {
  const v1::Header header = flip.header;
  for (const bool joiners : {true, false}) {
    std::vector<size_t> now;
    for (const size_t agent : flip.agents) {
      if (truth.Joins(agent) == joiners) now.push_back(agent);
    }
    const auto calls = Each(now, "permit", [header](Executor& executor, size_t) {
      const Status status = executor.Permit(header);
      return status.code() == Code::kWrongPhase ? OkStatus() : status;
    });
    for (const Call call : calls) {
      if (call != Call::kDone) return false;
    }
  }
  return true;
}

bool Driver::UntilFlipped(const Truth& truth, const Flip& flip) {
  const auto all_flipped = [&](const Statuses& statuses) {
    size_t flipped = 0;
    for (const auto& status : statuses) {
      for (int i = 0; status && i < status->ranks_size(); ++i) {
        const v1::TransitionStatus& t = status->ranks(i).transition();
        if (!Contains(flip.members, status->ranks(i).member().id())) continue;
        // A rank with a later attempt has continued in the run.
        flipped += t.attempt() == flip.header.attempt() ? t.phase() == v1::PHASE_FLIPPED
                                                        : t.attempt() > flip.header.attempt();
      }
    }
    return flipped == flip.members.size();
  };
  const bool hasty = world_->Fails(4);
  Nanos until =
      world_->time().now() + (hasty ? world_->dice().Between(0, 300 * kMillisecond) : 4 * kSecond);
  bool permitted = false, asked = false;
  while (true) {
    if (!permitted) permitted = PermitAll(truth, flip);
    const Statuses statuses = AskAll();
    if (all_flipped(statuses)) return true;
    if (Broken(flip, statuses)) return false;
    if (world_->time().now() < until) {
      world_->time().Sleep(kLookEvery);
      continue;
    }
    if (asked) return false;
    asked = permitted = true;
    if (!flip.follow.empty()) {
      EndRun(flip.agents, flip.header, flip.last);
      return false;
    }
    const auto flipped = AbortInOrder(truth, flip.agents, flip.header);
    if (!flipped) return false;
    if (!*flipped) {
      (void)Burn(flip.header.attempt(), truth.epoch() == 0 ? flip.hash : "");
      return false;
    }
    until = world_->time().now() + 2 * kSecond;
  }
}

bool Driver::Broken(const Flip& flip, const Statuses& statuses) const {
  for (const auto& status : statuses) {
    for (int i = 0; status && i < status->ranks_size(); ++i) {
      const v1::RankStatus& rank = status->ranks(i);
      if (!Contains(flip.members, rank.member().id())) continue;
      if (!rank.engine().attached()) return true;
      const bool before = status->epoch() < flip.target.epoch();
      const bool joins = before && !Contains(flip.before, rank.member().id());
      if (rank.engine().stopped() && !(before && flip.repairs()) && !joins) return true;
    }
  }
  return false;
}

bool Driver::RetireAll(const Flip& flip, const std::vector<size_t>& agents) {
  const v1::Header header = flip.last.attempt() != 0 ? flip.last : flip.header;
  const auto calls = Each(agents, "retire",
                          [header](Executor& executor, size_t) { return executor.Retire(header); });
  return std::all_of(calls.begin(), calls.end(), [](Call call) { return call == Call::kDone; });
}

std::optional<bool> Driver::AbortInOrder(const Truth& truth, const std::vector<size_t>& agents,
                                         const v1::Header& header) {
  for (const bool joiners : {false, true}) {
    bool flipped = false;
    for (const size_t agent : agents) {
      if (truth.Joins(agent) != joiners) continue;
      std::optional<bool> said;
      const Nanos until = world_->time().now() + 1'500 * kMillisecond;
      while (!said) {
        const auto answer = world_->Call<Result<bool>>(
            process_, At(agent), "abort", kSecond,
            [header](Executor& executor) { return executor.Abort(header, "the driver says so"); },
            Status{Code::kUnavailable, "away"});
        if (answer.ok()) {
          said = *answer;
          world_->checker.AbortAnswered(header.attempt(), *said);
        } else if (answer.status().code() != Code::kUnavailable) {
          return std::nullopt;
        } else if (world_->time().now() > until) {
          return std::nullopt;
        } else {
          world_->time().Sleep(kLookEvery);
        }
      }
      flipped |= *said;
    }
    if (flipped) return true;
  }
  return false;
}

bool Driver::Burn(uint64_t attempt, const std::string& first) {
  if (!first.empty() && !Unfound(attempt, first)) return false;
  const Record<Intent> now = Load(world_->records.intent);
  if (now.value.attempt != attempt) return true;
  Intent next = now.value;
  next.state = Intent::State::kAborted;
  return Save(&world_->records.intent, now.version, next);
}

// Removes an aborted first layout from the record.
bool Driver::Unfound(uint64_t attempt, const std::string& hash) {
  const Record<Membership> now = Load(world_->records.membership);
  if (now.value.epoch != 1 || now.value.hash != hash) return true;
  // A later attempt may have the same target. It found the record empty, so the entry is its own.
  if (Load(world_->records.intent).value.attempt != attempt) return true;
  Membership next = now.value;
  next.epoch = 0;
  next.hash.clear();
  next.members.clear();
  return Save(&world_->records.membership, now.version, next);
}

// Ends an attempt of another driver: forward if some rank flipped, otherwise an abort.
void Driver::End(const Leftover& left) {
  if (world_->checker.tracing) {
    world_->checker.Trace(fmt::format("driver {}: ends attempt {} of agents {}{}", process_,
                                      left.attempt, fmt::join(left.agents, " "),
                                      left.any_flipped ? ", forward" : ""));
  }
  v1::Header header;
  header.set_world(kWorld);
  header.set_epoch(left.target_epoch - 1);
  header.set_attempt(left.attempt);
  if (!left.any_flipped) {
    // Its driver may live and permit it during the abort. The abort would then reach a joiner after
    // the members had the permit.
    const Record<Intent> intent = Load(world_->records.intent);
    if (intent.value.state == Intent::State::kProposed) {
      Intent burned = intent.value;
      burned.state = Intent::State::kAborted;
      if (!Save(&world_->records.intent, intent.version, burned)) return;
    }
    const std::optional<Truth> now = Observe();  // earlier permits are visible now
    const auto still = now ? now->Left() : std::nullopt;
    if (!still || still->attempt != left.attempt || still->any_flipped) return;
    const auto flipped = AbortInOrder(*now, still->agents, header);
    if (!flipped) return;
    if (!*flipped) {
      (void)Burn(left.attempt, left.target_epoch == 1 ? left.target_hash : "");
      return;
    }
  }
  Flip flip;
  flip.kind = KindOf(v1::FLIP_KIND_LAYOUT);
  flip.header = header;
  (void)RetireAll(flip, left.agents);
}

}  // namespace tangram::simulation
