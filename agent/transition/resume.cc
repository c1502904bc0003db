// An agent that comes after one that died: engines that lived on hand over what they kept.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>

#include "agent/transition/executor.h"

namespace tangram {

bool Executor::Resuming(std::string* why) {
  const std::scoped_lock lock(mu_);
  const bool late = options_.now() >= resume_until_;
  std::string awaited, verifying;
  for (uint32_t device = 0; device < ranks_.size(); ++device) {
    Rank& rank = ranks_[device];
    if (!rank.awaited) continue;
    if (late && !rank.verifying) {
      spdlog::warn("no engine brought the rank of the agent before; it is the new member {}",
                   rank.member.id());
      rank.awaited = false;
      Changed();
      continue;
    }
    fmt::format_to(std::back_inserter(rank.verifying ? verifying : awaited), " {}", device);
  }
  if (awaited.empty() && verifying.empty()) return false;
  if (why != nullptr) {
    *why = "resuming after the death of the agent before:";
    if (!verifying.empty()) *why += " verifying what the engines kept of devices" + verifying;
    if (!awaited.empty()) {
      *why += (verifying.empty() ? "" : ",") + (" waiting for the engines of devices" + awaited);
    }
  }
  return true;
}

Status Executor::CheckResume(uint32_t device, const v1::Resume& resume) {
  if (device >= ranks_.size() || !ranks_[device].awaited) {
    return {Code::kEngine, fmt::format("device {} waits for no engine of an earlier agent: attach "
                                       "as a new one",
                                       device)};
  }
  if (ranks_[device].verifying) {
    return {Code::kWrongPhase,
            fmt::format("what an engine kept of device {} is being verified; ask again", device)};
  }
  const std::string& id = ranks_[device].member.id();
  const size_t stem = id.rfind('/') + 1;
  if (resume.member().substr(0, stem) != id.substr(0, stem)) {
    return {Code::kEngine,
            fmt::format("member {} is not of this pod's device {}", resume.member(), device)};
  }
  return OkStatus();
}

Result<std::unique_ptr<RankMemory::Adoption>> Executor::Examine(RankMemory* memory,
                                                                const v1::Resume& resume,
                                                                int32_t* rank,
                                                                std::vector<UniqueFd> fds,
                                                                std::stop_token stop) const {
  *rank = -1;
  if (resume.has_layout()) {
    if (resume.layout().world() != options_.world ||
        resume.layout().revision() != options_.revision) {
      return Status{Code::kEngine,
                    fmt::format("the engine is in world '{}' with revision '{}', this "
                                "agent in '{}' with '{}'",
                                resume.layout().world(), resume.layout().revision(), options_.world,
                                options_.revision)};
    }
    TANGRAM_RETURN_IF_ERROR(layout::Validate(resume.layout(), geometry_));
    *rank = layout::RankOf(resume.layout(), resume.member());
  }
  auto adoption = memory->Examine(resume, *rank, std::move(fds), std::move(stop));
  if (!adoption.ok()) return adoption.status();
  TANGRAM_RETURN_IF_ERROR(AgentGate::Check(static_cast<GatePage*>((*adoption)->control()),
                                           geometry_.moe_layers(), geometry_.experts()));
  return adoption;
}

Status Executor::Resume(uint32_t device, const v1::Resume& resume, std::vector<UniqueFd> fds,
                        std::stop_token stop) {
  (void)Resuming();  // past the time limit nobody is awaited
  RankMemory* memory = nullptr;
  {
    const std::scoped_lock lock(mu_);
    TANGRAM_RETURN_IF_ERROR(CheckResume(device, resume));
    ranks_[device].verifying = true;
    memory = ranks_[device].memory;
  }
  int32_t in_layout = -1;
  // Without a lock: gigabytes. What the rank had before goes with it, as late.
  auto adoption = Examine(memory, resume, &in_layout, std::move(fds), std::move(stop));
  const std::scoped_lock call(call_mu_);
  const std::scoped_lock lock(mu_);
  Rank& rank = ranks_[device];
  rank.verifying = false;
  Changed();
  if (!adoption.ok()) {
    spdlog::error("device {}: what the engine kept is not taken over: {}", device,
                  adoption.status().message());
    return adoption.status();
  }
  auto* page = static_cast<GatePage*>((*adoption)->control());
  TANGRAM_RETURN_IF_ERROR(memory->Adopt(adoption->get()));
  // From here on nothing fails: the rank stands on the engine's memory.
  rank.gate = AgentGate::TakeOver(page);
  rank.member.set_id(resume.member());
  rank.awaited = false;
  rank.rank = in_layout;
  rank.layout = in_layout >= 0 ? std::make_shared<const v1::Layout>(resume.layout()) : nullptr;
  if (in_layout >= 0) peers_now_.assign(resume.peers().begin(), resume.peers().end());
  // Whatever the agent before had begun is over here, so that its number is, too.
  highest_ = std::max(highest_, rank.gate.attempt());
  spdlog::info("member {} resumed at epoch {}: nothing was read again", resume.member(),
               in_layout >= 0 ? resume.layout().epoch() : 0);
  return OkStatus();
}

}  // namespace tangram
