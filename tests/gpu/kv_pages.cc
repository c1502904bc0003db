#include "tests/gpu/kv_pages.h"

#include <algorithm>
#include <numeric>

#include "tests/gpu/draw.h"

namespace tangram::gpu {

KvRanks::KvRanks(const KvShape& shape, uint64_t ranks, uint64_t requests, uint64_t longest,
                 uint64_t seed)
    : shape_(shape), blocks_(ranks) {
  Draw draw(seed);
  for (uint64_t i = 0; i < requests; ++i) {
    for (uint64_t left = draw.From(longest / 8, longest); left > 0;) {
      const uint64_t tokens = std::min(left, shape.tokens);
      blocks_[i % ranks].push_back({tokens, 0, 0});
      left -= tokens;
      ++all_blocks_;
    }
  }
  // Blocks have no order, as after some hours of serving.
  const auto numbers = [&](uint64_t count) {
    std::vector<uint64_t> out(count);
    std::iota(out.begin(), out.end(), 0);
    std::shuffle(out.begin(), out.end(), draw.engine());
    return out;
  };
  const auto split = numbers(all_blocks_);
  size_t next = 0;
  for (auto& blocks : blocks_) {
    const auto own = numbers(blocks.size());
    for (size_t i = 0; i < blocks.size(); ++i) {
      blocks[i].number = own[i];
      blocks[i].split = split[next++];
    }
    most_blocks_ = std::max<uint64_t>(most_blocks_, blocks.size());
  }
}

uint64_t KvRanks::whole_bytes() const {
  return shape_.layers * most_blocks_ * shape_.block_bytes(shape_.heads);
}
uint64_t KvRanks::split_bytes() const {
  return shape_.layers * all_blocks_ * shape_.block_bytes(1);
}

uint64_t KvRanks::moved_bytes() const {
  uint64_t tokens = 0;
  for (const auto& blocks : blocks_) {
    for (const KvBlock& block : blocks) tokens += block.tokens;
  }
  return ranks() * shape_.layers * tokens * 2 * shape_.row_bytes;
}

KvRanks::Place KvRanks::Whole(const Buffers& regions, uint64_t rank, const KvBlock& block,
                              uint64_t head) const {
  return {regions[rank]->address(), most_blocks_, shape_.heads, block.number, head};
}
KvRanks::Place KvRanks::Split(const Buffers& regions, uint64_t rank, const KvBlock& block) const {
  return {regions[rank]->address(), all_blocks_, 1, block.split, 0};
}

kernels::KvMove KvRanks::MoveOf(const Place& to, const Place& from, uint64_t tokens) const {
  const auto at = [&](const Place& p) {
    return p.address + p.block * shape_.block_bytes(p.heads) + p.head * shape_.row_bytes;
  };
  const auto page = [&](const Place& p) { return p.blocks * shape_.block_bytes(p.heads); };
  return {at(to),
          page(to),
          shape_.part_bytes(to.heads),
          to.heads * shape_.row_bytes,
          at(from),
          page(from),
          shape_.part_bytes(from.heads),
          from.heads * shape_.row_bytes,
          shape_.layers,
          2,
          tokens,
          shape_.row_bytes,
          0};
}

MoveList::MoveList(const Gpu& gpu, std::vector<kernels::KvMove> moves) {
  const uint64_t units = kernels::NumberKvMoves(moves);
  list_ = UploadList(gpu, moves);
  parameters_ = {list_->address(), moves.size(), units};
}

void MoveList::Launch(const Kernels& kernels, uint32_t most_blocks, CUstream stream) const {
  kernels.Launch("kv_by_head", kernels::KvByHeadLaunch(parameters_, most_blocks), parameters_,
                 stream);
}

}  // namespace tangram::gpu
