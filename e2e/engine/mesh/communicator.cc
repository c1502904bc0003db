#include "e2e/engine/mesh/communicator.h"

#include <utility>

namespace tangram::engine {

Communicator::Communicator(Mesh* mesh, uint64_t epoch, uint32_t rank,
                           std::vector<std::string> members, std::chrono::milliseconds timeout)
    : mesh_(mesh), epoch_(epoch), rank_(rank), members_(std::move(members)), timeout_(timeout) {}

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
  TANGRAM_RETURN_IF_ERROR(mesh_->Exchange({epoch_, step, sequence}, names, out, in, timeout_));
  for (size_t i = 0; i < ranks.size(); ++i) (*recv)[ranks[i]] = std::move(in[i]);
  return OkStatus();
}

Status Communicator::Gather(uint64_t step, uint64_t sequence, const Bytes& mine,
                            std::vector<Bytes>* recv) {
  recv->resize(members_.size());
  const std::vector<const Bytes*> out(members_.size(), &mine);
  return mesh_->Exchange({epoch_, step, sequence}, members_, out, *recv, timeout_);
}

bool Communicator::Begun() const {
  for (const std::string& member : members_) {
    const std::optional<Tag> tag = mesh_->Waiting(member);
    if (tag && tag->epoch == epoch_) return true;
  }
  return false;
}

}  // namespace tangram::engine
