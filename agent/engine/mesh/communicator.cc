#include "agent/engine/mesh/communicator.h"

#include <algorithm>
#include <utility>

namespace tangram::engine {

Communicator::Communicator(Mesh* mesh, uint64_t epoch, uint32_t rank,
                           std::vector<std::string> members, Patience* patience)
    : mesh_(mesh), epoch_(epoch), rank_(rank), members_(std::move(members)), patience_(patience) {}

Status Communicator::Exchange(const Tag& tag, std::span<const std::string> members,
                              std::span<const Bytes* const> send, std::span<Bytes> recv) {
  // In a step, a rank may wait for one rank that itself waits for another one that computes; no
  // chain is longer. So three times the maximum ends a step's exchange, or some rank might wait
  // forever. In a flip a rank fetches KV for as long as its bytes take. Its pull has its own
  // limits, and beyond these it sends no heartbeat.
  const Patience::Bounds& bounds = patience_->bounds();
  std::optional<Patience::Duration> most;
  if (doing_ != TG_IN_FLIP) most = limits::kStepFactor * bounds.most;
  const Mesh::Terms terms{patience_->Limit(rows_), bounds.heartbeat(), most, point_};
  Mesh::Outcome outcome;
  const Status done = mesh_->Exchange(tag, members, send, recv, terms, &outcome);
  if (!done.ok()) {
    missed_.clear();
    for (const auto& [i, cause] : outcome.missed) {
      const auto at = std::find(members_.begin(), members_.end(), members[i]);
      Missed(static_cast<uint32_t>(at - members_.begin()), cause);
    }
    return done;
  }
  if (rows_) patience_->Learn(*rows_, outcome.took);
  return OkStatus();
}

Status Communicator::Exchange(uint64_t step, uint64_t sequence, std::span<const uint32_t> ranks,
                              const std::vector<Bytes>& send, std::vector<Bytes>* recv) {
  recv->resize(members_.size());
  std::vector<std::string> names;
  std::vector<const Bytes*> out;
  std::vector<Bytes> in(ranks.size());
  for (const uint32_t rank : ranks) {
    names.push_back(members_[rank]);
    out.push_back(&send[rank]);
  }
  TANGRAM_RETURN_IF_ERROR(Exchange({epoch_, step, sequence}, names, out, in));
  for (size_t i = 0; i < ranks.size(); ++i) (*recv)[ranks[i]] = std::move(in[i]);
  return OkStatus();
}

Status Communicator::Gather(uint64_t step, uint64_t sequence, const Bytes& mine,
                            std::vector<Bytes>* recv) {
  recv->resize(members_.size());
  const std::vector<const Bytes*> out(members_.size(), &mine);
  return Exchange({epoch_, step, sequence}, members_, out, *recv);
}

bool Communicator::Begun() const {
  for (const std::string& member : members_) {
    const std::optional<Tag> tag = mesh_->Waiting(member);
    if (tag && tag->epoch == epoch_) return true;
  }
  return false;
}

}  // namespace tangram::engine
