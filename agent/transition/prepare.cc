#include "agent/transition/prepare.h"

#include <fmt/format.h>

#include <thread>
#include <utility>

#include "agent/base/fault.h"
#include "agent/base/thread.h"
#include "agent/transition/pulls.h"

namespace tangram {
namespace {

const fault::Point kAfterMemory("prepare.after_memory", fault::kErrors);

// Hash of a geometry without the engine's declaration, which may differ for the same model.
std::string ShapeHash(v1::Geometry geometry) {
  geometry.clear_even_shards_only();
  return layout::WireHash(geometry);
}

Status CheckEngine(const Core& core, const Job& job, uint32_t device, const EngineInfo& engine) {
  bool mixed = false;
  uint32_t experts = 0;  // ranks that share an expert, in layers that have experts
  const uint32_t granules = core.geometry.granules();
  for (const v1::LayerLayout& layer : job.target->layers()) {
    const uint32_t g = layer.expert_group_size();
    if (engine.capabilities.even_shards_only() && g > 0 && granules % g != 0) {
      return {
          Code::kEngine,
          fmt::format("layer {}: {} granules are not divisible by {} ranks, and the engine of "
                      "device {} supports even shards only; use a number of ranks that divides {}",
                      layer.layer(), granules, g, device, granules)};
    }
    if (engine.capabilities.attention_data_only() && layer.attention_group_size() > 1) {
      return {Code::kEngine,
              fmt::format("layer {}: an attention group has {} ranks, and the engine of device {} "
                          "supports attention on one rank only; use attention groups of 1",
                          layer.layer(), layer.attention_group_size(), device)};
    }
    mixed |= (g > 0 && experts > 0 && g != experts) ||
             layer.attention_group_size() != job.target->layers(0).attention_group_size();
    if (g > 0) experts = g;
  }
  if (mixed && !engine.capabilities.mixed_layouts()) {
    return {
        Code::kEngine,
        fmt::format(
            "the engine of device {} does not support layers with different sharding in one step",
            device)};
  }
  return OkStatus();
}

Status CheckEngines(const Core& core, const Job& job) {
  for (const auto& [device, part] : job.parts) {
    const EngineInfo engine = core.engines->Info(device);
    if (engine.attached) {
      TANGRAM_RETURN_IF_ERROR(CheckEngine(core, job, device, engine));
    } else if (job.request.kind() != v1::FLIP_KIND_FIRST) {
      return {Code::kEngine,
              fmt::format(
                  "device {} (member {}) has no engine attached; only an engine can vote for a {}",
                  device, part.part.member(), v1::FlipKind_Name(job.request.kind()))};
    }
  }
  return OkStatus();
}

// Gets the consent of the engines of all parts.
Status PrepareEngines(Core* core, Job* job, std::vector<uint32_t>* asked,
                      const std::stop_token& stop) {
  std::mutex error_mu;
  Status error;
  const auto done = [&](Status status) {
    const std::scoped_lock lock(error_mu);
    if (!status.ok() && error.ok()) error = std::move(status);
  };
  {
    // Concurrently: the engines of one pod may wait for each other's new communicator.
    std::vector<std::jthread> calls;
    for (const auto& [device, part] : job->parts) {
      asked->push_back(device);
      auto call =
          StartThread([&, device = device] { done(PrepareEngine(core, job, device, stop)); });
      if (!call.ok()) {
        done(call.status());
        break;
      }
      calls.push_back(std::move(call).value());
    }
  }
  return error;
}

// Flips of a run follow one another without a gap. Each is built in its turn.
Status CheckNext(const v1::PrepareRequest& request) {
  for (int i = 0; i < request.next_size(); ++i) {
    const v1::PrepareRequest& next = request.next(i);
    const uint64_t ahead = static_cast<uint64_t>(i) + 1;
    if (next.header().attempt() == request.header().attempt() + ahead &&
        next.header().epoch() == request.header().epoch() + ahead &&
        next.header().world() == request.header().world() &&
        next.target_epoch() == request.target_epoch() + ahead &&
        next.kind() == v1::FLIP_KIND_LAYOUT && next.next_size() == 0) {
      continue;
    }
    return {Code::kBadPlan, fmt::format("flip {} of the run of attempt {} does not follow the flip "
                                        "before it: attempt {} from epoch {} to {}, {}",
                                        i + 1, request.header().attempt(), next.header().attempt(),
                                        next.header().epoch(), next.target_epoch(),
                                        v1::FlipKind_Name(next.kind()))};
  }
  return OkStatus();
}

}  // namespace

Status CheckGeometry(const Core& core, const v1::PrepareRequest& request) {
  const std::string asked = ShapeHash(request.geometry());
  const std::string here = ShapeHash(core.geometry.proto());
  if (asked == here) return OkStatus();
  return {Code::kBadGeometry,
          fmt::format("the geometry {} of the plan differs from the geometry {} of this agent: "
                      "compare the model, granule_rows and the page size",
                      layout::Hex(asked).substr(0, 16), layout::Hex(here).substr(0, 16))};
}

Status BuildTarget(const Core& core, Job* job, const std::shared_ptr<const v1::Layout>& base) {
  const v1::PrepareRequest& request = job->request;
  auto geometry = layout::GeometryView::Make(request.geometry());
  if (!geometry.ok()) return geometry.status();
  v1::Layout target;
  if (request.has_layout()) {
    target = request.layout();
  } else if (!base) {
    return {Code::kBadPlan,
            "the plan is a delta, but this agent has no layout; send the whole target layout"};
  } else {
    auto applied = layout::Apply(*base, request.delta(), request.target_epoch());
    if (!applied.ok()) return applied.status();
    target = std::move(*applied);
  }
  if (target.world() != core.options.world || target.epoch() != request.target_epoch()) {
    return {Code::kBadPlan, fmt::format("the target layout is for epoch {} of world '{}', the call "
                                        "is for epoch {} of world '{}'",
                                        target.epoch(), target.world(), request.target_epoch(),
                                        core.options.world)};
  }
  job->target_wire = layout::WireOf(target);
  job->target_hash = layout::Sha256(job->target_wire);
  if (job->target_hash != request.target_hash()) {
    return {Code::kBadPlan,
            fmt::format("the hash of the target layout is {}, the plan has {}",
                        layout::Hex(job->target_hash), layout::Hex(request.target_hash()))};
  }
  TANGRAM_RETURN_IF_ERROR(layout::Validate(target, *geometry));
  job->target = std::make_shared<const v1::Layout>(std::move(target));
  job->base = base;
  job->owners.emplace(*job->target, core.geometry);
  job->carries_kv = CarriesKv(*job, base.get());
  return OkStatus();
}

Result<attempt::Plan> Build(const Core& core, Job* job,
                            const std::shared_ptr<const v1::Layout>& base,
                            const std::vector<std::string>& members) {
  const v1::PrepareRequest& request = job->request;
  TANGRAM_RETURN_IF_ERROR(CheckNext(request));
  if (job->target == nullptr || job->base != base) {
    TANGRAM_RETURN_IF_ERROR(BuildTarget(core, job, base));
  }
  attempt::Plan plan;
  plan.attempt = job->id;
  plan.run_last = job->run_last();
  plan.kind = static_cast<attempt::Kind>(request.kind());
  plan.from_epoch = request.header().epoch();
  plan.target_epoch = request.target_epoch();
  plan.request_hash = job->request_hash;
  plan.target_hash = job->target_hash;
  for (const v1::Member& member : job->target->members()) plan.pods.push_back(member.pod());
  for (const std::string& member : members) {
    plan.target_ranks.push_back(layout::RankOf(*job->target, member));
  }
  for (const v1::RankPart& part : request.parts()) {
    plan.parts.push_back({part.member(), part.rank()});
  }
  return plan;
}

Status PrepareEngine(Core* core, Job* job, uint32_t device, const std::stop_token& stop) {
  Job::Part& part = job->parts.at(device);
  const EngineInfo engine = core->engines->Info(device);
  part.incarnation = engine.attached ? engine.incarnation : 0;
  if (!engine.attached) return OkStatus();
  v1::EnginePrepare prepare;
  *prepare.mutable_header() = job->request.header();
  prepare.set_kind(job->request.kind());
  prepare.set_target(job->target_wire);
  prepare.set_target_hash(job->target_hash);
  *prepare.mutable_peers() = job->request.peers();
  prepare.set_joining(part.joining);
  prepare.set_pause_steps(job->request.pause_steps());
  prepare.set_leaving(part.leaving);
  return core->engines->Prepare(device, prepare, stop);
}

Status Reserve(Core* core, Job* job, const std::stop_token& stop) {
  std::vector<uint32_t> backed, asked;
  const auto all = [&]() -> Status {
    TANGRAM_RETURN_IF_ERROR(CheckEngines(*core, *job));
    for (auto& [device, part] : job->parts) {
      TANGRAM_RETURN_IF_ERROR(
          core->ranks[device].memory->Prepare(job->id, *job->target, part.target_rank, part.part));
      backed.push_back(device);
    }
    TANGRAM_RETURN_IF_ERROR(fault::Check("prepare.after_memory"));
    return job->asks_when_staged ? OkStatus() : PrepareEngines(core, job, &asked, stop);
  };
  Status status = all();
  if (status.ok()) return status;
  v1::EngineAbort abort;
  *abort.mutable_header() = job->request.header();
  abort.set_reason(status.message());
  for (const uint32_t device : asked) core->engines->Abort(device, abort);
  for (const uint32_t device : backed) core->ranks[device].memory->Abort();
  return status;
}

}  // namespace tangram
