// What the executor tells: to the driver, to other agents, to an engine that attaches.
#include <fmt/format.h>

#include <cstring>

#include "agent/transition/executor.h"

namespace tangram {

void Executor::FillRank(uint32_t device, const EngineInfo& engine, const v1::StatusRequest* asked,
                        v1::RankStatus* out) {
  const Rank& rank = ranks_[device];
  out->set_device(device);
  *out->mutable_member() = rank.member;
  out->set_in_world(rank.rank >= 0);
  if (rank.rank >= 0) out->set_rank(static_cast<uint32_t>(rank.rank));
  const MemoryFigures memory = rank.memory->Memory();
  out->set_memory_bytes(memory.total);
  out->set_memory_free(memory.free);
  out->set_memory_mapped(memory.mapped);
  if (asked != nullptr) {
    // Before the inventory: one that changes meanwhile is told again.
    out->set_inventory_version(rank.memory->HeldVersion());
    const auto known = asked->known_inventories().find(rank.member.id());
    if (known == asked->known_inventories().end() || known->second != out->inventory_version()) {
      *out->mutable_inventory() = rank.memory->Held();
    }
  }

  const GatePage& page = *rank.gate.page();
  v1::EngineStatus& e = *out->mutable_engine();
  e.set_attached(engine.attached);
  if (engine.attached) {
    e.set_incarnation(engine.incarnation);
    e.set_endpoint(engine.endpoint);
    e.set_frontend(engine.frontend);
    e.set_even_shards_only(engine.capabilities.even_shards_only());
    e.set_attention_data_only(engine.capabilities.attention_data_only());
    e.set_kv_block_tokens(engine.kv_block_tokens);
    e.set_kv_pages(page.kv_pages.load(std::memory_order_relaxed));
    e.set_kv_free_pages(page.kv_free_pages.load(std::memory_order_relaxed));
    e.set_kv_reserved_tokens(page.kv_reserved_tokens.load(std::memory_order_relaxed));
    e.set_running(page.running.load(std::memory_order_relaxed));
    e.set_waiting(page.waiting.load(std::memory_order_relaxed));
  }
  const uint64_t steps = page.steps.load(std::memory_order_acquire);
  e.set_steps(steps);
  e.set_stopped(rank.gate.stopped());
  if (asked != nullptr) e.set_turns(page.turns.load(std::memory_order_relaxed));
  e.set_fresh(rank.fresh);
  if (e.stopped() && rank.layout && rank.rank >= 0) {
    for (const uint32_t r :
         rank.gate.Unreachable(static_cast<uint32_t>(rank.layout->members_size()))) {
      e.add_unreachable(r);
    }
  }

  const AttemptPtr& attempt = attempt_ ? attempt_ : last_;
  v1::TransitionStatus& t = *out->mutable_transition();
  t.set_phase(v1::PHASE_IDLE);
  if (!attempt) return;
  const auto it = attempt->parts.find(device);
  if (it == attempt->parts.end()) return;
  const Part& part = it->second;
  t.set_attempt(attempt->id);
  t.set_phase(part.flipped && attempt->phase == v1::PHASE_PERMITTED ? v1::PHASE_FLIPPED
                                                                    : attempt->phase);
  t.set_target_epoch(attempt->target->epoch());
  t.set_target_hash(attempt->target_hash);
  t.set_held(attempt->held);
  const StageProgress& p = part.progress;
  t.set_bytes_total(p.total);
  t.set_bytes_done(p.done);
  t.set_bytes_local(p.local);
  t.set_bytes_shared(p.shared);
  t.set_bytes_tcp(p.tcp);
  t.set_bytes_checkpoint(p.checkpoint);
  t.set_kv_bytes(part.kv_bytes);
  if (part.flipped) t.set_steps_since_flip(steps);
  t.set_error(attempt->error);
  if (attempt->phase == v1::PHASE_PERMITTED && page.declined.load(std::memory_order_acquire) > 0) {
    const size_t n = strnlen(page.decline_reason, sizeof page.decline_reason);
    t.set_error(fmt::format("the engine declined {} times, last: {}", page.declined.load(),
                            std::string_view(page.decline_reason, n)));
  }
  t.set_prepare_seconds(attempt->prepare_seconds);
  t.set_stage_seconds(attempt->stage_seconds);
  t.set_flip_seconds(attempt->flip_seconds);
}

v1::StatusResponse Executor::GetStatus(const v1::StatusRequest* asked) {
  std::vector<EngineInfo> engines;
  for (uint32_t device = 0; device < ranks_.size(); ++device) {
    engines.push_back(engines_->Info(device));
  }
  const std::scoped_lock lock(mu_);
  v1::StatusResponse out;
  out.set_world(options_.world);
  const auto layout = LayoutLocked();
  if (layout) {
    out.set_epoch(layout->epoch());
    out.set_layout_hash(HashLocked(layout));
    if (asked != nullptr && asked->known_layout() != out.layout_hash()) {
      *out.mutable_layout() = *layout;
    }
  }
  bool even = false;
  for (uint32_t device = 0; device < ranks_.size(); ++device) {
    even |= engines[device].attached && engines[device].capabilities.even_shards_only();
    FillRank(device, engines[device], asked, out.add_ranks());
  }
  *out.mutable_address() = address_;
  out.set_highest_attempt(highest_);
  *out.mutable_geometry() = geometry_.proto();
  out.mutable_geometry()->set_even_shards_only(even);
  out.set_revision(options_.revision);
  out.set_checkpoint_error(checkpoint_error_);
  if (!ranks_.empty()) out.set_memory(ranks_[0].memory->Memory().kind);
  return out;
}

Result<v1::QueryResponse> Executor::Query(const v1::QueryRequest& request) {
  const std::scoped_lock lock(mu_);
  if (request.header().world() != options_.world) {
    return Status{Code::kWrongWorld, fmt::format("this agent serves world '{}'", options_.world)};
  }
  v1::QueryResponse out;
  const auto layout = LayoutLocked();
  if (layout) {
    out.set_epoch(layout->epoch());
    out.set_layout_hash(HashLocked(layout));
  }
  const uint64_t id = request.header().attempt();
  out.set_flipped(flipped_.contains(id));
  if (attempt_ && attempt_->id == id) {
    out.set_phase(attempt_->phase);
    bool contributed = attempt_->contributed;
    for (const auto& [device, part] : attempt_->parts) {
      const GateState state = ranks_[device].gate.state();
      contributed |= state == GateState::kLatched || state == GateState::kFlipped;
    }
    out.set_contributed(contributed);
  } else if (id <= highest_) {
    out.set_phase(v1::PHASE_IDLE);  // over: flipped or burned
    out.set_contributed(out.flipped());
  }
  return out;
}

Result<Executor::Attachment> Executor::Attach(uint32_t device) {
  const std::scoped_lock lock(mu_);
  if (device >= ranks_.size()) {
    return Status{Code::kInvalid, fmt::format("device {}: this pod has {}", device, ranks_.size())};
  }
  if (attempt_ && attempt_->phase != v1::PHASE_FLIPPED) {
    return Status{Code::kWrongPhase, fmt::format("attempt {} is under way ({}); attach again in a "
                                                 "moment",
                                                 attempt_->id, v1::Phase_Name(attempt_->phase))};
  }
  Rank& rank = ranks_[device];
  if (rank.verifying) {
    return Status{Code::kWrongPhase,
                  fmt::format("what an engine kept of device {} is being verified", device)};
  }
  rank.awaited = false;  // its engine died as well
  rank.gate.ForgetLoad();
  const EngineRegions regions = rank.memory->Regions();
  Attachment out;
  out.fds = {regions.weights_fd, regions.kv_fd, regions.control_fd};
  v1::Attached& m = out.message;
  m.set_world(options_.world);
  *m.mutable_member() = rank.member;
  *m.mutable_geometry() = geometry_.proto();
  m.set_config_json(options_.config_json);
  m.set_bank_pitch(geometry_.bank_pitch());
  m.set_expert_pitch(geometry_.expert_pitch());
  m.set_banks(regions.banks);
  m.set_platform(regions.platform);
  m.set_hugetlb(regions.hugetlb);
  m.set_dense_bytes(regions.dense_bytes);
  m.set_kv_bytes(regions.kv_bytes);
  m.set_control_bytes(regions.control_bytes);
  const auto whole = [](v1::Extent* extent, uint32_t fd, uint64_t bytes) {
    extent->set_fd_index(fd);
    extent->set_length(bytes);
  };
  whole(m.add_kv(), 1, regions.kv_mapped);
  whole(m.add_control(), 2, regions.control_mapped);
  for (const v1::DenseTensor& tensor : regions.dense_tensors) *m.add_dense_tensors() = tensor;
  m.mutable_header()->set_world(options_.world);
  if (rank.layout && rank.rank >= 0) {
    // It has none of the requests and none of the KV: the world goes on with it by a repair.
    rank.gate.SetStopped(true);
    rank.fresh = true;
    m.mutable_header()->set_epoch(rank.layout->epoch());
    *m.mutable_layout() = *rank.layout;
    for (v1::Mapping& mapping : rank.memory->CurrentMappings()) {
      *m.add_mappings() = std::move(mapping);
    }
    for (const v1::PeerAddress& peer : peers_now_) *m.add_peers() = peer;
  } else {
    rank.gate.SetStopped(false);  // it was the engine's before
  }
  return out;
}

void Executor::CountLocked(const Attempt& attempt, const char* outcome) {
  ++totals_.outcomes[outcome];
  totals_.prepare_seconds += attempt.prepare_seconds;
  totals_.stage_seconds += attempt.stage_seconds;
  totals_.flip_seconds += attempt.flip_seconds;
  for (const auto& [device, part] : attempt.parts) {
    totals_.local += part.progress.local;
    totals_.shared += part.progress.shared;
    totals_.tcp += part.progress.tcp;
    totals_.checkpoint += part.progress.checkpoint;
    totals_.corrupt += part.progress.corrupt;
    totals_.kv += part.kv_bytes;
  }
}

Executor::Totals Executor::GetTotals() {
  const std::scoped_lock lock(mu_);
  return totals_;
}

std::vector<uint64_t> Executor::Counters(uint32_t device, TokenCount what) {
  const std::scoped_lock lock(mu_);  // a Resume brings another page, and the old one goes
  GatePage* page = ranks_[device].gate.page();
  // The agent's own numbers, not the page's: an engine may write anything there.
  std::vector<uint64_t> out(uint64_t{geometry_.moe_layers()} * geometry_.experts());
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = GateCounters(page, what, geometry_.moe_layers(), geometry_.experts())[i].load(
        std::memory_order_relaxed);
  }
  return out;
}

v1::LoadResponse Executor::GetLoad() {
  v1::LoadResponse out;
  for (uint32_t device = 0; device < ranks_.size(); ++device) {
    v1::RankLoad& rank = *out.add_ranks();
    {
      const std::scoped_lock lock(mu_);
      rank.set_member(ranks_[device].member.id());
    }
    const auto routed = Counters(device, TokenCount::kRouted);
    const auto executed = Counters(device, TokenCount::kExecuted);
    rank.mutable_tokens()->Assign(routed.begin(), routed.end());
    rank.mutable_executed()->Assign(executed.begin(), executed.end());
  }
  return out;
}

}  // namespace tangram
