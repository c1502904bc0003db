#include "agent/engine/rows/mesh_links.h"

#include <utility>

#include "agent/base/fault.h"

namespace tangram::engine {

namespace {

const fault::Point kInDispatch("engine.in_dispatch");
const fault::Point kInCombine("engine.in_combine");

}  // namespace

void MeshLinks::Begin(Communicator* comm, uint64_t step, uint64_t sequence, uint32_t layer,
                      std::vector<uint32_t> ranks) {
  comm_ = comm;
  layer_ = layer;
  step_ = step;
  sequence_ = sequence;
  settled_ = false;
  among_ = std::move(ranks);
  if (links_.size() != comm->size()) {
    links_.clear();
    for (uint32_t r = 0; r < comm->size(); ++r) links_.emplace_back(this, r);
  }
  for (Way& way : ways_) {
    way.send.assign(comm->size(), {});
    way.came.assign(comm->size(), {});
  }
}

Status MeshLinks::Settle(dispatch::Lane lane) {
  if (comm_->size() == 1) return OkStatus();
  Way& way = this->way(lane);
  settled_ = true;
  Doing(lane);
  const Status done =
      comm_->Exchange(step_, sequence_ + static_cast<uint64_t>(lane), among_, way.send, &way.came);
  comm_->SetDoing(TG_IN_EXCHANGE);
  return done;
}

void MeshLinks::Doing(dispatch::Lane lane) {
  if (lane == dispatch::Lane::kDispatch) {
    comm_->SetDoing(TG_IN_DISPATCH, layer_, "engine.in_dispatch");
  } else {
    comm_->SetDoing(TG_IN_COMBINE, layer_, "engine.in_combine");
  }
}

void MeshLinks::TellHostile(uint32_t rank, dispatch::Lane lane) {
  Doing(lane);
  comm_->Missed(rank, TG_HOSTILE);
  comm_->SetDoing(TG_IN_EXCHANGE);
}

Status MeshLinks::MeshLink::Work() {
  if (!all_->settled_) return OkStatus();
  return {Code::kInternal, "incomplete message"};
}

std::span<uint8_t> MeshLinks::MeshLink::Room(dispatch::Lane lane, size_t want) {
  Bytes& bytes = all_->way(lane).send[rank_];
  bytes.resize(want);
  return bytes;
}

void MeshLinks::MeshLink::Publish(dispatch::Lane lane, size_t bytes) {
  all_->way(lane).send[rank_].resize(bytes);
}

std::span<const uint8_t> MeshLinks::MeshLink::Front(dispatch::Lane lane) {
  return all_->way(lane).came[rank_];
}

void MeshLinks::MeshLink::Pop(dispatch::Lane lane) { all_->way(lane).came[rank_].clear(); }

}  // namespace tangram::engine
