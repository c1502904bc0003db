// The manifests of a flip, for engines that keep all KV of a request on one rank, in blocks with
// their own numbers.
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
  std::vector<uint32_t> blocks;         // on its home, in order of position
  Bytes state;                          // of the engine
  uint32_t generation = 0;              // of its KV, by the engine; only its home knows it
  // As reported while the attempt was staged (told.h): the generation, 0 for none, and the rank of
  // the target that it was promised to, -1 for none.
  uint64_t told = 0;
  int32_t promised = -1;
};

// Layers with blocks of one size: the model's, or those of drafts. Block b of layer l is
// block_bytes at offset + l * layer_stride + b * block_stride.
struct BlockSet {
  uint64_t layers = 0;
  uint64_t offset = 0, layer_stride = 0, block_stride = 0, block_bytes = 0;
  uint64_t At(uint64_t layer, uint32_t block) const {
    return offset + layer * layer_stride + block * block_stride;
  }
};

// A block is one block of every set, all with the same number.
struct BlockLayout {
  static constexpr size_t kMostSets = 8;

  std::vector<BlockSet> sets;  // the model's first
  uint32_t blocks = 0, free_blocks = 0;

  // Bytes of a block in all layers of all sets.
  uint64_t block_bytes() const;
  // Whether another rank has the same sets, in any place. For layouts checked with LiesIn.
  bool Alike(const BlockLayout& other) const;
  // Checks that the first set has `layers` layers, that all blocks are within a region of `bytes`,
  // and that no more blocks are free than exist. kInternal names the error.
  Status LiesIn(uint32_t layers, uint64_t bytes) const;

  void Encode(ByteWriter* to) const;
  // Returns no sets if there are more than kMostSets.
  static BlockLayout Decode(ByteReader* from);
};

struct BlockManifest {
  std::vector<BlockRequest> requests;  // running first
  BlockLayout kv;

  Bytes Encode() const;
  // kInternal: not a manifest of a rank with this many layers and bytes of KV: blocks beyond its
  // region, KV of more positions than blocks hold.
  static Result<BlockManifest> Decode(const Bytes& bytes, uint32_t layers, uint64_t kv_bytes,
                                      uint32_t block_tokens);
};

// A plan and its input.
struct BlockPlan {
  kv::Input input;
  kv::Plan plan;
};
// The homes of requests, by kv::MakePlan: equal at all ranks. kInvalid: a side splits heads.
// kNoMemory: it does not fit now.
Result<BlockPlan> PlanBlocks(const kv::Shape& shape, uint32_t layers, const Side& from,
                             const Side& to, const std::vector<BlockManifest>& manifests);

}  // namespace tangram::engine
