// Repairs after a loss of members (operator/internal/driver: repair.go, fence.go, resolve.go).
#include <algorithm>
#include <utility>

#include "agent/layout/layout.h"
#include "agent/simulation/driver.h"
#include "agent/simulation/driver_records.h"
#include "agent/simulation/world.h"

namespace tangram::simulation {
namespace {

constexpr Nanos kLookEvery = 40 * kMillisecond;
constexpr Nanos kSettles = 400 * kMillisecond;   // for connections that engines report
constexpr Nanos kReattach = 500 * kMillisecond;  // a lost engine may come back
constexpr Nanos kPatience = 6 * kSecond;

v1::Header HeaderOf(const v1::TransitionStatus& t) {
  v1::Header header;
  header.set_world(kWorld);
  header.set_epoch(t.target_epoch() - 1);
  header.set_attempt(t.attempt());
  return header;
}

}  // namespace

// Waits until a ruling may be acted on, or the trouble has ended.
std::optional<std::pair<Truth, Ruling>> Driver::Still() {
  Scheduler& time = world_->time();
  const Nanos began = time.now();
  std::map<std::string, Nanos> missing;
  std::set<std::string> apart;
  Nanos apart_since = began;
  while (true) {
    std::optional<Truth> truth = Observe();
    if (!truth) return std::nullopt;
    if (!truth->Trouble()) return std::pair(std::move(*truth), Ruling{});
    if (const auto left = truth->Left(); truth->layout() == nullptr && left) End(*left);
    Ruling ruling = truth->Rule();
    bool ready = ruling.made;
    std::map<std::string, Nanos> still_missing;
    for (const auto& status : truth->statuses()) {
      for (int i = 0; status && i < status->ranks_size(); ++i) {
        const v1::RankStatus& rank = status->ranks(i);
        const auto& fence = truth->record().value.fence;
        if (rank.engine().attached() || !rank.in_world()) continue;
        if (fence && Contains(fence->lost, rank.member().id())) continue;
        const auto known = missing.find(rank.member().id());
        const Nanos since = known == missing.end() ? time.now() : known->second;
        still_missing[rank.member().id()] = since;
        ready &= time.now() - since >= kReattach;
      }
    }
    missing = std::move(still_missing);
    if (std::set<std::string> now = truth->Apart(); now != apart) {
      apart = std::move(now);
      apart_since = time.now();
    }
    ready &= apart.empty() || time.now() - apart_since >= kSettles;
    ready &= !ruling.survivors.empty() || !ruling.unknown;
    if (ready && truth->Open(ruling)) {
      Hold(*truth, ruling);  // flips until then are visible only afterwards
      ready = false;
    }
    if (ready) return std::pair(std::move(*truth), std::move(ruling));
    if (time.now() - began > kPatience) {
      if (!ruling.made || truth->Open(ruling)) return std::nullopt;
      return std::pair(std::move(*truth), std::move(ruling));
    }
    time.Sleep(kLookEvery);
  }
}

void Driver::Repair() {
  if (const auto first = Still(); !first || !first->first.Trouble()) return;
  // After this fence, no earlier proposal may be permitted.
  const Record<Intent> intent = Load(world_->records.intent);
  if (intent.value.state == Intent::State::kProposed) {
    Intent next = intent.value;
    next.state = Intent::State::kAborted;
    if (!Save(&world_->records.intent, intent.version, next)) return;
  }
  const auto still = Still();
  if (!still || !still->first.Trouble()) return;
  const Truth& truth = still->first;
  const Ruling& ruling = still->second;
  if (ruling.survivors.empty()) return EndWorld(truth, ruling.lost);
  const Membership& was = truth.record().value;
  if (was.epoch > ruling.stand_on) return;
  Membership next = was;
  next.fence = Fence{ruling.from_epoch,    truth.AttemptOf(ruling), ruling.forward, ruling.stand_on,
                     truth.HashOf(ruling), ruling.survivors,        ruling.lost};
  next.epoch = ruling.stand_on;
  next.hash = next.fence->hash;
  next.members = ruling.survivors;
  next.repair = 0;
  const uint64_t version = truth.record().version;
  if (!Save(&world_->records.membership, version, next)) return;
  if (!Resolve(truth, *next.fence)) return;
  const std::optional<Truth> after = Observe();
  if (!after || after->record().version != version + 1) return;
  for (const std::string& id : next.fence->survivors) {
    const Truth::Rank* rank = after->RankOf(id);
    if (rank == nullptr || !rank->status->engine().attached()) return;
    if (after->EpochOf(*rank) != next.fence->epoch || Unfinished(*rank->status)) return;
  }
  if (after->layout() == nullptr || after->hash() != next.fence->hash) return;
  const Inventories held = after->Held();
  const Planner planner{Model::Get().checkpoint->geometry(), Model::Get().banks, held,
                        world_->dice()};
  (void)Run(*after, {attempt::Kind::kRepair,
                     planner.Repaired(*after->layout(), next.fence->survivors), version + 1});
}

bool Driver::Resolve(const Truth& truth, const Fence& fence) {
  std::set<size_t> told;
  std::vector<size_t> agents;
  std::map<size_t, v1::ResolveRequest> requests;
  for (const std::string& id : fence.survivors) {
    const Truth::Rank* rank = truth.RankOf(id);
    // If an agent's ranks differ, an unfinished one counts.
    if (rank == nullptr || !Unfinished(*rank->status)) continue;
    if (!told.insert(rank->agent).second) continue;
    v1::ResolveRequest& request = requests[rank->agent];
    *request.mutable_header() = HeaderOf(rank->status->transition());
    const bool forward = fence.forward && request.header().attempt() == fence.attempt;
    request.set_outcome(forward ? v1::OUTCOME_ROLL_FORWARD : v1::OUTCOME_ABORT);
    request.set_reason("a fence has left members out");
    for (const std::string& lost : fence.lost) request.add_lost(lost);
    agents.push_back(rank->agent);
  }
  for (const Nanos until = world_->time().now() + kSecond;;) {
    const auto calls = Each(agents, "resolve", [requests](Executor& executor, size_t agent) {
      return executor.Resolve(requests.at(agent));
    });
    std::vector<size_t> rest;
    for (size_t i = 0; i < calls.size(); ++i) {
      if (calls[i] == Call::kRefused) return false;
      if (calls[i] == Call::kAway) rest.push_back(agents[i]);
    }
    if (rest.empty()) break;
    if (world_->time().now() > until) return false;
    agents = std::move(rest);
    world_->time().Sleep(kLookEvery);
  }
  // Aborts the attempt on agents outside the world (joiners).
  for (size_t a = 0; a < truth.statuses().size(); ++a) {
    if (!truth.statuses()[a] || told.contains(a)) continue;
    bool left = false;
    const v1::RankStatus* open = nullptr;
    for (const v1::RankStatus& rank : truth.statuses()[a]->ranks()) {
      left |= Contains(fence.lost, rank.member().id());
      if (Unfinished(rank)) open = &rank;
    }
    if (left || open == nullptr) continue;
    (void)AbortInOrder(truth, {a}, HeaderOf(open->transition()));
  }
  return true;
}

void Driver::Hold(const Truth& truth, const Ruling& ruling) {
  std::vector<size_t> agents;
  std::map<size_t, v1::ResolveRequest> requests;
  for (const std::string& id : ruling.survivors) {
    const Truth::Rank* rank = truth.RankOf(id);
    if (requests.contains(rank->agent)) continue;
    if (!Unfinished(*rank->status) && !truth.HalfFlipped(*rank)) continue;
    v1::ResolveRequest& request = requests[rank->agent];
    *request.mutable_header() = HeaderOf(rank->status->transition());
    request.set_outcome(v1::OUTCOME_HOLD);
    request.set_reason("a fence is about to be decided");
    agents.push_back(rank->agent);
  }
  (void)Each(agents, "hold", [requests](Executor& executor, size_t agent) {
    return executor.Resolve(requests.at(agent));
  });
}

void Driver::EndWorld(const Truth& truth, const Members& lost) {
  const Membership& was = truth.record().value;
  Membership next;
  next.worlds = was.worlds + 1;
  next.ended = was.ended;
  const auto end = [&](const Members& members) {
    for (const std::string& id : members) {
      if (!Contains(next.ended, id)) next.ended.push_back(id);
    }
  };
  end(truth.MembersOf(truth.layout()));
  end(truth.MembersOf(truth.older()));
  end(was.members);
  if (was.fence) end(was.fence->lost);
  for (const auto& status : truth.statuses()) {
    for (int i = 0; status && i < status->ranks_size(); ++i) {
      const v1::RankStatus& rank = status->ranks(i);
      if (rank.in_world() || Unfinished(rank)) end({rank.member().id()});
    }
  }
  const uint64_t epoch = std::max(truth.epoch(), was.epoch);
  next.fence = Fence{epoch, 0, false, epoch, "", {}, lost};
  if (!Save(&world_->records.membership, truth.record().version, next)) return;
  (void)Release(truth, true);
}

bool Driver::Release(const Truth& truth, bool ends) {
  bool any = false;
  for (size_t a = 0; a < truth.statuses().size(); ++a) {
    if (!truth.statuses()[a]) continue;
    v1::ReleaseRequest request;
    uint64_t epoch = std::max(truth.epoch(), truth.record().value.epoch);
    if (!truth.Believed(a)) epoch = std::max(epoch, truth.statuses()[a]->epoch() + 1);
    for (const v1::RankStatus& rank : truth.statuses()[a]->ranks()) {
      const v1::TransitionStatus& now = rank.transition();
      if (truth.Believed(a) || now.phase() != v1::PHASE_FLIPPED) continue;
      epoch = std::max(epoch, now.target_epoch() + 1);
    }
    bool over = ends;
    for (const std::string& id : truth.MustGo(a)) {
      request.add_members(id);
      over |= Contains(truth.record().value.ended, id);
    }
    if (request.members_size() == 0) continue;
    any = true;
    request.mutable_header()->set_world(kWorld);
    request.mutable_header()->set_epoch(epoch);
    request.set_world_ends(over);
    request.set_reason("left out of the world by a fence");
    world_->checker.Released();
    const Status done =
        One(a, "release", [request](Executor& executor) { return executor.Release(request); });
    if (done.ok()) ++world_->checker.reached["released"];
  }
  return any;
}

}  // namespace tangram::simulation
