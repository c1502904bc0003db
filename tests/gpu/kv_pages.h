// KV of requests on virtual ranks: all heads of a request on its own rank, or one head of all
// requests on each, and the moves between the two.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/parameters.h"
#include "tests/gpu/kernel.h"

namespace tangram::gpu {

// Pages as in engines: per layer all blocks, per block K and V, in these the positions, per
// position the heads.
struct KvShape {
  uint64_t layers = 0, heads = 0, tokens = 16, row_bytes = 256;  // tokens of a block

  uint64_t part_bytes(uint64_t heads_of_rank) const { return heads_of_rank * tokens * row_bytes; }
  uint64_t block_bytes(uint64_t heads_of_rank) const { return 2 * part_bytes(heads_of_rank); }
};

struct KvBlock {
  uint64_t tokens = 0;  // filled
  uint64_t number = 0;  // on its request's rank, and
  uint64_t split = 0;   // on every rank that has one head of all
};

class KvRanks {
 public:
  // Requests of an eighth of `longest` to `longest` positions, drawn from the seed, dealt to ranks.
  KvRanks(const KvShape& shape, uint64_t ranks, uint64_t requests, uint64_t longest, uint64_t seed);

  const KvShape& shape() const { return shape_; }
  uint64_t ranks() const { return blocks_.size(); }
  const std::vector<KvBlock>& blocks(uint64_t rank) const { return blocks_[rank]; }
  uint64_t all_blocks() const { return all_blocks_; }
  // Blocks of the fullest rank: every rank has room for as many.
  uint64_t most_blocks() const { return most_blocks_; }
  uint64_t whole_bytes() const;  // of a rank's region
  uint64_t split_bytes() const;
  uint64_t HeadOf(uint64_t rank) const { return rank * shape_.heads / ranks(); }
  uint64_t moved_bytes() const;  // by all ranks together

  // Place of one head of one block in all layers: in a region with all heads of a rank, in one with
  // a head of all ranks, or in a buffer of `blocks` blocks of a head in the format of a region.
  struct Place {
    uint64_t address = 0;
    uint64_t blocks = 0;  // of the region
    uint64_t heads = 0;   // in a page
    uint64_t block = 0, head = 0;
  };
  kernels::KvMove MoveOf(const Place& to, const Place& from, uint64_t tokens) const;
  Place Whole(const Buffers& regions, uint64_t rank, const KvBlock& block, uint64_t head) const;
  Place Split(const Buffers& regions, uint64_t rank, const KvBlock& block) const;

 private:
  const KvShape shape_;
  std::vector<std::vector<KvBlock>> blocks_;
  uint64_t all_blocks_ = 0, most_blocks_ = 0;
};

// A list of moves on the device.
class MoveList {
 public:
  MoveList(const Gpu& gpu, std::vector<kernels::KvMove> moves);
  void Launch(const Kernels& kernels, uint32_t most_blocks, CUstream stream) const;

 private:
  std::unique_ptr<Buffer> list_;
  kernels::KvByHeadParameters parameters_;
};

}  // namespace tangram::gpu
