#include "agent/simulation/truth.h"

#include <algorithm>
#include <functional>

#include "agent/layout/layout.h"

namespace tangram::simulation {
namespace {

Members Union(const Members& a, const Members& b) {
  Members out = a;
  for (const std::string& id : b) {
    if (!Contains(out, id)) out.push_back(id);
  }
  return out;
}

bool Lost(const std::optional<Fence>& fence, const std::string& id) {
  return fence && Contains(fence->lost, id);
}

// The largest set of members without a disconnected pair; of equal ones, the first in order.
Members LargestWhole(const Members& fit,
                     const std::function<bool(const std::string&, const std::string&)>& cut) {
  Members best;
  for (uint64_t mask = 1; mask < uint64_t{1} << fit.size(); ++mask) {
    Members set;
    for (size_t i = 0; i < fit.size(); ++i) {
      if (mask >> i & 1) set.push_back(fit[i]);
    }
    if (set.size() < best.size() || (set.size() == best.size() && set >= best)) continue;
    bool whole = true;
    for (size_t i = 0; i < set.size() && whole; ++i) {
      for (size_t j = i + 1; j < set.size() && whole; ++j) whole = !cut(set[i], set[j]);
    }
    if (whole) best = set;
  }
  return best;
}

}  // namespace

bool Contains(const Members& members, const std::string& id) {
  return std::find(members.begin(), members.end(), id) != members.end();
}

bool Unfinished(const v1::RankStatus& rank) {
  const v1::Phase phase = rank.transition().phase();
  return phase > v1::PHASE_IDLE && phase != v1::PHASE_FLIPPED;
}

Truth::Truth(Record<Membership> record, Statuses statuses)
    : record_(std::move(record)), statuses_(std::make_shared<const Statuses>(std::move(statuses))) {
  for (const auto& status : *statuses_) believed_.push_back(status && Believes(*status));
  for (size_t a = 0; a < statuses_->size(); ++a) {
    if (!(*statuses_)[a]) continue;
    const v1::StatusResponse& status = *(*statuses_)[a];
    for (const v1::RankStatus& rank : status.ranks()) ranks_[rank.member().id()] = {a, &rank};
    if ((believed_[a] || LeftBy(status)) && status.epoch() > epoch()) {
      layout_ = &status.layout();
      hash_ = status.layout_hash();
    }
  }
  std::string older_hash;
  for (size_t a = 0; a < statuses_->size(); ++a) {
    if (!believed_[a]) continue;
    const v1::StatusResponse& status = *(*statuses_)[a];
    if (status.epoch() == epoch()) contradiction_ |= status.layout_hash() != hash_;
    if (status.epoch() + 1 != epoch()) continue;
    contradiction_ |= older_ != nullptr && status.layout_hash() != older_hash;
    older_ = &status.layout();
    older_hash = status.layout_hash();
  }
}

bool Truth::Believes(const v1::StatusResponse& status) const {
  if (!status.has_layout()) return false;
  const Membership& now = record_.value;
  uint64_t floor = now.epoch;
  bool fenced = false, ended = true;
  for (const v1::RankStatus& rank : status.ranks()) {
    if (!rank.in_world()) continue;
    ended &= Contains(now.ended, rank.member().id());
    fenced |= now.fence && Contains(now.fence->survivors, rank.member().id());
  }
  if (now.fence && now.epoch == now.fence->epoch) floor = now.fence->from_epoch;
  if (ended || status.epoch() < floor) return false;
  if (now.fence && !now.fence->survivors.empty() && status.epoch() <= now.fence->epoch + 1) {
    return fenced;
  }
  return true;
}

bool Truth::LeftBy(const v1::StatusResponse& status) const {
  bool left = false;
  for (const v1::RankStatus& rank : status.ranks()) {
    const std::string& id = rank.member().id();
    if (rank.in_world() || Contains(record_.value.ended, id) || Lost(record_.value.fence, id)) {
      return false;
    }
    const v1::TransitionStatus& t = rank.transition();
    left |= t.phase() == v1::PHASE_FLIPPED && t.target_epoch() == status.epoch() &&
            t.target_hash() == status.layout_hash();
  }
  return left && status.has_layout() && status.epoch() > record_.value.epoch;
}

uint64_t Truth::highest() const {
  uint64_t out = 0;
  for (const auto& status : *statuses_) {
    if (status) out = std::max(out, status->highest_attempt());
  }
  return out;
}

const Truth::Rank* Truth::RankOf(const std::string& member) const {
  const auto it = ranks_.find(member);
  return it == ranks_.end() ? nullptr : &it->second;
}

uint64_t Truth::EpochOf(const Rank& rank) const {
  return rank.status->in_world() ? (*statuses_)[rank.agent]->epoch() : 0;
}

Members Truth::MembersOf(const v1::Layout* layout) const {
  Members out;
  for (int i = 0; layout != nullptr && i < layout->members_size(); ++i) {
    out.push_back(layout->members(i).id());
  }
  return out;
}

bool Truth::Joins(size_t agent) const {
  if (layout_ == nullptr || !(*statuses_)[agent]) return true;
  for (const v1::RankStatus& rank : (*statuses_)[agent]->ranks()) {
    if (layout::RankOf(*layout_, rank.member().id()) >= 0) return false;
  }
  return true;
}

std::vector<size_t> Truth::AgentsOf(const std::vector<const v1::Layout*>& layouts) const {
  std::set<size_t> in;
  for (const v1::Layout* layout : layouts) {
    for (const std::string& id : MembersOf(layout)) {
      if (const Rank* rank = RankOf(id)) in.insert(rank->agent);
    }
  }
  std::vector<size_t> out(in.begin(), in.end());
  std::stable_partition(out.begin(), out.end(), [&](size_t agent) { return Joins(agent); });
  return out;
}

Inventories Truth::Held() const {
  Inventories out;
  for (const auto& [id, rank] : ranks_) out[id] = &rank.status->inventory();
  return out;
}

bool Truth::Trouble() const {
  if (layout_ == nullptr) return record_.value.epoch != 0;
  for (const std::string& id : MembersOf(layout_)) {
    const Rank* rank = RankOf(id);
    if (rank == nullptr || !rank->status->engine().attached() || rank->status->engine().stopped()) {
      return true;
    }
    if (EpochOf(*rank) != epoch() && rank->status->transition().target_epoch() != epoch()) {
      return true;
    }
  }
  return false;
}

// Its place has another member now, or all agents reply and none has it: the pods' supervisor knows
// all of them.
bool Truth::Gone(const std::string& member) const {
  const std::string place = member.substr(0, member.rfind('/'));
  bool unanswered = false;
  for (const auto& status : *statuses_) unanswered |= !status;
  for (const auto& [id, rank] : ranks_) {
    if (id.substr(0, id.rfind('/')) == place) return true;
  }
  return !unanswered;
}

Truth::Scene Truth::SceneNow() const {
  const Membership& now = record_.value;
  Scene scene{.epoch = epoch(),
              .newest = MembersOf(layout_),
              .older = MembersOf(older_),
              .members = {},
              .fence = nullptr};
  if (layout_ == nullptr) {
    scene.epoch = now.epoch;
    scene.newest = now.members;
  }
  const uint64_t from = scene.epoch - (older_ != nullptr ? 1 : 0);
  if (now.fence && now.fence->Of(from) && !now.fence->survivors.empty()) {
    scene.fence = &*now.fence;
    if (now.fence->forward && now.fence->epoch == scene.epoch + 1) {
      scene.epoch = now.fence->epoch;
      scene.older = scene.newest;
      scene.newest = Union(now.fence->survivors, now.fence->lost);
    }
  }
  for (const std::string& id : Union(scene.newest, scene.older)) {
    Evidence& e = scene.members[id];
    const Rank* rank = RankOf(id);
    if (rank == nullptr) {
      e.gone = Gone(id);
      continue;
    }
    const v1::StatusResponse& status = *(*statuses_)[rank->agent];
    const v1::TransitionStatus& t = rank->status->transition();
    e.answers = true;
    e.attached = rank->status->engine().attached();
    e.stopped = rank->status->engine().stopped();
    e.fresh = rank->status->engine().attached_after_flip();
    e.epoch = EpochOf(*rank);
    e.attempt = t.attempt();
    e.leads = t.target_epoch();
    e.phase = t.phase();
    for (const uint32_t r : rank->status->engine().unreachable()) {
      if (static_cast<int>(r) < status.layout().members_size()) {
        e.unreachable.insert(status.layout().members(static_cast<int>(r)).id());
      }
    }
  }
  return scene;
}

std::set<std::string> Truth::Apart() const {
  std::set<std::string> out;
  const Scene scene = SceneNow();
  for (const auto& [id, e] : scene.members) {
    for (const std::string& other : e.unreachable) out.insert(id + " " + other);
  }
  return out;
}

Ruling Truth::Rule() const {
  const Scene scene = SceneNow();
  Ruling r;
  const auto left_out = [&](const std::string& id) {
    return scene.fence != nullptr && !Contains(scene.fence->survivors, id);
  };
  const auto all = Union(scene.newest, scene.older);
  const auto hangs = [&](const std::string& id) {
    const Evidence& e = scene.members.at(id);
    if (!e.answers || e.stopped || !e.attached || e.epoch == 0) return false;
    bool told = false;
    for (const std::string& other : all) {
      const Evidence& says = scene.members.at(other);
      if (!says.answers || !says.attached || !says.stopped || says.fresh) continue;
      if (!says.unreachable.contains(id)) return false;
      told = true;
    }
    return told;
  };
  bool evident = false;
  for (const std::string& id : all) {
    const Evidence& e = scene.members.at(id);
    if (left_out(id)) continue;
    if (e.gone) {
      evident = true;
    } else if (!e.answers || hangs(id)) {
      r.unknown = true;
    } else if (e.epoch != 0 && !e.stopped) {
      r.running = true;
    } else if (Contains(scene.newest, id)) {
      evident = true;
    }
  }
  if (r.running || !evident) return r;
  const bool ruled_forward =
      scene.fence != nullptr && scene.fence->forward && scene.fence->epoch == scene.epoch;
  uint64_t left = 0, forward = 0;
  for (const std::string& id : scene.older) {
    const Evidence& e = scene.members.at(id);
    if (e.answers && e.epoch == 0 && e.phase == v1::PHASE_FLIPPED && e.leads == scene.epoch &&
        !Contains(scene.newest, id)) {
      left = e.attempt;
    }
  }
  for (const std::string& id : scene.newest) {
    const Evidence& e = scene.members.at(id);
    if (forward == 0 && e.epoch == scene.epoch && e.phase == v1::PHASE_FLIPPED) {
      forward = e.attempt;
    }
  }
  if (ruled_forward) forward = scene.fence->attempt;
  if (forward == 0) forward = left;
  const auto choose = [&](const Members& ids, const std::function<bool(const Evidence&)>& fits) {
    Members fit;
    for (const std::string& id : ids) {
      const Evidence& e = scene.members.at(id);
      if (!e.gone && e.answers && e.attached && !hangs(id) && !left_out(id) && fits(e)) {
        fit.push_back(id);
      }
    }
    const Members whole = LargestWhole(fit, [&](const std::string& a, const std::string& b) {
      const Evidence &ea = scene.members.at(a), &eb = scene.members.at(b);
      if (ea.fresh || eb.fresh) return false;
      return ea.unreachable.contains(b) || eb.unreachable.contains(a);
    });
    r.survivors.clear();
    r.lost.clear();
    const bool alone = whole.size() == 1 && ids.size() >= 3;
    for (const std::string& id : ids) {
      (Contains(whole, id) && !alone ? r.survivors : r.lost).push_back(id);
    }
  };
  r.made = true;
  r.from_epoch = r.stand_on = scene.epoch;
  choose(scene.newest, [&](const Evidence& e) {
    if (e.epoch == scene.epoch) return true;
    const bool staged = e.phase == v1::PHASE_STAGED || e.phase == v1::PHASE_PERMITTED;
    return forward != 0 && e.attempt == forward && staged;
  });
  const bool some_behind = std::any_of(r.survivors.begin(), r.survivors.end(), [&](const auto& id) {
    return scene.members.at(id).epoch != scene.epoch;
  });
  if (scene.older.empty() && !some_behind) return r;
  r.from_epoch = scene.epoch - 1;
  for (const std::string& id : r.survivors) {
    if (scene.members.at(id).epoch == scene.epoch || ruled_forward || left != 0) {
      r.forward = true;
      return r;
    }
  }
  if (ruled_forward || left != 0) return r;  // and no survivor can
  r.stand_on = scene.epoch - 1;
  choose(scene.older, [&](const Evidence& e) { return e.epoch == scene.epoch - 1; });
  return r;
}

std::optional<Leftover> Truth::Left() const {
  std::optional<Leftover> out;
  for (size_t a = 0; a < statuses_->size(); ++a) {
    if (!(*statuses_)[a]) continue;
    for (const v1::RankStatus& rank : (*statuses_)[a]->ranks()) {
      const v1::TransitionStatus& t = rank.transition();
      if (t.phase() <= v1::PHASE_IDLE) continue;
      if (!out || t.attempt() > out->attempt)
        out = {t.attempt(), t.target_epoch(), t.target_hash(), false, {}};
      if (t.attempt() != out->attempt) continue;
      out->any_flipped |= t.phase() == v1::PHASE_FLIPPED;
      if (out->agents.empty() || out->agents.back() != a) out->agents.push_back(a);
    }
  }
  for (size_t a = 0; out && a < statuses_->size(); ++a) {
    if (!(*statuses_)[a]) continue;
    for (const v1::RankStatus& rank : (*statuses_)[a]->ranks()) {
      const v1::TransitionStatus& t = rank.transition();
      out->any_flipped |= t.attempt() == out->attempt && t.phase() == v1::PHASE_IDLE &&
                          (*statuses_)[a]->epoch() >= out->target_epoch;
    }
  }
  return out;
}

uint64_t Truth::AttemptOf(const Ruling& ruling) const {
  uint64_t out = 0, flipped = 0;
  for (const std::string& id : Union(MembersOf(layout_), MembersOf(older_))) {
    const Rank* rank = RankOf(id);
    if (rank == nullptr) continue;
    const v1::TransitionStatus& t = rank->status->transition();
    if (t.target_epoch() == ruling.from_epoch + 1 && t.phase() == v1::PHASE_FLIPPED) {
      flipped = std::max(flipped, t.attempt());
    }
    if (Unfinished(*rank->status)) out = std::max(out, t.attempt());
  }
  if (flipped != 0) return flipped;
  const auto& fence = record_.value.fence;
  if (fence && fence->Of(ruling.from_epoch) && fence->forward && ruling.stand_on == fence->epoch) {
    return fence->attempt;
  }
  return out;
}

bool Truth::Open(const Ruling& ruling) const {
  return std::any_of(ruling.survivors.begin(), ruling.survivors.end(), [&](const auto& id) {
    const Rank* rank = RankOf(id);
    if (HalfFlipped(*rank)) return true;
    return Unfinished(*rank->status) && !rank->status->transition().held();
  });
}

bool Truth::HalfFlipped(const Rank& rank) const {
  const uint64_t attempt = rank.status->transition().attempt();
  bool flipped = false, unfinished = false;
  for (const v1::RankStatus& other : (*statuses_)[rank.agent]->ranks()) {
    if (other.transition().attempt() != attempt) continue;
    flipped |= other.transition().phase() == v1::PHASE_FLIPPED;
    unfinished |= Unfinished(other);
  }
  return flipped && unfinished;
}

std::string Truth::HashOf(const Ruling& ruling) const {
  for (const v1::Layout* layout : {layout_, older_}) {
    if (layout != nullptr && layout->epoch() == ruling.stand_on) return layout::HashOf(*layout);
  }
  const auto& fence = record_.value.fence;
  return fence && fence->epoch == ruling.stand_on ? fence->hash : "";
}

Members Truth::MustGo(size_t agent) const {
  Members out;
  for (const v1::RankStatus& rank : (*statuses_)[agent]->ranks()) {
    const std::string& id = rank.member().id();
    if (Contains(record_.value.ended, id)) {
      out.push_back(id);
      continue;
    }
    if (layout_ != nullptr && layout::RankOf(*layout_, id) >= 0) continue;
    // The world has passed its attempt's target without it.
    const bool late =
        !rank.in_world() && Unfinished(rank) && rank.transition().target_epoch() < epoch();
    // Removed by an earlier fence and not released yet: its agent continued without it.
    const bool behind = !rank.in_world() && rank.engine().stopped();
    if (Lost(record_.value.fence, id) || late || behind ||
        (rank.in_world() && (!believed_[agent] || rank.engine().stopped() || !Unfinished(rank)))) {
      out.push_back(id);
    }
  }
  return out;
}

}  // namespace tangram::simulation
