// The active epoch, as the stages of a step need it.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/engine/mesh/communicator.h"
#include "agent/engine/turn/backend.h"
#include "agent/engine/world/world.h"
#include "e2e/engine/kv/held_map.h"
#include "e2e/engine/kv/page_store.h"
#include "e2e/engine/model/model.h"
#include "e2e/engine/step/batch.h"

namespace tangram::engine {

struct StepContext {
  const model::Model& model;
  const tg_model& geometry;
  const tg_maps& maps;
  const HeldMap& held;
  Communicator& comm;
  PageStore& pages;
  model::KvRegion kv;
  WorldView& world;
  uint64_t step = 0;
  const std::vector<Batch>& batches;  // [ranks]

  uint32_t rank() const { return comm.rank(); }
};

// Sequence numbers of a step's exchanges, after the control exchange.
enum class Stage : uint64_t { kRows = 0, kHeads = 1, kDispatch = 2, kCombine = 3 };
constexpr uint64_t SequenceOf(uint32_t layer, Stage stage) {
  return kFirstSequence + uint64_t{layer} * 4 + static_cast<uint64_t>(stage);
}

}  // namespace tangram::engine
