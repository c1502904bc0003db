// An agent that comes after one that died: engines that lived on hand over what they kept.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "agent/transition/executor.h"

namespace tangram {

bool Executor::Resuming() {
  const std::scoped_lock lock(mu_);
  const bool awaited =
      std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.awaited; });
  if (!awaited || Clock::now() < resume_until_) return awaited;
  for (Rank& rank : ranks_) {
    if (!rank.awaited) continue;
    spdlog::warn("no engine brought the rank of the agent before; it is the new member {}",
                 rank.member.id());
    rank.awaited = false;
  }
  Changed();
  return false;
}

Status Executor::Resume(uint32_t device, const v1::Resume& resume, std::vector<UniqueFd> fds) {
  (void)Resuming();  // past the time limit nobody is awaited
  const std::scoped_lock call(call_mu_);
  const std::scoped_lock lock(mu_);
  if (device >= ranks_.size() || !ranks_[device].awaited) {
    return {Code::kEngine, fmt::format("device {} waits for no engine of an earlier agent: attach "
                                       "as a new one",
                                       device)};
  }
  Rank& rank = ranks_[device];
  const std::string& id = rank.member.id();
  const size_t stem = id.rfind('/') + 1;
  if (resume.member().substr(0, stem) != id.substr(0, stem)) {
    return {Code::kEngine,
            fmt::format("member {} is not of this pod's device {}", resume.member(), device)};
  }
  int32_t in_layout = -1;
  if (resume.has_layout()) {
    if (resume.layout().world() != options_.world ||
        resume.layout().revision() != options_.revision) {
      return {Code::kEngine, fmt::format("the engine is in world '{}' with revision '{}', this "
                                         "agent in '{}' with '{}'",
                                         resume.layout().world(), resume.layout().revision(),
                                         options_.world, options_.revision)};
    }
    TANGRAM_RETURN_IF_ERROR(layout::Validate(resume.layout(), geometry_));
    in_layout = layout::RankOf(resume.layout(), resume.member());
  }
  TANGRAM_RETURN_IF_ERROR(rank.memory->Adopt(resume, in_layout, std::move(fds)));
  auto gate = AgentGate::TakeOver(static_cast<GatePage*>(rank.memory->Regions().control),
                                  geometry_.moe_layers(), geometry_.experts());
  if (!gate.ok()) return gate.status();
  rank.gate = *gate;
  rank.member.set_id(resume.member());
  rank.awaited = false;
  rank.rank = in_layout;
  rank.layout = in_layout >= 0 ? std::make_shared<const v1::Layout>(resume.layout()) : nullptr;
  if (in_layout >= 0) peers_now_.assign(resume.peers().begin(), resume.peers().end());
  // Whatever the agent before had begun is over here, so that its number is, too.
  highest_ = std::max(highest_, rank.gate.attempt());
  spdlog::info("member {} resumed at epoch {}: nothing was read again", resume.member(),
               in_layout >= 0 ? resume.layout().epoch() : 0);
  Changed();
  return OkStatus();
}

}  // namespace tangram
