#include "agent/transition/resume.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace tangram {
namespace {

// The memory that an engine maps, and its rank's layout; without data under the core's lock.
Result<Attachment> Describe(const Core& core, RankMemory* memory, const v1::Layout* layout) {
  const EngineRegions regions = memory->Regions();
  Attachment out;
  v1::Attached& m = out.message;
  m.set_world(core.options.world);
  *m.mutable_geometry() = core.geometry.proto();
  m.set_config_json(core.options.config_json);
  m.set_bank_pitch(core.geometry.bank_pitch());
  m.set_expert_pitch(core.geometry.expert_pitch());
  m.set_banks(regions.banks);
  m.set_platform(regions.platform);
  m.set_hugetlb(regions.hugetlb);
  m.set_dense_bytes(regions.dense_bytes);
  m.set_kv_bytes(regions.kv_bytes);
  m.set_control_bytes(regions.control_bytes);
  const auto add = [&](const device::Export& region, auto* extents) {
    const auto first = static_cast<uint32_t>(out.descriptors.size());
    for (const device::Extent& is : region.extents) {
      v1::Extent* extent = extents->Add();
      extent->set_fd_index(first + is.descriptor);
      extent->set_offset(is.offset);
      extent->set_length(is.length);
    }
    out.descriptors.insert(out.descriptors.end(), region.descriptors.begin(),
                           region.descriptors.end());
  };
  add(regions.kv, m.mutable_kv());
  add(regions.control, m.mutable_control());
  for (const v1::DenseTensor& tensor : regions.dense_tensors) *m.add_dense_tensors() = tensor;
  m.mutable_header()->set_world(core.options.world);
  if (layout == nullptr) return out;
  m.mutable_header()->set_epoch(layout->epoch());
  *m.mutable_layout() = *layout;
  auto current = memory->CurrentMappings();
  if (!current.ok()) return current.status();
  const auto first = static_cast<uint32_t>(out.descriptors.size());
  for (v1::Mapping& mapping : current->mappings) {
    for (v1::Extent& extent : *mapping.mutable_extents()) {
      extent.set_fd_index(first + extent.fd_index());
    }
    *m.add_mappings() = std::move(mapping);
  }
  std::move(current->descriptors.begin(), current->descriptors.end(),
            std::back_inserter(out.descriptors));
  return out;
}

}  // namespace

Resumption::Resumption(Core* core, Runner* runner)
    : core_(core), runner_(runner), until_(core->options.now() + core->options.resume_wait) {}

Status Resumption::CheckAttach(uint32_t device) const {
  TANGRAM_RETURN_IF_ERROR(core_->machine.CheckAttach(device));
  if (!core_->ranks[device].verifying) return OkStatus();
  return {Code::kWrongPhase,
          fmt::format("device {}: the pieces that its engine retained are being verified", device)};
}

// Memory is described without the lock. The description is valid if the rank's layout is unchanged.
Result<Attachment> Resumption::Attach(uint32_t device) {
  if (device >= core_->ranks.size()) {
    return Status{Code::kInvalid, fmt::format("device {} is out of range: this pod has {} devices",
                                              device, core_->ranks.size())};
  }
  Core::Rank& rank = core_->ranks[device];
  const auto layout_now = [&]() -> std::shared_ptr<const v1::Layout> {
    return core_->machine.ranks()[device].rank >= 0 ? rank.layout : nullptr;
  };
  while (true) {
    std::shared_ptr<const v1::Layout> layout;
    {
      const std::scoped_lock lock(core_->mu);
      TANGRAM_RETURN_IF_ERROR(CheckAttach(device));
      layout = layout_now();
    }
    auto described = Describe(*core_, rank.memory, layout.get());
    if (!described.ok()) return described.status();
    Attachment& out = *described;
    TANGRAM_RETURN_IF_ERROR(runner_->Run(attempt::EngineCame{device}).status);
    const std::scoped_lock lock(core_->mu);
    if (layout != layout_now()) continue;
    *out.message.mutable_member() = rank.member;
    if (layout) {
      for (const v1::PeerAddress& peer : core_->peers_now) *out.message.add_peers() = peer;
    }
    rank.awaited = false;  // its engine died as well
    rank.fresh |= layout != nullptr;
    rank.gate.ForgetLoad();
    return described;
  }
}

bool Resumption::Resuming(std::string* why) {
  std::string awaited, verifying;
  std::vector<std::string> given_up;  // members
  {
    const std::scoped_lock lock(core_->mu);
    const bool late = core_->options.now() >= until_;
    for (uint32_t device = 0; device < core_->ranks.size(); ++device) {
      Core::Rank& rank = core_->ranks[device];
      if (!rank.awaited) continue;
      if (late && !rank.verifying) {
        given_up.push_back(rank.member.id());
        rank.awaited = false;
        core_->Changed();
        continue;
      }
      fmt::format_to(std::back_inserter(rank.verifying ? verifying : awaited), " {}", device);
    }
  }
  for (const std::string& member : given_up) {
    spdlog::warn(
        "no engine resumed the rank of the previous agent, it becomes a new member member={}",
        member);
  }
  if (awaited.empty() && verifying.empty()) return false;
  if (why != nullptr) {
    *why = "resuming after the previous agent died:";
    if (!verifying.empty())
      *why += " verifying the pieces that engines retained on devices" + verifying;
    if (!awaited.empty()) {
      *why += (verifying.empty() ? "" : ",") + (" waiting for the engines of devices" + awaited);
    }
  }
  return true;
}

