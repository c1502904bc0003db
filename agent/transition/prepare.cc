// Prepare: everything that can be refused is refused here, before a byte moves.
#include <fmt/format.h>

#include "agent/base/fault.h"
#include "agent/transition/executor.h"

namespace tangram {
namespace {

const fault::Point kBefore("prepare.before", fault::kErrors);
const fault::Point kAfterMemory("prepare.after_memory", fault::kErrors);
const fault::Point kAfter("prepare.after", fault::kErrors);

// Geometries are the same model's when they differ in the engine's declaration alone.
std::string ShapeHash(v1::Geometry geometry) {
  geometry.clear_even_shards_only();
  return layout::WireHash(geometry);
}

}  // namespace

Status Executor::CheckPrepare(const v1::PrepareRequest& request) {
  const v1::Header& header = request.header();
  if (header.world() != options_.world) {
    return {Code::kWrongWorld, fmt::format("this agent serves world '{}', the call is for '{}'",
                                           options_.world, header.world())};
  }
  const bool repair = request.kind() == v1::FLIP_KIND_REPAIR;
  // The old places of a flip are sources for a repair that follows at once.
  if (attempt_ && !(repair && attempt_->phase == v1::PHASE_FLIPPED)) {
    return {Code::kWrongPhase,
            fmt::format("attempt {} is in {}; abort or retire it before attempt {}", attempt_->id,
                        v1::Phase_Name(attempt_->phase), header.attempt())};
  }
  if (header.attempt() <= highest_) {
    return {Code::kStaleAttempt, fmt::format("attempt {} is over or burned, the highest seen is {}",
                                             header.attempt(), highest_)};
  }
  const uint64_t epoch = EpochLocked();
  if (epoch != 0 && header.epoch() != epoch) {
    return {Code::kStaleEpoch,
            fmt::format("the epoch in force is {}, the call says {}", epoch, header.epoch())};
  }
  if (request.target_epoch() != header.epoch() + 1) {
    return {Code::kBadPlan, fmt::format("target epoch {} does not follow epoch {}",
                                        request.target_epoch(), header.epoch())};
  }
  const bool first = request.kind() == v1::FLIP_KIND_FIRST;
  if (first != (header.epoch() == 0)) {
    return {Code::kBadPlan, fmt::format("a flip of kind {} from epoch {}",
                                        v1::FlipKind_Name(request.kind()), header.epoch())};
  }
  if (request.kind() == v1::FLIP_KIND_UNSPECIFIED || !v1::FlipKind_IsValid(request.kind())) {
    return {Code::kBadPlan, "the flip has no kind"};
  }
  if (epoch == 0 && !first && request.kind() != v1::FLIP_KIND_JOIN) {
    return {Code::kStaleEpoch, fmt::format("no rank of this agent is a member of epoch {}; it can "
                                           "only join",
                                           header.epoch())};
  }
  if (ShapeHash(request.geometry()) != ShapeHash(geometry_.proto())) {
    return {
        Code::kBadGeometry,
        fmt::format("the plan's geometry {} is not this agent's {}: another model, granule_rows "
                    "or page size",
                    layout::Hex(ShapeHash(request.geometry())).substr(0, 16),
                    layout::Hex(ShapeHash(geometry_.proto())).substr(0, 16))};
  }
  return OkStatus();
}

Result<Executor::AttemptPtr> Executor::Build(const v1::PrepareRequest& request) {
  auto attempt = std::make_shared<Attempt>();
  attempt->request = request;
  attempt->request_hash = layout::WireHash(request);
  attempt->id = request.header().attempt();
  attempt->kind = request.kind();
  attempt->begun = Clock::now();

  auto geometry = layout::GeometryView::Make(request.geometry());
  if (!geometry.ok()) return geometry.status();
  const auto base = LayoutLocked();
  v1::Layout target;
  if (request.has_layout()) {
    target = request.layout();
  } else if (!base) {
    return Status{Code::kBadPlan, "a delta over no layout: this agent needs the whole target"};
  } else {
    auto applied = layout::Apply(*base, request.delta(), request.target_epoch());
    if (!applied.ok()) return applied.status();
    target = std::move(*applied);
  }
  if (target.world() != options_.world || target.epoch() != request.target_epoch()) {
    return Status{
        Code::kBadPlan,
        fmt::format("the target is epoch {} of world '{}', the call names epoch {} of '{}'",
                    target.epoch(), target.world(), request.target_epoch(), options_.world)};
  }
  attempt->target_hash = layout::HashOf(target);
  if (attempt->target_hash != request.target_hash()) {
    return Status{Code::kBadPlan, fmt::format("the target layout hashes to {}, the plan says {}",
                                              layout::Hex(attempt->target_hash),
                                              layout::Hex(request.target_hash()))};
  }
  TANGRAM_RETURN_IF_ERROR(layout::Validate(target, *geometry));
  attempt->target = std::make_shared<const v1::Layout>(std::move(target));
  attempt->owners.emplace(*attempt->target, geometry_);
  attempt->carries_kv = CarriesKv(*attempt, base.get());
  TANGRAM_RETURN_IF_ERROR(FindParts(attempt.get()));
  return attempt;
}

Status Executor::FindParts(Attempt* attempt) {
  for (const v1::RankPart& part : attempt->request.parts()) {
    uint32_t device = 0;
    while (device < ranks_.size() && ranks_[device].member.id() != part.member()) ++device;
    if (device == ranks_.size()) {
      return {Code::kBadPlan, fmt::format("part for member {}, which is not of this agent (a "
                                          "restarted process is another member)",
                                          part.member())};
    }
    const Rank& rank = ranks_[device];
    const int32_t target_rank = layout::RankOf(*attempt->target, part.member());
    const bool leaving = target_rank < 0;
    if (leaving && (attempt->kind != v1::FLIP_KIND_LEAVE || rank.rank < 0)) {
      return {Code::kBadPlan,
              fmt::format("part for member {}, which is not in the target", part.member())};
    }
    const int32_t named = attempt->kind == v1::FLIP_KIND_LEAVE ? rank.rank : target_rank;
    if (static_cast<int64_t>(part.rank()) != named) {
      return {Code::kBadPlan, fmt::format("member {} is rank {}, its part says {}", part.member(),
                                          named, part.rank())};
    }
    const auto [it, fresh] = attempt->parts.try_emplace(device);
    if (!fresh) return {Code::kBadPlan, fmt::format("two parts for member {}", part.member())};
    it->second.part = part;
    it->second.target_rank = target_rank;
    it->second.joining = rank.rank < 0;
    it->second.leaving = leaving;
  }
  const bool repair = attempt->kind == v1::FLIP_KIND_REPAIR;
  for (Rank& rank : ranks_) {
    const auto device = static_cast<uint32_t>(&rank - ranks_.data());
    // A member that a repair goes on without has no part in it.
    const bool concerned =
        (rank.rank >= 0 && !repair) || layout::RankOf(*attempt->target, rank.member.id()) >= 0;
    if (repair && !concerned && rank.rank >= 0) {
      rank.gate.SetStopped(true);  // a fence has left it out, and its engine may hang
    } else if (repair && rank.rank >= 0 && !rank.gate.stopped()) {
      return {Code::kWrongPhase,
              fmt::format("member {} has not stopped; a repair is for ranks that stand still",
                          rank.member.id())};
    }
    if (repair && rank.rank < 0 && concerned) {
      return {Code::kBadPlan, fmt::format("a repair cannot bring member {} in", rank.member.id())};
    }
    if (concerned && !attempt->parts.contains(device)) {
      return {Code::kBadPlan, fmt::format("no part for member {}", rank.member.id())};
    }
  }
  if (attempt->parts.empty()) return {Code::kBadPlan, "no part for any rank of this agent"};
  return OkStatus();
}

Status Executor::CheckEngines(const Attempt& attempt) {
  for (const auto& [device, part] : attempt.parts) {
    const EngineInfo engine = engines_->Info(device);
    if (!engine.attached) {
      if (attempt.kind == v1::FLIP_KIND_FIRST) continue;
      return {Code::kEngine,
              fmt::format("device {} (member {}) has no engine attached; only an "
                          "engine can give the word for a {}",
                          device, part.part.member(), v1::FlipKind_Name(attempt.kind))};
    }
    bool mixed = false;
    for (const v1::LayerLayout& layer : attempt.target->layers()) {
      const uint32_t g = layer.expert_group_size();
      if (engine.capabilities.even_shards_only() && g > 0 && geometry_.granules() % g != 0) {
        return {Code::kEngine,
                fmt::format("layer {}: {} granules do not divide by {} ranks and the engine of "
                            "device {} takes even shards only; use a width that divides {}",
                            layer.layer(), geometry_.granules(), g, device, geometry_.granules())};
      }
      if (engine.capabilities.attention_data_only() && layer.attention_group_size() > 1) {
        return {
            Code::kEngine,
            fmt::format("layer {}: the heads of a request are shared by {} ranks and the engine "
                        "of device {} takes attention on one rank only; use attention groups "
                        "of 1",
                        layer.layer(), layer.attention_group_size(), device)};
      }
      mixed |= g != attempt.target->layers(0).expert_group_size() ||
               layer.attention_group_size() != attempt.target->layers(0).attention_group_size();
    }
    if (mixed && !engine.capabilities.mixed_layouts()) {
      return {Code::kEngine, fmt::format("the engine of device {} does not compute layers of "
                                         "different sharding in one step",
                                         device)};
    }
  }
  return OkStatus();
}

Status Executor::PrepareEngines(Attempt* attempt, std::vector<uint32_t>* asked,
                                const std::stop_token& stop) {
  std::mutex error_mu;
  Status error;
  {
    // Side by side: the engines of one pod may wait for each other's new communicator.
    std::vector<std::jthread> calls;
    for (const auto& [device, part] : attempt->parts) {
      const EngineInfo engine = engines_->Info(device);
      ranks_[device].incarnation = engine.attached ? engine.incarnation : 0;
      if (!engine.attached) continue;
      v1::EnginePrepare prepare;
      *prepare.mutable_header() = attempt->request.header();
      prepare.set_kind(attempt->kind);
      *prepare.mutable_target() = *attempt->target;
      prepare.set_target_hash(attempt->target_hash);
      *prepare.mutable_peers() = attempt->request.peers();
      prepare.set_joining(part.joining);
      prepare.set_leaving(part.leaving);
      asked->push_back(device);
      calls.emplace_back([&, device = device, prepare = std::move(prepare)] {
        Status status = engines_->Prepare(device, prepare, stop);
        const std::scoped_lock lock(error_mu);
        if (!status.ok() && error.ok()) error = std::move(status);
      });
    }
  }
  return error;
}

Status Executor::Prepare(const v1::PrepareRequest& request, std::stop_token stop) {
  const std::scoped_lock call(call_mu_);
  TANGRAM_RETURN_IF_ERROR(fault::Check("prepare.before"));
  AttemptPtr attempt, flipped;
  {
    const std::scoped_lock lock(mu_);
    if (attempt_ && attempt_->id == request.header().attempt() &&
        request.header().world() == options_.world) {
      if (attempt_->request_hash != layout::WireHash(request)) {
        return {Code::kStaleAttempt, fmt::format("attempt {} is prepared with another plan; take "
                                                 "a new attempt id",
                                                 attempt_->id)};
      }
      return OkStatus();  // repeated
    }
    TANGRAM_RETURN_IF_ERROR(CheckPrepare(request));
    auto built = Build(request);
    if (!built.ok()) return built.status();
    attempt = std::move(*built);
    flipped = attempt_;
    attempt_ = attempt;  // closes the door for engines that attach; phase Idle until all agree
  }

  if (flipped) KeepFlipped(flipped);
  std::vector<uint32_t> backed, asked;
  const auto all = [&]() -> Status {
    TANGRAM_RETURN_IF_ERROR(CheckEngines(*attempt));
    for (auto& [device, part] : attempt->parts) {
      TANGRAM_RETURN_IF_ERROR(ranks_[device].memory->Prepare(attempt->id, *attempt->target,
                                                             part.target_rank, part.part));
      backed.push_back(device);
    }
    TANGRAM_RETURN_IF_ERROR(fault::Check("prepare.after_memory"));
    return PrepareEngines(attempt.get(), &asked, stop);
  };
  if (Status status = all(); !status.ok()) {
    v1::EngineAbort abort;
    *abort.mutable_header() = request.header();
    abort.set_reason(status.message());
    for (const uint32_t device : asked) engines_->Abort(device, abort);
    for (const uint32_t device : backed) ranks_[device].memory->Abort();
    const std::scoped_lock lock(mu_);
    ++totals_.outcomes["refused"];
    attempt_.reset();
    return status;
  }
  {
    const std::scoped_lock lock(mu_);
    highest_ = attempt->id;
    last_.reset();
    attempt->phase = v1::PHASE_PREPARED;
    attempt->prepare_seconds = std::chrono::duration<double>(Clock::now() - attempt->begun).count();
    Changed();
  }
  return fault::Check("prepare.after");
}

}  // namespace tangram
