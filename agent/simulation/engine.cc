#include "agent/simulation/engine.h"

#include <algorithm>
#include <utility>

#include "agent/layout/layout.h"
#include "agent/simulation/agent.h"
#include "agent/simulation/plan.h"
#include "agent/simulation/world.h"

namespace tangram::simulation {
namespace {

constexpr Nanos kTurn = 60 * kMillisecond;
constexpr Nanos kPatience = 1'000 * kMillisecond;  // for an unresponsive peer in an exchange
constexpr Nanos kLong = 5'000 * kMillisecond;      // for a peer that does not step
constexpr Nanos kAnswers = 1'000 * kMillisecond;
constexpr Nanos kForAnswers = 30 * kSecond;  // the library's timeout for its agent's reply

v1::Header HeaderFor(uint64_t epoch, uint64_t attempt) {
  v1::Header header;
  header.set_world(kWorld);
  header.set_epoch(epoch);
  header.set_attempt(attempt);
  return header;
}

}  // namespace

Engine::Engine(World* world, Agent* agent, uint32_t device)
    : world_(world), agent_(agent), device_(device) {}

void Engine::Start() {
  process_ = world_->NextProcess();
  gate_ = EngineGate(agent_->page(device_));
  world_->time().Spawn(process_, "engine", [this] {
    Live();
    Die();
  });
}

void Engine::Kill() {
  if (process_ == 0) return;
  world_->time().Kill(process_);
  Die();
}

void Engine::Die() {
  const bool was = std::exchange(attached_, false);
  process_ = 0;
  dismissed_ = stopped_ = pending_ = false;
  hung_until_ = 0;
  left_ = 0;
  layout_.reset();
  hash_.clear();
  preparation_.reset();
  asked_.clear();
  heard_.clear();
  apart_.clear();
  if (was) agent_->EngineGone(device_);
  // The pod's supervisor restarts it, sometimes before its agent has handled the death.
  world_->time().Spawn(kNature, "restart", [this] {
    const bool at_once = world_->dice().OneIn(3);
    world_->time().Sleep(at_once ? world_->dice().Between(0, 3 * kMillisecond)
                                 : world_->dice().Between(50 * kMillisecond, 900 * kMillisecond));
    if (agent_->alive && process_ == 0) Start();
  });
}

bool Engine::hangs() const { return world_->time().now() < hung_until_; }

bool Engine::Ask(const std::function<Status(Engine&)>& what, Status* answer) {
  auto said = std::make_shared<std::optional<Status>>();
  const uint64_t incarnation = incarnation_;
  Tell([what, said](Engine& engine) { *said = what(engine); });
  const Nanos until = world_->time().now() + kAnswers;
  while (!*said && attached_ && incarnation == incarnation_ && world_->time().now() < until) {
    (void)world_->time().Wait(&asked_, std::min(until, world_->time().now() + 50 * kMillisecond));
  }
  if (!*said) return false;
  *answer = **said;
  return true;
}

void Engine::Tell(std::function<void(Engine&)> what) { asked_.push_back(std::move(what)); }

Status Engine::Prepared(const v1::EnginePrepare& prepare) {
  Follow();  // handle earlier flips first
  if (world_->Fails(40)) return {Code::kEngine, "it says no"};
  Preparation next;
  next.attempt = prepare.header().attempt();
  next.from_epoch = prepare.header().epoch();
  next.kind = prepare.kind();
  auto target = layout::Parse(prepare.target());
  if (!target.ok()) return target.status();
  next.target = std::move(*target);
  next.hash = prepare.target_hash();
  preparation_ = std::move(next);
  return OkStatus();
}

void Engine::Aborted(uint64_t attempt) {
  if (preparation_ && preparation_->attempt == attempt) {
    preparation_.reset();
    pending_ = false;
  }
}

void Engine::Breathe(Nanos pause) {
  if (pause > 0) world_->time().Sleep(pause);
  while (hangs()) world_->time().Sleep(hung_until_ - world_->time().now());
}

void Engine::Serve() {
  while (!asked_.empty()) {
    auto what = std::move(asked_.front());
    asked_.pop_front();
    what(*this);
    world_->time().Wake(&asked_);
  }
}

void Engine::Attach() {
  while (true) {
    Breathe(world_->dice().Between(1 * kMillisecond, 60 * kMillisecond));
    auto attachment = world_->Call<Result<Attachment>>(
        agent_->number, agent_, "attach", kForAnswers,
        [this, process = process_](Executor& executor) {
          auto attached = executor.Attach(device_);
          if (attached.ok() && process_ == process) {  // the agent relies on it from now on
            attached_ = true;
            ++incarnation_;
            asked_.clear();
            member_ = attached->message.member().id();
            // Without a layout, its rank was removed by a repair and will be released.
            if (!attached->message.has_layout()) left_ = agent_->page(device_)->epoch.load();
          }
          return attached;
        },
        Status{Code::kUnavailable, "away"});
    if (!attachment.ok()) continue;
    const v1::Attached& message = attachment->message;
    if (message.has_layout()) {
      Enter(std::make_shared<v1::Layout>(message.layout()), layout::HashOf(message.layout()));
    }
    return;
  }
}

void Engine::Live() {
  Attach();
  while (!dismissed_) {
    agent_->page(device_)->turns.fetch_add(1);
    Serve();
    if (dismissed_) return;
    Follow();
    if (layout_ == nullptr) {
      Join();
    } else if (stopped_ || gate_.stopped()) {
      StandStill();
    } else {
      Step();
    }
    Breathe(world_->dice().Between(kTurn / 4, kTurn));
  }
}

void Engine::Enter(LayoutPtr layout, std::string hash) {
  const bool in = layout != nullptr && layout::RankOf(*layout, member_) >= 0;
  left_ = layout != nullptr && !in ? layout->epoch() : 0;
  layout_ = in ? std::move(layout) : nullptr;
  hash_ = in ? std::move(hash) : "";
  step_ = 0;
  stopped_ = in && gate_.stopped();
  pending_ = false;
  preparation_.reset();
  apart_.clear();
  std::erase_if(heard_, [&](const auto& entry) { return std::get<0>(entry.first) != hash_; });
}

// Flips that its agent made without its go: a first layout, a repair, or forward after a fence.
void Engine::Follow() {
  const uint64_t now = agent_->page(device_)->epoch.load();
  if (now == epoch() || (now != 0 && now == left_)) return;
  if (now == 0) {
    dismissed_ = true;  // the rank was released; the agent will report it
    return;
  }
  if (!preparation_ || preparation_->target->epoch() != now) {
    world_->checker.Wrong("FOLLOWS", member_ + " is to follow to epoch " + std::to_string(now) +
                                         ", which it never prepared");
    dismissed_ = true;
    return;
  }
  if (!preparation_->by_agents() && layout_ != nullptr && !pending_) {
    world_->checker.Wrong("FOLLOWS", member_ + " has no KV for epoch " + std::to_string(now) +
                                         ", its agent "
                                         "flipped");
  }
  Enter(preparation_->target, preparation_->hash);
}

// A joiner has no vote: it follows members that flipped.
void Engine::Join() {
  if (!preparation_ || preparation_->kind != v1::FLIP_KIND_JOIN) return;
  bool flipped = false;
  for (const v1::Member& member : preparation_->target->members()) {
    const Engine* other = world_->EngineOfMember(member.id());
    flipped |= other != nullptr && !Lost(other, world_->time().now()) &&
               other->hash_ == preparation_->hash;
  }
  if (!flipped) return;
  const GateVote word =
      gate_.Word(preparation_->attempt, preparation_->target->epoch(), preparation_->hash);
  if (word.hash == 0) return;  // not permitted yet
  const uint64_t attempt = preparation_->attempt;
  if (Commit()) {
    Enter(preparation_->target, preparation_->hash);
  } else if (preparation_ && preparation_->attempt == attempt && epoch() == 0) {
    gate_.Decline("it is not to join any more");
  }
}

bool Engine::Commit() {
  v1::EngineFlip flip;
  *flip.mutable_header() = HeaderFor(preparation_->from_epoch, preparation_->attempt);
  flip.set_target_hash(preparation_->hash);
  const Preparation kept = *preparation_;
  const Status done = world_->Call<Status>(
      agent_->number, agent_, "flip", kForAnswers,
      [device = device_, flip](Executor& executor) { return executor.Flip(device, flip); },
      Status{Code::kUnavailable, "away"});
  if (!preparation_) preparation_ = kept;  // an abort may have arrived meanwhile
  return done.ok();
}

bool Engine::Lost(const Engine* other, Nanos since) const {
  if (other == nullptr || !other->lives() || !other->attached_) return true;
  if (other->hash_ == hash_ && other->stopped_) return true;  // it disconnected
  const bool silent = other->hangs() || world_->Cut(agent_->number, other->agent_->number);
  return world_->time().now() - since > (silent ? kPatience : kLong);
}

bool Engine::Trade(Exchange exchange, const Said& mine, std::map<std::string, Said>* all) {
  const Key key{hash_, step_, exchange};
  heard_[key][member_] = mine;
  for (const v1::Member& member : layout_->members()) {
    if (member.id() == member_) continue;
    world_->time().Spawn(process_, "engine", [this, key, mine, to = member.id(), me = member_] {
      world_->time().Sleep(world_->dice().Between(0, 4 * kMillisecond));
      Engine* other = world_->EngineOfMember(to);
      while (other != nullptr && hash_ == std::get<0>(key) && !stopped_ &&
             world_->Cut(agent_->number, other->agent_->number)) {
        world_->time().Sleep(50 * kMillisecond);  // the message arrives when the cut heals
        other = world_->EngineOfMember(to);
      }
      if (other != nullptr) other->heard_[key][me] = mine;
    });
  }
  const Nanos began = world_->time().now();
  const auto members = static_cast<size_t>(layout_->members_size());
  while (heard_[key].size() < members) {
    for (const v1::Member& member : layout_->members()) {
      if (heard_[key].contains(member.id())) continue;
      if (Lost(world_->EngineOfMember(member.id()), began)) {
        // Messages that arrived before the connection broke are still read.
        Breathe(world_->dice().Between(0, 5 * kMillisecond));
        if (heard_[key].contains(member.id())) continue;
        const Engine* other = world_->EngineOfMember(member.id());
        if (other != nullptr && other->attached_ && !other->stopped_)
          world_->checker.shown.Disturbed(world_->time().now());
        return false;
      }
    }
    (void)world_->time().Wait(&heard_, world_->time().now() + 30 * kMillisecond);
    Breathe(0);
    if (world_->Fails(4'000)) {  // a connection breaks without a cause
      world_->checker.shown.Disturbed(world_->time().now());
      return false;
    }
  }
  *all = std::move(heard_[key]);
  heard_.erase(key);
  return true;
}

void Engine::Step() {
  ++step_;
  world_->checker.Contributes(*this, step_);
  const bool asks = preparation_ && !preparation_->by_agents();
  Said mine;
  mine.word =
      asks ? gate_.Word(preparation_->attempt, preparation_->target->epoch(), preparation_->hash)
           : gate_.Word(0, 0, "");
  world_->checker.Told(*this, "word", {mine.word.hash != 0});
  std::map<std::string, Said> all;
  if (!Trade(kWords, mine, &all)) return GiveUp(false, "words");
  std::vector<GateVote> words;
  for (const auto& [member, said] : all) words.push_back(said.word);
  const bool go = gate_.Decide(words, static_cast<size_t>(layout_->members_size()));
  world_->checker.Told(*this, go ? "go" : "stay", {});
  if (go) return Flip();
  Emit();
}

void Engine::Flip() {
  const Preparation target = *preparation_;
  Breathe(world_->dice().Between(0, 20 * kMillisecond));
  Said mine;
  mine.pulled = !world_->Fails(12);
  pending_ = mine.pulled;
  std::map<std::string, Said> all;
  if (!Trade(kPulled, mine, &all)) return GiveUp(pending_, "pulled");
  if (std::any_of(all.begin(), all.end(), [](const auto& e) { return !e.second.pulled; })) {
    pending_ = false;
    gate_.Decline("KV was not carried");
    world_->checker.Told(*this, "decline", {});
    return Emit();
  }
  Breathe(world_->dice().Between(0, 10 * kMillisecond));
  preparation_ = target;
  if (Commit()) return Enter(target.target, target.hash);
  if (gate_.stopped() || stopped_) return GiveUp(true, "fenced");
  dismissed_ = true;  // it cannot continue without its agent's reply
  world_->checker.Failed({agent_->pod});
}

void Engine::Emit() {
  Breathe(world_->dice().Between(0, 5 * kMillisecond));
  if (gate_.stopped()) return GiveUp(false, "stopped");
  agent_->page(device_)->steps.fetch_add(1);
  ++steps_;
  world_->checker.Emits(*this, step_);
}

void Engine::GiveUp(bool pulled, const char*) {
  std::vector<uint32_t> all;
  for (uint32_t r = 0; r < static_cast<uint32_t>(layout_->members_size()); ++r) {
    if (layout_->members(static_cast<int>(r)).id() != member_) all.push_back(r);
  }
  gate_.SetUnreachable(all);
  for (const uint32_t r : all) apart_[r] = world_->time().now();
  stopped_ = true;
  gate_.Stop(pulled);
  world_->checker.Told(*this, "stop", {pulled});
}

void Engine::StandStill() {
  if (!stopped_) return GiveUp(false, "its agent said so");
  std::vector<uint32_t> unreachable;
  for (uint32_t r = 0; r < static_cast<uint32_t>(layout_->members_size()); ++r) {
    const std::string& id = layout_->members(static_cast<int>(r)).id();
    if (id == member_) continue;
    const Engine* other = world_->EngineOfMember(id);
    const bool connected = other != nullptr && other->attached_ && !other->hangs() &&
                           !world_->Cut(agent_->number, other->agent_->number) &&
                           (other->hash_ != hash_ || other->stopped_);
    const bool was = !apart_.contains(r);
    if (connected && !was && world_->dice().OneIn(2)) apart_.erase(r);
    if (!connected && was && world_->dice().OneIn(3)) apart_[r] = world_->time().now();
    if (apart_.contains(r)) unreachable.push_back(r);
  }
  gate_.SetUnreachable(unreachable);
}

}  // namespace tangram::simulation
