// What ranks tell each other at a flip whose engines keep all KV of a request on one rank, in
// blocks of their own numbering.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "agent/engine/turn/side.h"
#include "agent/engine/wire/bytes.h"
#include "agent/kv/plan.h"

namespace tangram::engine {

struct BlockRequest {
  std::string request, gateway;
  bool running = false;
  uint32_t computed = 0, reserved = 0;  // positions
  std::vector<uint32_t> blocks;         // of its home, in order of position
  Bytes state;                          // the engine's own
  uint32_t generation = 0;              // of its KV, the engine's; its home alone knows it
  // What was told of it while the attempt was staged (told.h): the generation, 0 for nothing, and
  // the rank of the target that it was promised to, -1 for none.
  uint64_t told = 0;
  int32_t promised = -1;
};

// Layers whose blocks are of one size: those of the model, or those of drafts. Block b of layer l
// is block_bytes at offset + l * layer_stride + b * block_stride.
struct BlockSet {
  uint64_t layers = 0;
  uint64_t offset = 0, layer_stride = 0, block_stride = 0, block_bytes = 0;
  uint64_t At(uint64_t layer, uint32_t block) const {
    return offset + layer * layer_stride + block * block_stride;
  }
};

// A block is one of every set, under one number.
struct BlockLayout {
  static constexpr size_t kMostSets = 8;

  std::vector<BlockSet> sets;  // the model's first
  uint32_t blocks = 0, free_blocks = 0;

  // Of a block in all layers of all sets.
  uint64_t block_bytes() const;
  // Has another rank the same sets, wherever they lie? What was checked with LiesIn.
  bool Alike(const BlockLayout& other) const;
  // Is the first set that of so many layers, do all blocks lie in a region of so many bytes, and
  // are no more free than there are? kInternal says what is wrong.
  Status LiesIn(uint32_t layers, uint64_t bytes) const;

  void Encode(ByteWriter* to) const;
  // Of no sets if there are more than kMostSets.
  static BlockLayout Decode(ByteReader* from);
};

struct BlockManifest {
  std::vector<BlockRequest> requests;  // running first
  BlockLayout kv;

  Bytes Encode() const;
  // kInternal: not a manifest of a rank with so many layers and bytes of KV: blocks beyond its
  // region, KV of more positions than blocks hold.
  static Result<BlockManifest> Decode(const Bytes& bytes, uint32_t layers, uint64_t kv_bytes,
                                      uint32_t block_tokens);
};

// A plan, and what it was made from.
struct BlockPlan {
  kv::Input input;
  kv::Plan plan;
};
// Where requests go, by kv::MakePlan: equal at all ranks. kInvalid: a side splits heads.
// kNoMemory: it does not fit now.
Result<BlockPlan> PlanBlocks(const kv::Shape& shape, uint32_t layers, const Side& from,
                             const Side& to, const std::vector<BlockManifest>& manifests);

}  // namespace tangram::engine