Status Resumption::CheckResume(uint32_t device, const v1::Resume& resume) const {
  if (device >= core_->ranks.size() || !core_->ranks[device].awaited) {
    return {Code::kEngine,
            fmt::format(
                "device {} does not wait for an engine of a previous agent; attach as a new engine",
                device)};
  }
  if (core_->ranks[device].verifying) {
    return {Code::kWrongPhase,
            fmt::format(
                "device {}: the pieces that its engine retained are being verified; retry later",
                device)};
  }
  const std::string& id = core_->ranks[device].member.id();
  const size_t stem = id.rfind('/') + 1;
  if (resume.member().substr(0, stem) != id.substr(0, stem)) {
    return {Code::kEngine, fmt::format("member {} does not belong to device {} of this pod",
                                       resume.member(), device)};
  }
  return OkStatus();
}

Result<std::unique_ptr<RankMemory::Adoption>> Resumption::Examine(RankMemory* memory,
                                                                  const v1::Resume& resume,
                                                                  int32_t* rank, KeptFds kept,
                                                                  std::stop_token stop) const {
  *rank = -1;
  const ExecutorOptions& options = core_->options;
  if (resume.has_layout()) {
    if (resume.layout().world() != options.world ||
        resume.layout().revision() != options.revision) {
      return Status{Code::kEngine, fmt::format("the engine has world '{}' and revision '{}', this "
                                               "agent has world '{}' and revision '{}'",
                                               resume.layout().world(), resume.layout().revision(),
                                               options.world, options.revision)};
    }
    TANGRAM_RETURN_IF_ERROR(layout::Validate(resume.layout(), core_->geometry));
    *rank = layout::RankOf(resume.layout(), resume.member());
  }
  auto adoption = memory->Examine(resume, *rank, std::move(kept), std::move(stop));
  if (!adoption.ok()) return adoption.status();
  TANGRAM_RETURN_IF_ERROR(AgentGate::Check(static_cast<GatePage*>((*adoption)->control()),
                                           core_->geometry.moe_layers(),
                                           core_->geometry.experts()));
  return adoption;
}

Result<ShownFds> Resumption::Resume(uint32_t device, const v1::Resume& resume, KeptFds kept,
                                    std::stop_token stop) {
  (void)Resuming(nullptr);  // after resume_wait no engine is awaited
  {
    const std::scoped_lock lock(core_->mu);
    TANGRAM_RETURN_IF_ERROR(CheckResume(device, resume));
    core_->ranks[device].verifying = true;
  }
  Core::Rank& rank = core_->ranks[device];
  int32_t in_layout = -1;
  // Reads gigabytes; the driver does not wait for it.
  auto adoption = Examine(rank.memory, resume, &in_layout, std::move(kept), std::move(stop));
  std::shared_ptr<const v1::Layout> layout;
  std::string hash;
  GatePage* page = adoption.ok() ? static_cast<GatePage*>((*adoption)->control()) : nullptr;
  if (in_layout >= 0) {
    layout = std::make_shared<const v1::Layout>(resume.layout());
    hash = layout::HashOf(*layout);
  }
  const std::scoped_lock call(core_->calls);
  const Status adopted = adoption.ok() ? rank.memory->Adopt(adoption->get()) : adoption.status();
  if (adopted.ok()) {
    // Nothing fails from here on: the rank uses the engine's memory.
    TakeOver(&rank, resume, in_layout, std::move(layout), std::move(hash), page);
  } else if (!adoption.ok()) {
    spdlog::error("retained pieces not adopted device={} error=\"{}\"", device, adopted.message());
  }
  const std::scoped_lock lock(core_->mu);
  rank.verifying = false;
  if (adopted.ok()) rank.awaited = false;
  core_->Changed();
  if (!adopted.ok()) return adopted;
  return (*adoption)->descriptors();
}

// The rank is reported as resuming until all of this is done.
void Resumption::TakeOver(Core::Rank* rank, const v1::Resume& resume, int32_t in_layout,
                          std::shared_ptr<const v1::Layout> layout, std::string hash,
                          GatePage* page) {
  attempt::Resumed resumed{.device = static_cast<uint32_t>(rank - core_->ranks.data()),
                           .member = resume.member(),
                           .rank = in_layout,
                           .epoch = layout ? layout->epoch() : 0};
  {
    const std::scoped_lock lock(core_->mu);
    rank->gate = AgentGate::TakeOver(page);
    rank->member.set_id(resume.member());
    rank->layout = std::move(layout);
    rank->layout_hash = std::move(hash);
    if (in_layout >= 0) core_->peers_now.assign(resume.peers().begin(), resume.peers().end());
    resumed.attempt = rank->gate.attempt();
  }
  (void)runner_->Run(resumed);
  spdlog::info("member resumed without reading the checkpoint member={} epoch={}", resume.member(),
               resumed.epoch);
}

}  // namespace tangram
