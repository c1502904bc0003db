#include "agent/engine/turn/preparation.h"

#include <algorithm>

#include "agent/engine/world/groups.h"

namespace tangram::engine {
namespace {

// Whether every layer can be computed. The agents have validated that pieces are complete; this
// checks the engine's further assumptions.
Status Sane(const tg_maps& target, const tg_model& model) {
  for (uint32_t l = 0; l < model.layers; ++l) {
    const tg_layer_map& layer = target.layers[l];
    if (layer.moe_ordinal < 0) continue;
    for (uint32_t e = 0; e < model.experts; ++e) {
      const tg_expert& expert = layer.experts[e];
      for (uint32_t a = 0; a < expert.replicas; ++a) {
        uint32_t next = 0;
        for (uint32_t s = 0; s < expert.shards; ++s) {
          const tg_piece& piece = expert.pieces[a * expert.shards + s];
          if (piece.granule_count > 0 && piece.granule_start != next) next = model.granules + 1;
          next += piece.granule_count;
        }
        if (next != model.granules) {
          return {Code::kInvalid, "layer " + std::to_string(l) + " expert " + std::to_string(e) +
                                      " copy " + std::to_string(a) + " does not hold the " +
                                      std::to_string(model.granules) + " granules exactly once"};
        }
      }
      if (expert.replicas == 0) {
        return {Code::kInvalid,
                "layer " + std::to_string(l) + " expert " + std::to_string(e) + " is on no rank"};
      }
    }
  }
  return OkStatus();
}

}  // namespace

Result<Preparation> Preparation::Begin(const tg_event& event, const tg_model& model, Mesh* mesh,
                                       const Limits& limits, Patience* patience,
                                       Clock::time_point now) {
  const tg_maps& maps = *event.target;
  Preparation out;
  out.attempt_ = event.attempt;
  out.target_epoch_ = event.target_epoch;
  out.deadline_ = now + limits.connect;
  out.repair_ = event.repair != 0;
  if (event.pause_steps != 0 && !out.repair_) out.paused_until_ = now + limits.most_paused;
  TANGRAM_RETURN_IF_ERROR(Sane(maps, model));
  Result<std::vector<kv::LayerGroups>> groups = GroupsOf(maps, model);
  if (!groups.ok()) return groups.status();
  out.target_.groups = std::move(*groups);
  out.target_.members.assign(maps.members, maps.members + maps.world_size);
  if (maps.rank < 0) return out;  // a leaver makes no connections
  // The agents flip a first layout (epoch 1, or any whose new members serve immediately) and report
  // it by an event. Only a joiner, which owns nothing yet (architecture 8), follows members that it
  // sees step.
  bool serves = false;
  for (const kv::Group& group : out.target_.groups.front()) {
    serves = serves || std::count(group.ranks.begin(), group.ranks.end(),
                                  static_cast<uint32_t>(maps.rank)) > 0;
  }
  out.joins_ = event.joining != 0 && event.target_epoch > 1 && !serves;

  std::vector<PeerAddress> peers;
  for (uint32_t r = 0; r < maps.world_size; ++r) {
    peers.push_back({maps.members[r], maps.mesh[r], maps.pods[r]});
  }
  mesh->Want(peers);
  out.peers_ = out.target_.members;
  out.comm_ = Communicator(mesh, event.target_epoch, static_cast<uint32_t>(maps.rank),
                           out.target_.members, patience);
  return out;
}

Status Preparation::Answer(const Mesh& mesh, WorldView* world, Clock::time_point now) {
  if (answered_) return OkStatus();
  const std::string missing = mesh.Missing(peers_);
  if (missing.empty()) {
    answered_ = true;
    return world->Prepared(attempt_, true, "");
  }
  if (now < deadline_) return OkStatus();
  answered_ = true;
  return world->Prepared(attempt_, false, "no connection in time with " + missing);
}

}  // namespace tangram::engine
