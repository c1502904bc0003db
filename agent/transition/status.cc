#include "agent/transition/status.h"

#include <fmt/format.h>

#include <cstring>
#include <string>

#include "agent/base/utf8.h"

namespace tangram {
namespace {

constexpr int kMostLooks = 16;

// From here to Fill, under the core's lock.
void FillEngine(const Core& core, const Core::Rank& rank, bool in_world, const EngineInfo& engine,
                bool turns, v1::EngineStatus* out) {
  const GatePage& page = *rank.gate.page();
  out->set_attached(engine.attached);
  if (engine.attached) {
    out->set_incarnation(engine.incarnation);
    out->set_endpoint(engine.endpoint);
    out->set_frontend(engine.frontend);
    out->set_even_shards_only(engine.capabilities.even_shards_only());
    out->set_attention_data_only(engine.capabilities.attention_data_only());
    out->set_kv_block_tokens(engine.kv_block_tokens);
    *out->mutable_settings() = engine.capabilities.settings();
    out->set_kv_pages(page.kv_pages.load(std::memory_order_relaxed));
    out->set_kv_free_pages(page.kv_free_pages.load(std::memory_order_relaxed));
    out->set_kv_reserved_tokens(page.kv_reserved_tokens.load(std::memory_order_relaxed));
    out->set_running(page.running.load(std::memory_order_relaxed));
    out->set_waiting(page.waiting.load(std::memory_order_relaxed));
  }
  out->set_steps(page.steps.load(std::memory_order_acquire));
  out->set_stopped(rank.gate.stopped());
  if (turns) out->set_polls(page.turns.load(std::memory_order_relaxed));
  out->set_attached_after_flip(rank.fresh);
  if (!out->stopped() || !rank.layout || !in_world) return;
  for (const uint32_t r :
       rank.gate.Unreachable(static_cast<uint32_t>(rank.layout->members_size()))) {
    out->add_unreachable(r);
  }
  for (const GateMissed& one :
       rank.gate.Missed(static_cast<uint32_t>(rank.layout->members_size()))) {
    v1::Missed& missed = *out->add_missed();
    missed.set_rank(one.rank);
    missed.set_cause(static_cast<v1::Cause>(one.cause));
    missed.set_doing(static_cast<v1::Doing>(one.doing));
    if (one.layer < core.geometry.moe_layers())
      missed.set_layer(core.geometry.proto().moe_layers(static_cast<int>(one.layer)));
  }
}

// Figures of an attempt plus those of earlier attempts of its run.
void FillFigures(const Job& job, uint32_t device, v1::TransitionStatus* out) {
  static const v1::TransitionStatus kNone;
  const auto before = job.carried.find(device);
  const v1::TransitionStatus& had = before == job.carried.end() ? kNone : before->second;
  const Job::Part& work = job.parts.at(device);
  const StageProgress& p = work.progress;
  out->set_bytes_total(had.bytes_total() + p.total);
  out->set_bytes_done(had.bytes_done() + p.done);
  out->set_bytes_process(had.bytes_process() + p.local);
  out->set_bytes_node(had.bytes_node() + p.shared);
  out->set_bytes_tcp(had.bytes_tcp() + p.tcp);
  out->set_bytes_comm(had.bytes_comm() + p.wire);
  out->set_bytes_checkpoint(had.bytes_checkpoint() + p.checkpoint);
  out->set_kv_bytes(had.kv_bytes() + work.kv_bytes);
  out->set_kv_ahead_bytes(had.kv_ahead_bytes() + work.kv_ahead_bytes);
  out->set_peak_bytes(std::max<uint64_t>(had.peak_bytes(), p.peak));
  out->set_prepare_seconds(had.prepare_seconds() + job.prepare_seconds);
  out->set_stage_seconds(had.stage_seconds() + job.stage_seconds);
  out->set_flip_seconds(had.flip_seconds() + job.flip_seconds);
}

void FillTransition(const Core& core, uint32_t device, uint64_t steps, v1::TransitionStatus* out) {
  out->set_phase(v1::PHASE_IDLE);
  const attempt::Machine::Attempt* attempt = core.Shown();
  if (attempt == nullptr) return;
  const auto part = attempt->parts.find(device);
  if (part == attempt->parts.end()) return;
  const attempt::Plan& plan = attempt->plan;
  const bool flipped = part->second.flipped;
  const bool permitted = attempt->phase == attempt::Phase::kPermitted;
  out->set_attempt(plan.attempt);
  out->set_phase(flipped && permitted ? v1::PHASE_FLIPPED : ToWire(attempt->phase));
  out->set_target_epoch(plan.target_epoch);
  out->set_target_hash(plan.target_hash);
  out->set_held(attempt->held);
  const Job& job = *core.JobOf(plan.attempt);
  FillFigures(job, device, out);
  if (flipped) out->set_steps_since_flip(steps);
  // Texts of engines, other agents and files. Invalid UTF-8 would make the driver reject the whole
  // status and take this agent for unresponsive.
  out->set_error(ValidUtf8(attempt->error));
  if (const auto* run = core.machine.run(); run != nullptr && run->Has(plan.attempt)) {
    if (!run->over && plan.attempt < run->last) out->set_run_last(run->last);
    if (attempt->error.empty()) out->set_error(ValidUtf8(run->why));
  }
  const GatePage& page = *core.ranks[device].gate.page();
  if (permitted && page.declined.load(std::memory_order_acquire) > 0) {
    const size_t n = strnlen(page.decline_reason, sizeof page.decline_reason);
    // Copied first: the engine may still write.
    const std::string last(page.decline_reason, n);
    out->set_error(fmt::format("the engine declined the flip {} times, last reason: {}",
                               page.declined.load(), ValidUtf8(last)));
  }
}

void FillRank(const Core& core, uint32_t device, const EngineInfo& engine, bool turns,
              v1::RankStatus* out) {
  const Core::Rank& rank = core.ranks[device];
  const int32_t number = core.machine.ranks()[device].rank;
  out->set_device(device);
  *out->mutable_member() = rank.member;
  out->set_in_world(number >= 0);
  if (number >= 0) out->set_rank(static_cast<uint32_t>(number));
  FillEngine(core, rank, number >= 0, engine, turns, out->mutable_engine());
  FillTransition(core, device, out->engine().steps(), out->mutable_transition());
}

// Fills the data under the lock; sets its version, and returns the active layout.
std::shared_ptr<const v1::Layout> Fill(Core* core, const std::vector<EngineInfo>& engines,
                                       bool turns, v1::StatusResponse* out, uint64_t* version) {
  const std::scoped_lock lock(core->mu);
  *version = core->version;
  std::shared_ptr<const v1::Layout> layout;
  if (const Core::Rank* rank = core->InForce()) {
    layout = rank->layout;
    out->set_epoch(layout->epoch());
    out->set_layout_hash(rank->layout_hash);
  }
  for (uint32_t device = 0; device < core->ranks.size(); ++device) {
    FillRank(*core, device, engines[device], turns, out->add_ranks());
  }
  *out->mutable_address() = core->address;
  out->set_highest_attempt(core->machine.highest());
  const ExecutorTotals& totals = core->totals;
  out->mutable_moved()->mutable_weights()->insert(totals.weights_by_way.begin(),
                                                  totals.weights_by_way.end());
  out->mutable_moved()->mutable_kv()->insert(totals.kv_by_way.begin(), totals.kv_by_way.end());
  out->set_checkpoint_error(ValidUtf8(core->checkpoint_error));
  return layout;
}

void FillMemory(RankMemory* memory, const v1::StatusRequest* asked, v1::RankStatus* out) {
  const MemoryFigures figures = memory->Memory();
  out->set_memory_bytes(figures.total);
  out->set_memory_free(figures.free);
  out->set_memory_mapped(figures.mapped);
  if (asked == nullptr) return;
  // Read before the inventory: if that changes meanwhile, it is sent again.
  out->set_inventory_version(memory->HeldVersion());
  const auto known = asked->known_inventories().find(out->member().id());
  if (known == asked->known_inventories().end() || known->second != out->inventory_version()) {
    *out->mutable_inventory() = memory->Held();
  }
}

void FillInfo(const device::PlatformInfo& info, v1::StatusResponse* out) {
  out->set_memory(fmt::format("{}, {}", info.platform, info.pages));
  v1::MemoryInfo& to = *out->mutable_memory_info();
  to.set_platform(info.platform);
  to.set_pages(info.pages);
  to.set_device(info.device);
  to.set_capability(info.capability);
  to.set_driver(info.driver);
}

}  // namespace

void CarryOver(Core* core, const Job& from, Job* to) {
  const std::scoped_lock lock(core->mu);
  for (const auto& [device, part] : from.parts) FillFigures(from, device, &to->carried[device]);
}

v1::StatusResponse StatusOf(Core* core, const v1::StatusRequest* asked) {
  std::vector<EngineInfo> engines;
  for (uint32_t device = 0; device < core->ranks.size(); ++device) {
    engines.push_back(core->engines->Info(device));
  }
  for (int look = 1;; ++look) {
    v1::StatusResponse out;
    uint64_t version = 0;
    const auto layout = Fill(core, engines, asked != nullptr, &out, &version);
    out.set_world(core->options.world);
    if (layout && asked != nullptr && asked->known_layout() != out.layout_hash()) {
      *out.mutable_layout() = *layout;
    }
    bool even = false;
    for (v1::RankStatus& rank : *out.mutable_ranks()) {
      const EngineInfo& engine = engines[rank.device()];
      even |= engine.attached && engine.capabilities.even_shards_only();
      FillMemory(core->ranks[rank.device()].memory, asked, &rank);
    }
    *out.mutable_geometry() = core->geometry.proto();
    out.mutable_geometry()->set_even_shards_only(even);
    out.set_revision(core->options.revision);
    if (!core->ranks.empty()) FillInfo(core->ranks[0].memory->Memory().info, &out);
    // The memory's data must match the machine's state, so a change meanwhile repeats the read.
    // After kMostLooks the reply may mix versions; the caller is notified of the change anyway.
    const std::scoped_lock lock(core->mu);
    if (core->version == version || look == kMostLooks) return out;
  }
}

Result<v1::QueryResponse> ViewOf(Core* core, const v1::QueryRequest& request) {
  const std::scoped_lock lock(core->mu);
  TANGRAM_RETURN_IF_ERROR(core->machine.CheckPeer(HeaderOf(request.header())));
  v1::QueryResponse out;
  if (const Core::Rank* rank = core->InForce()) {
    out.set_epoch(rank->layout->epoch());
    out.set_layout_hash(rank->layout_hash);
  }
  const auto view = core->machine.ViewOf(request.header().attempt(), core->Looks());
  out.set_flipped(view.flipped);
  out.set_phase(ToWire(view.phase));
  out.set_voted(view.contributed);
  return out;
}

v1::Header CurrentHeader(Core* core) {
  const std::scoped_lock lock(core->mu);
  v1::Header header;
  header.set_world(core->options.world);
  header.set_epoch(core->machine.epoch());
  header.set_attempt(core->machine.highest());
  return header;
}

std::vector<uint64_t> CountersOf(Core* core, uint32_t device, TokenCount what) {
  const uint32_t layers = core->geometry.moe_layers(), experts = core->geometry.experts();
  // Sized by the agent's own numbers, not the page's: an engine may write anything there.
  std::vector<uint64_t> out(uint64_t{layers} * experts);
  const std::scoped_lock lock(core->mu);  // a Resume replaces the page
  GatePage* page = core->ranks[device].gate.page();
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = GateCounters(page, what, layers, experts)[i].load(std::memory_order_relaxed);
  }
  return out;
}

std::vector<uint64_t> MissedOf(Core* core, uint32_t device) {
  std::vector<uint64_t> out;
  const std::scoped_lock lock(core->mu);  // as above
  for (const auto& doings : core->ranks[device].gate.page()->missed_total)
    for (const auto& count : doings) out.push_back(count.load(std::memory_order_relaxed));
  return out;
}

v1::ExpertLoadResponse LoadOf(Core* core) {
  v1::ExpertLoadResponse out;
  for (uint32_t device = 0; device < core->ranks.size(); ++device) {
    v1::RankExpertLoad& rank = *out.add_ranks();
    {
      const std::scoped_lock lock(core->mu);
      rank.set_member(core->ranks[device].member.id());
    }
    const auto routed = CountersOf(core, device, TokenCount::kRouted);
    const auto executed = CountersOf(core, device, TokenCount::kExecuted);
    rank.mutable_tokens()->Assign(routed.begin(), routed.end());
    rank.mutable_executed()->Assign(executed.begin(), executed.end());
  }
  return out;
}

}  // namespace tangram
