#include "tests/gpu/experts.h"

namespace tangram::gpu {

std::vector<kernels::Section> ExpertShape::sections() const {
  const uint64_t rows = granule_rows() * hidden * 2;
  return {{1, rows}, {1, rows}, {hidden, granule_rows() * 2}};
}

uint64_t ExpertRanks::Whole(uint64_t layer, uint64_t expert) const {
  const uint64_t slot = layer * per_rank() + expert % per_rank();
  return whole_[OwnerOf(expert)]->address() + slot * shape_.expert_bytes();
}

uint64_t ExpertRanks::Slice(uint64_t rank, uint64_t layer, uint64_t expert) const {
  return sliced_[rank]->address() + (layer * shape_.experts + expert) * slice_bytes();
}

void ExpertRanks::AppendSlice(uint64_t rank, uint64_t whole_at, uint64_t piece_at, bool to_piece,
                              std::vector<kernels::CopyStrip>* strips) const {
  const uint64_t count = shape_.granules / ranks_, first = rank * count;
  const kernels::Slab whole{whole_at, shape_.granules, row_major_};
  const kernels::Slab piece{piece_at, count, row_major_};
  const auto sections = shape_.sections();
  if (to_piece) {
    kernels::AppendStrips(piece, 0, whole, first, count, sections, strips);
  } else {
    kernels::AppendStrips(whole, first, piece, 0, count, sections, strips);
  }
}

std::vector<kernels::CopyStrip> ExpertRanks::ToSliced(uint64_t rank) const {
  std::vector<kernels::CopyStrip> out;
  for (uint64_t expert = 0; expert < shape_.experts; ++expert) {  // in the order of owners
    for (uint64_t layer = 0; layer < layers_; ++layer) {
      AppendSlice(rank, Whole(layer, expert), Slice(rank, layer, expert), true, &out);
    }
  }
  return out;
}

std::vector<kernels::CopyStrip> ExpertRanks::ToWhole(uint64_t rank) const {
  std::vector<kernels::CopyStrip> out;
  for (uint64_t peer = 0; peer < ranks_; ++peer) {
    for (uint64_t layer = 0; layer < layers_; ++layer) {
      for (uint64_t e = rank * per_rank(); e < (rank + 1) * per_rank(); ++e) {
        AppendSlice(peer, Whole(layer, e), Slice(peer, layer, e), false, &out);
      }
    }
  }
  return out;
}

std::vector<std::byte> SliceOf(const ExpertShape& shape, const std::vector<std::byte>& expert,
                               uint64_t rank, uint64_t ranks, bool row_major) {
  const uint64_t count = shape.granules / ranks, first = rank * count;
  if (!row_major) {
    const auto at = expert.begin() + static_cast<int64_t>(first * shape.granule_bytes());
    return {at, at + static_cast<int64_t>(count * shape.granule_bytes())};
  }
  std::vector<std::byte> out;
  const auto take = [&](uint64_t at, uint64_t bytes) {
    const auto begin = expert.begin() + static_cast<int64_t>(at);
    out.insert(out.end(), begin, begin + static_cast<int64_t>(bytes));
  };
  const uint64_t rows = count * shape.granule_rows(), from = first * shape.granule_rows();
  const uint64_t matrix = shape.inner * shape.hidden * 2;
  for (uint64_t m = 0; m < 2; ++m) {
    take(m * matrix + from * shape.hidden * 2, rows * shape.hidden * 2);
  }
  for (uint64_t line = 0; line < shape.hidden; ++line) {
    take(2 * matrix + (line * shape.inner + from) * 2, rows * 2);
  }
  return out;
}

}  // namespace tangram::gpu
