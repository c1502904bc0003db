#include "agent/simulation/driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "agent/layout/layout.h"
#include "agent/simulation/driver_records.h"
#include "agent/simulation/world.h"

namespace tangram::simulation {
namespace {

constexpr Nanos kAnswers = 600 * kMillisecond;

Status Away() { return {Code::kUnavailable, "away"}; }

}  // namespace

Driver::Driver(World* world) : world_(world), process_(kFirstDriver + world->NextProcess()) {}

void Driver::Start() {
  world_->time().Spawn(process_, "driver", [this] { Keep(); });
}

void Driver::Kill() { world_->time().Kill(process_); }

Agent* Driver::At(size_t agent) const { return world_->agents[agent].get(); }

Status Driver::One(size_t agent, const char* name, const std::function<Status(Executor&)>& call) {
  return world_->Call<Status>(process_, At(agent), name, 2 * kSecond, call, Away());
}

std::vector<Driver::Call> Driver::Each(const std::vector<size_t>& agents, const char* name,
                                       const std::function<Status(Executor&, size_t)>& call) {
  auto out = std::make_shared<std::vector<std::optional<Call>>>(agents.size());
  for (size_t i = 0; i < agents.size(); ++i) {
    world_->time().Spawn(process_, "driver", [this, out, i, agent = agents[i], name, call] {
      const Status status =
          One(agent, name, [call, agent](Executor& executor) { return call(executor, agent); });
      if (!status.ok() && world_->checker.tracing) {
        world_->checker.Trace(
            fmt::format("driver {}: {} {}: {}", process_, At(agent)->pod, name, status.message()));
      }
      (*out)[i] = status.ok()                           ? Call::kDone
                  : status.code() == Code::kUnavailable ? Call::kAway
                                                        : Call::kRefused;
      world_->time().Wake(out.get());
    });
  }
  const auto open = [&] {
    return std::any_of(out->begin(), out->end(), [](const auto& one) { return !one; });
  };
  while (open()) (void)world_->time().Wait(out.get(), kForever);
  std::vector<Call> done;
  for (const auto& one : *out) done.push_back(*one);
  return done;
}

Statuses Driver::AskAll() {
  auto out = std::make_shared<Statuses>(world_->agents.size());
  auto open = std::make_shared<size_t>(out->size());
  for (size_t i = 0; i < out->size(); ++i) {
    world_->time().Spawn(process_, "driver", [this, out, open, i] {
      auto status = world_->Call<Result<v1::StatusResponse>>(
          process_, At(i), "status", kAnswers,
          [](Executor& executor) -> Result<v1::StatusResponse> {
            return executor.GetStatus(&v1::StatusRequest::default_instance());
          },
          Away());
      if (status.ok()) (*out)[i] = std::move(*status);
      --*open;
      world_->time().Wake(open.get());
    });
  }
  while (*open > 0) (void)world_->time().Wait(open.get(), kForever);
  return *out;
}

std::optional<Truth> Driver::Observe() {
  const Record<Membership> record = Load(world_->records.membership);
  Statuses statuses = AskAll();
  for (size_t i = 0; i < statuses.size(); ++i) {
    // The pods' supervisor reports dead pods, so their statuses are known to be empty.
    if (!At(i)->alive) statuses[i] = v1::StatusResponse();
  }
  Truth truth(record, std::move(statuses));
  if (!truth.contradiction()) return truth;
  if (Load(world_->records.membership).version == record.version) {
    world_->checker.Wrong("ONE_WORLD", "agents disagree about an epoch");
  }
  return std::nullopt;
}

void Driver::Keep() {
  while (true) {
    world_->time().Sleep(world_->dice().Between(20 * kMillisecond, 200 * kMillisecond));
    const std::optional<Truth> truth = Observe();
    if (!truth) continue;
    const auto left = truth->Left();
    const auto note = [&](const char* what) {
      if (!world_->checker.tracing) return;
      world_->checker.Trace(fmt::format("driver {}: {}", process_, what));
    };
    if (truth->Trouble()) {
      note("repairs");
      Repair();
    } else if (Release(*truth, false)) {
      note("has released ranks");
    } else if (EndRuns(*truth)) {
      note("has ended a run");
    } else if (left) {
      End(*left);
    } else if (const Membership& known = truth->record().value;
               truth->layout() != nullptr &&
               (known.epoch < truth->epoch() || known.hash != truth->hash())) {
      note("records the members");
      Membership next = known;
      next.epoch = truth->epoch();
      next.hash = truth->hash();
      next.members = truth->MembersOf(truth->layout());
      next.repair = 0;
      (void)Save(&world_->records.membership, truth->record().version, next);
    } else {
      note(Change(*truth) ? "has changed it" : "has changed nothing");
    }
  }
}

// Randomly changes the desired state.
bool Driver::Change(const Truth& truth) {
  Dice& dice = world_->dice();
  if (settled_) return false;
  std::vector<v1::Member> free;  // ranks that could join
  for (size_t a = 0; a < truth.statuses().size(); ++a) {
    if (!truth.statuses()[a]) return false;  // an agent without a reply may still answer
    std::vector<v1::Member> ranks;
    for (const v1::RankStatus& rank : truth.statuses()[a]->ranks()) {
      const auto& fence = truth.record().value.fence;
      const bool out = rank.in_world() || (fence && Contains(fence->lost, rank.member().id())) ||
                       Contains(truth.record().value.ended, rank.member().id());
      if (rank.engine().attached() && !out) ranks.push_back(rank.member());
    }
    if (static_cast<int>(ranks.size()) < truth.statuses()[a]->ranks_size()) continue;
    free.insert(free.end(), ranks.begin(), ranks.end());
  }
  const Inventories held = truth.Held();
  const Planner planner{Model::Get().checkpoint->geometry(), Model::Get().banks, held, dice};
  const v1::Layout* now = truth.layout();
  if (now == nullptr) {
    for (const auto& status : truth.statuses()) {
      for (const v1::RankStatus& rank : status->ranks()) {
        if (rank.in_world()) return false;  // of an ended world, and not released yet
      }
    }
    if (free.size() < 2) return false;
    if (world_->ranks_per_pod() == 1 && free.size() > 2 && dice.OneIn(2)) free.pop_back();
    return Run(truth, {attempt::Kind::kFirst, planner.First(free)});
  }
  const auto ranks = static_cast<uint32_t>(now->members_size());
  std::vector<bool> active(ranks, true);
  if (settling_) {
    settled_ = Run(truth, {attempt::Kind::kLayout, planner.Dealt(*now, active)});
    return settled_;
  }
  bool idle = false;
  for (uint32_t r = 0; r < ranks; ++r) idle |= !Owns(*now, r);
  switch (dice.Below(4)) {
    case 0:
      if (free.empty()) break;
      if (dice.OneIn(2)) free.resize(1);
      // All ranks of a pod or none: they share an agent.
      if (world_->ranks_per_pod() > 1 && free.size() % world_->ranks_per_pod() != 0) break;
      return Run(truth, {attempt::Kind::kJoin, planner.Joined(*now, free)});
    case 1:
      if (!idle) break;
      return Run(truth, {attempt::Kind::kLeave, planner.Left(*now)});
    case 2:
      if (ranks <= 2) break;
      active[dice.Below(ranks)] = false;
      break;
    default:
      break;
  }
  Flip flip{attempt::Kind::kLayout, planner.Dealt(*now, active)};
  if (dice.OneIn(2)) flip.follow = Onward(flip.target, dice.Between(1, 3));
  return Run(truth, std::move(flip));
}

}  // namespace tangram::simulation
