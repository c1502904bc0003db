// The experts of some layers on virtual ranks: whole in one layout, sliced in the other, and the
// strips that copy between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/slab.h"
#include "tests/gpu/kernel.h"

namespace tangram::gpu {

// BF16: gate and up [inner, hidden], down [hidden, inner] of each expert.
struct ExpertShape {
  uint64_t hidden = 0, inner = 0, granules = 0, experts = 0;  // experts of a layer

  uint64_t granule_rows() const { return inner / granules; }
  uint64_t granule_bytes() const { return 3 * granule_rows() * hidden * 2; }
  uint64_t expert_bytes() const { return granules * granule_bytes(); }
  uint64_t layer_bytes() const { return experts * expert_bytes(); }
  // Sections of a granule: its rows of gate and of up; its columns of down, one line per row.
  std::vector<kernels::Section> sections() const;
};

// Places of pieces; every rank has a separate address range in each layout. `ranks` divides experts
// and granules.
class ExpertRanks {
 public:
  ExpertRanks(const ExpertShape& shape, uint64_t layers, uint64_t ranks, bool row_major,
              const Buffers& whole, const Buffers& sliced)
      : shape_(shape),
        layers_(layers),
        ranks_(ranks),
        row_major_(row_major),
        whole_(whole),
        sliced_(sliced) {}

  uint64_t ranks() const { return ranks_; }
  uint64_t layers() const { return layers_; }
  uint64_t rank_bytes() const { return layers_ * shape_.layer_bytes() / ranks_; }
  uint64_t per_rank() const { return shape_.experts / ranks_; }
  uint64_t OwnerOf(uint64_t expert) const { return expert / per_rank(); }
  // Place of a whole expert on its owner; and of a rank's slice of it, a piece.
  uint64_t Whole(uint64_t layer, uint64_t expert) const;
  uint64_t Slice(uint64_t rank, uint64_t layer, uint64_t expert) const;
  uint64_t slice_bytes() const { return shape_.expert_bytes() / ranks_; }

  // Strips that a rank fetches, peer by peer: its slices of all experts, or its own whole experts.
  std::vector<kernels::CopyStrip> ToSliced(uint64_t rank) const;
  std::vector<kernels::CopyStrip> ToWhole(uint64_t rank) const;
  // Appends the strips between a whole expert at an address and a rank's slice of it, a piece.
  void AppendSlice(uint64_t rank, uint64_t whole_at, uint64_t piece_at, bool to_piece,
                   std::vector<kernels::CopyStrip>* strips) const;

 private:
  const ExpertShape shape_;
  const uint64_t layers_, ranks_;
  const bool row_major_;
  const Buffers &whole_, &sliced_;
};

// A rank's slice of an expert, element by element from the whole one: the expected result of the
// strips.
std::vector<std::byte> SliceOf(const ExpertShape& shape, const std::vector<std::byte>& expert,
                               uint64_t rank, uint64_t ranks, bool row_major);

}  // namespace tangram::gpu
