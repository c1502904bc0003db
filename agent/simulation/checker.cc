#include "agent/simulation/checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "agent/layout/layout.h"
#include "agent/simulation/agent.h"
#include "agent/simulation/engine.h"
#include "agent/simulation/plan.h"
#include "agent/simulation/truth.h"
#include "agent/simulation/world.h"

namespace tangram::simulation {
namespace {

const char* NameOf(GateState state) {
  static constexpr const char* kNames[] = {"idle", "armed", "latched", "flipped"};
  return kNames[static_cast<uint64_t>(state)];
}

}  // namespace

void Checker::Wrong(const std::string& claim, const std::string& why) {
  wrong.push_back(claim + ": " + why);
  Trace("WRONG " + wrong.back());
}

void Checker::Trace(const std::string& line) {
  if (!tracing) return;
  trace.push_back(
      fmt::format("{:.3f} {}", static_cast<double>(world_->time().now()) / kSecond, line));
}

void Checker::Proposed(uint64_t attempt, attempt::Kind kind, uint64_t epoch,
                       const std::string& hash, const Members& before, const Members& after) {
  if (attempts_.contains(attempt))
    Wrong("BURNED", fmt::format("attempt {} a second time", attempt));
  attempts_[attempt] = {kind, epoch, hash, before, after, false, false, fences_.size(), releases_};
  generations_[hash] = fences_.size();
  shown.Proposed(kind, epoch, before, after);
  ++reached[std::string("proposed ") + attempt::NameOf(kind)];
  Trace(fmt::format("propose attempt {} {} to epoch {}: {} -> {}", attempt, attempt::NameOf(kind),
                    epoch, fmt::join(before, " "), fmt::join(after, " ")));
}

void Checker::Follows(uint64_t first, size_t place, const std::string& hash) {
  Attempt next = attempts_.at(first);
  next.epoch += place;
  next.hash = hash;
  next.before = next.after;
  next.follows = true;
  attempts_[first + place] = next;
  generations_[hash] = fences_.size();
  ++reached["proposed in a run"];
}

// Flips that the agent has not done by then never happen anywhere: its vote is missing.
void Checker::RunEnded(uint64_t first, uint64_t last, const Agent& agent) {
  uint64_t epoch = 0;  // of its most advanced rank
  for (uint32_t device = 0; device < agent.memories.size(); ++device) {
    epoch = std::max(epoch, agent.page(device)->epoch.load());
  }
  for (auto it = attempts_.lower_bound(first); it != attempts_.end() && it->first <= last; ++it) {
    Attempt& known = it->second;
    if (known.fences != fences_.size() || known.releases != releases_) continue;
    // A pod of several ranks may have flipped only some of them.
    if (known.epoch > epoch + (agent.memories.size() > 1 ? 1 : 0)) known.back = true;
  }
}

void Checker::Fenced(const Membership& was, const Membership& now) {
  const Fence& fence = *now.fence;
  shown.Fenced(fence.survivors);
  Trace(fmt::format("fence from epoch {} attempt {} {}: epoch {}, survivors {}, lost {}",
                    fence.from_epoch, fence.attempt, fence.forward ? "forward" : "stay",
                    fence.epoch, fmt::join(fence.survivors, " "), fmt::join(fence.lost, " ")));
  ++reached[fence.forward ? "fence forward" : "fence stay"];
  if (was.fence && was.fence->Of(fence.from_epoch) && !was.fence->survivors.empty()) {
    for (const std::string& id : fence.survivors) {
      if (!Contains(was.fence->survivors, id)) Wrong("FEWER", id + " survives a later fence alone");
    }
  }
  for (const std::string& id : fence.survivors) {
    const Engine* engine = world_->EngineOfMember(id);
    if (engine == nullptr) continue;
    const uint64_t epoch = engine->agent().page(engine->device())->epoch.load();
    if (epoch > fence.epoch) {
      Wrong("KEPT",
            fmt::format("{} is at epoch {}, the fence stands on {}", id, epoch, fence.epoch));
    }
  }
  // A fence may remove a member without a failure (lost messages, a memory error). That counts as a
  // failure, too.
  for (const std::string& id : fence.lost) {
    const std::string pod = id.substr(0, id.find('/'));
    if (std::none_of(failures_.begin(), failures_.end(),
                     [&](const auto& pods) { return pods.contains(pod); })) {
      Failed({pod});
    }
  }
  fences_.push_back(fence);
}

void Checker::WorldEnded() {
  ++reached["world ended"];
  shown.End();
  Trace("the world is over");
  if (failures_.size() <= 1 && !attempts_.empty()) {
    const Members& last = attempts_.rbegin()->second.before;
    std::map<std::string, size_t> ranks;  // by pod; all ranks of a single pod may die together
    for (const std::string& id : last) ++ranks[id.substr(0, id.find('/'))];
    bool may = ranks.size() <= 1;
    // A world of three or more ranks may end if its failures leave only one.
    for (const auto& pods : failures_) {
      for (const std::string& pod : pods) {
        may |= ranks.contains(pod) && last.size() >= 3 && last.size() - ranks[pod] == 1;
      }
    }
    if (!may) Wrong("GOES_ON", "one failure ended the world");
  }
  fences_.push_back({});
}

void Checker::AbortAnswered(uint64_t attempt, bool flipped) {
  Attempt& known = attempts_[attempt];
  ++reached[flipped ? "abort: flipped" : "abort: not"];
  // After a fence or a release, removed members may have another outcome.
  if (known.fences != fences_.size() || known.releases != releases_) return;
  (flipped ? known.went : known.back) = true;
  if (known.went && known.back) {
    Wrong("ONE_ANSWER", fmt::format("attempt {}: aborts are answered both ways", attempt));
  }
}

size_t Checker::GenerationOf(const std::string& hash) const {
  const auto it = generations_.find(hash);
  return it == generations_.end() ? 0 : it->second;
}

void Checker::LookAtEngine(const Engine& engine) {
  const std::string rank = engine.agent().memories[engine.device()]->store().member();
  if (engine.attached() && engine.member() != rank) {
    Wrong("TOLD", fmt::format("the engine of {} was told that it is {}", rank, engine.member()));
  }
}

void Checker::Contributes(const Engine& engine, uint64_t step) {
  LookAtEngine(engine);
  Stepping& stepping = steps_[{engine.hash(), step}];
  stepping.said.insert(engine.member());
  const auto attempt = std::find_if(attempts_.begin(), attempts_.end(), [&](const auto& entry) {
    return entry.second.hash == engine.hash();
  });
  if (attempt == attempts_.end()) return Wrong("SAME_EPOCH", "a step in a layout of no attempt");
  stepping.members = attempt->second.after;
  if (stepping.said.size() < stepping.members.size()) return;
  // Now the step is complete and its result visible. A removed member may still act on messages
  // that it had received; no other rank sees that.
  for (const Fence& fence : fences_) {
    if (Contains(fence.lost, engine.member())) return;
  }
  for (const std::string& id : stepping.members) {
    const Engine* other = world_->EngineOfMember(id);
    if (other != nullptr && other->epoch() != 0 && other->hash() != engine.hash()) {
      Wrong("SAME_EPOCH", fmt::format("{} steps in epoch {}, {} in epoch {}", engine.member(),
                                      engine.epoch(), id, other->epoch()));
    }
  }
  const size_t generation = GenerationOf(engine.hash());
  if (generation < top_) Wrong("ONE_WORLD", "a step of a world after one of a newer");
  top_ = std::max(top_, generation);
}

void Checker::Emits(const Engine& engine, uint64_t step) {
  const auto it = steps_.find({engine.hash(), step});
  if (it == steps_.end() || it->second.said.size() < it->second.members.size()) {
    Wrong("COMPLETE", fmt::format("{} emits step {} of epoch {}, which some member never gave its "
                                  "part to",
                                  engine.member(), step, engine.epoch()));
  }
  ++reached["steps"];
}

void Checker::Told(const Engine& engine, const char* what, std::initializer_list<bool> how) {
  ++reached[what];
  shown.Look();  // the last vote may cause the result in the same turn
  if (!tracing) return;
  std::string line = fmt::format("{} {} epoch {}", what, engine.member(), engine.epoch());
  for (const bool flag : how) line += flag ? " 1" : " 0";
  Trace(line);
}

void Checker::Look() {
  if (const Record<Membership>& record = world_->records.membership; record.version != version_) {
    const Membership was = std::exchange(known_, record.value);
    version_ = record.version;
    Trace(fmt::format("record: epoch {}, members {}, repair {}, worlds over {}", known_.epoch,
                      fmt::join(known_.members, " "), known_.repair, known_.worlds));
    const bool fenced =
        known_.fence && (!was.fence || was.fence->hash != known_.fence->hash ||
                         was.fence->survivors != known_.fence->survivors ||
                         was.fence->attempt != known_.fence->attempt || was.repair != 0);
    if (known_.worlds > was.worlds) {
      WorldEnded();
    } else if (fenced && known_.repair == 0 && known_.epoch == known_.fence->epoch) {
      Fenced(was, known_);
    }
  }
  for (const auto& agent : world_->agents) {
    if (!agent->alive) continue;
    for (uint32_t device = 0; device < agent->memories.size(); ++device) {
      const GatePage& page = *agent->page(device);
      const uint64_t word = page.state.load();
      const Gate now{GateStateOf(word), GateAttemptOf(word), page.stopped.load() != 0};
      Gate& was = gates_[{agent->number, device}];
      if (was.state == now.state && was.attempt == now.attempt && was.stopped == now.stopped) {
        continue;
      }
      const Gate before = was;
      was = now;
      Changed(*agent, device, before, now);
    }
  }
  shown.Look();
}

void Checker::Changed(Agent& agent, uint32_t device, const Gate& was, const Gate& now) {
  const std::string& tag = world_->time().tag();
  if (tracing) {
    Trace(fmt::format("gate {}/{} attempt {}: {} -> {}{} ({})", agent.pod, device, now.attempt,
                      NameOf(was.state), NameOf(now.state), now.stopped ? ", stopped" : "", tag));
  }
  if (was.state == now.state && was.attempt == now.attempt) return;
  if (Attempt& of = attempts_[now.attempt]; now.state == GateState::kArmed && of.follows) {
    of.follows = false;
    shown.Proposed(of.kind, of.epoch, of.before, of.after);
  }
  ++reached[fmt::format("gate {} to {} by {}", NameOf(was.state), NameOf(now.state), tag)];
  if (now.state != GateState::kFlipped) return;
  const Attempt& attempt = attempts_[now.attempt];
  Flipped(agent, device, now.attempt,
          tag == "resolve" || tag == "hold" ? How::kFence
          : attempt.by_agents()             ? How::kWords
                                            : How::kEngine);
}

// Whether the member is dead, or has all that the attempt needs and has not aborted.
bool Checker::CanFollow(const std::string& member, uint64_t attempt, bool has_word) const {
  Agent* agent = world_->AgentOfMember(member);
  const Engine* engine = world_->EngineOfMember(member);
  if (agent == nullptr || engine == nullptr || !engine->attached()) return true;  // it is dead
  v1::QueryRequest query;
  query.mutable_header()->set_world(kWorld);
  query.mutable_header()->set_attempt(attempt);
  const auto seen = agent->executor->Query(query);
  if (!seen.ok()) return false;
  if (seen->flipped()) return true;
  if (seen->phase() != v1::PHASE_STAGED && seen->phase() != v1::PHASE_PERMITTED) return false;
  return !has_word || seen->voted();
}

void Checker::Flipped(Agent& agent, uint32_t device, uint64_t id, How how) {
  const Attempt& attempt = attempts_[id];
  const std::string member = agent.memories[device]->store().member();
  ++reached[how == How::kFence ? "flip forward" : how == How::kWords ? "flip by words" : "flip"];
  if (attempt.back) {
    Wrong("NOT_BACK",
          fmt::format("{} flips attempt {}, of which an abort was told 'not'", member, id));
  }
  bool ruled = false;
  for (size_t f = attempt.fences; f < fences_.size(); ++f) {
    ruled |= Contains(fences_[f].survivors, member);
  }
  if (ruled && how != How::kFence) {
    Wrong("RULED", fmt::format("{} flips attempt {} by itself after a fence", member, id));
  }
  if (attempt.fences == fences_.size() && how != How::kFence) {
    const bool words = how == How::kEngine;
    for (const Members* members : {&attempt.before, &attempt.after}) {
      const bool has_word = words && members == &attempt.before;
      for (const std::string& other : *members) {
        // A repair does not bind members that the fence removed.
        if (!words && !Contains(attempt.after, other)) continue;
        if (CanFollow(other, id, has_word)) continue;
        Wrong(words ? "FOLLOWS" : "MENDS",
              fmt::format("{} flips attempt {}, {} cannot follow", member, id, other));
      }
    }
  }
  LookAtMemory(agent, device, attempt);
}

// A flipped rank holds all its pieces of the target.
void Checker::LookAtMemory(Agent& agent, uint32_t device, const Attempt& attempt) {
  store::RankStore& store = agent.memories[device]->store();
  const std::string member = store.member();
  if (!Contains(attempt.after, member)) return;
  if (const Status audit = store.Audit(); !audit.ok()) Wrong("MEMORY", audit.message());
  const v1::StatusResponse status =
      agent.executor->GetStatus(&v1::StatusRequest::default_instance());
  if (!status.has_layout() || status.layout_hash() != attempt.hash) return;  // a pod of several
  std::set<std::tuple<uint32_t, uint32_t, uint32_t>> held;
  const v1::Inventory inventory = store.Held();
  for (int i = 0; i < inventory.layer_size(); ++i) {
    held.insert({inventory.layer(i), inventory.bank(i), inventory.slot(i)});
  }
  const auto rank = static_cast<uint32_t>(layout::RankOf(status.layout(), member));
  for (const layout::PlacedPiece& piece :
       layout::PiecesOf(status.layout(), Model::Get().checkpoint->geometry(), rank)) {
    if (held.contains({piece.layer, piece.bank, piece.slot})) continue;
    Wrong("COMPLETE", fmt::format("{} flips attempt without layer {}, expert {}", member,
                                  piece.layer, piece.expert));
  }
  if (!inventory.dense()) Wrong("COMPLETE", member + " flips without its dense weights");
}

void Checker::LookAtRest() {
  for (const auto& agent : world_->agents) {
    if (!agent->alive) continue;
    if (agent->grants.open() != 0) Wrong("LEASES", agent->pod + " keeps tokens that open memory");
    const v1::StatusResponse status =
        agent->executor->GetStatus(&v1::StatusRequest::default_instance());
    for (uint32_t device = 0; device < agent->memories.size(); ++device) {
      store::RankStore& store = agent->memories[device]->store();
      const std::string member = store.member();
      if (const Status audit = store.Audit(); !audit.ok()) Wrong("MEMORY", audit.message());
      const MemoryFigures figures = store.Memory();
      if (figures.free + figures.mapped != figures.total) {
        Wrong("MEMORY", fmt::format("{}: {} free and {} mapped of {}", member, figures.free,
                                    figures.mapped, figures.total));
      }
      LookAtEngine(*agent->engines[device]);
      const bool in = status.has_layout() && layout::RankOf(status.layout(), member) >= 0;
      const layout::GeometryView& geometry = Model::Get().checkpoint->geometry();
      uint64_t want = 0;
      if (in) {
        const auto rank = static_cast<uint32_t>(layout::RankOf(status.layout(), member));
        want = layout::PagesTouched(layout::PiecesOf(status.layout(), geometry, rank), geometry) *
                   geometry.page_bytes() +
               layout::RoundUp(geometry.proto().dense_bytes(), geometry.page_bytes());
      }
      // A released rank next to another one of its pod retains its verified pieces as a source.
      const bool kept = !in && agent->memories.size() > 1;
      if (figures.mapped != want && !kept) {
        Wrong("MEMORY", fmt::format("{} rests on {} bytes, its layout takes {}", member,
                                    figures.mapped, want));
      }
      if (GateStateOf(agent->page(device)->state.load()) != GateState::kIdle) {
        Wrong("NEVER_STUCK", member + ": its gate is not idle at rest");
      }
    }
  }
}

}  // namespace tangram::simulation
