#include "agent/transition/end.h"

#include <spdlog/spdlog.h>

#include "agent/base/fault.h"

namespace tangram {
namespace {

const fault::Point kFlipBefore("flip.before_commit", fault::kErrors);
const fault::Point kRetireBefore("retire.before", fault::kErrors);

}  // namespace

Status CommitMemory(Core* core, uint32_t device) {
  TANGRAM_RETURN_IF_ERROR(fault::Check("flip.before_commit"));
  return core->ranks[device].memory->Commit();
}

void DropAttempt(Core* core, const Job& job, const std::string& reason, bool keep) {
  v1::EngineAbort abort;
  *abort.mutable_header() = job.request.header();
  abort.set_reason(reason);
  abort.set_keep_mapped(keep);
  for (const auto& [device, part] : job.parts) {
    core->engines->Abort(device, abort);
    if (keep) {
      core->ranks[device].memory->Keep();
    } else {
      core->ranks[device].memory->Abort();
    }
  }
}

void KeepOldPlaces(Core* core, const Job& job) {
  for (const auto& [device, part] : job.parts) {
    if (part.leaving) {
      (void)core->ranks[device].memory->Retire();
    } else {
      core->ranks[device].memory->Keep();
    }
  }
}

Status ReturnOldPlaces(Core* core, const Job& job) {
  TANGRAM_RETURN_IF_ERROR(fault::Check("retire.before"));
  for (const auto& [device, part] : job.parts) {
    RankMemory& memory = *core->ranks[device].memory;
    v1::EngineUnmap unmap;
    *unmap.mutable_header() = job.request.header();
    for (v1::Mapping& m : memory.DroppedMappings()) *unmap.add_mappings() = std::move(m);
    if (unmap.mappings_size() > 0 && core->engines->Info(device).attached) {
      const Status status = core->engines->Unmap(device, unmap);
      // A detached engine has no mappings. An unresponsive one keeps read-only views of pages
      // outside its layout, which affects only its own reads.
      if (!status.ok()) {
        spdlog::warn("engine did not unmap its old pieces device={} error=\"{}\"", device,
                     status.message());
      }
    }
    TANGRAM_RETURN_IF_ERROR(memory.Retire());
  }
  return OkStatus();
}

std::set<std::string> OtherAgents(Core* core, const Job& job) {
  std::set<std::string> agents;
  for (const v1::PeerAddress& peer : job.request.peers()) agents.insert(peer.agent());
  const std::scoped_lock lock(core->mu);
  agents.erase(core->address.agent());
  return agents;
}

// kBurned: another agent aborted without a flip. Its vote is missing in the step that ours was for,
// so no rank can have a go. kFlipped: all ranks voted.
attempt::PeersSaid AskPeersOf(Core* core, const Job& job, const std::stop_token& stop) {
  v1::QueryRequest query;
  *query.mutable_header() = job.request.header();
  bool burned = false, flipped = false;
  AskAll(core->peers, OtherAgents(core, job), query, stop,
         [&](const std::string&, const v1::QueryResponse& seen) {
           burned |= seen.phase() == v1::PHASE_IDLE && !seen.voted();
           flipped |= seen.flipped();
           return flipped;
         });
  attempt::PeersSaid said{.attempt = job.id, .gone = {}};
  said.say = flipped  ? attempt::Say::kFlipped
             : burned ? attempt::Say::kBurned
                      : attempt::Say::kNothing;
  if (said.say != attempt::Say::kBurned) return said;
  for (const auto& [device, part] : job.parts) {
    const EngineInfo engine = core->engines->Info(device);
    if (!engine.attached || engine.incarnation != part.incarnation) said.gone.insert(device);
  }
  return said;
}

}  // namespace tangram
