// The experts of the act `tokens`, on virtual ranks: whole experts with one handle each, in slots
// of their rank's address range; and sliced experts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/gpu/decoder_shape.h"
#include "tests/gpu/kernel.h"

namespace tangram::gpu {

class DecoderExperts {
 public:
  // Owners of whole experts: [layer][expert].
  using Owners = std::vector<std::vector<uint64_t>>;

  // Weights depend only on the seed and the expert's number.
  DecoderExperts(const Gpu& gpu, const Kernels& kernels, const DecoderShape& shape, uint64_t ranks,
                 uint64_t seed);
  ~DecoderExperts();

  // Experts dealt to the ranks in order.
  Owners InOrder() const;
  // Writes the weights, as from a checkpoint.
  void LoadWhole(const Owners& owners);
  void LoadSliced();
  // Copies from the other layout, with one launch per rank, on this stream.
  void StageSliced(CUstream stream);
  void StageWhole(CUstream stream);
  // Overwrites the layout's memory, which then belongs to another owner.
  void SpoilWhole();
  void SpoilSliced();

  const Owners& owners() const { return owners_; }
  // Two whole experts of a layer exchange their pages and owners.
  void Exchange(uint64_t layer, uint64_t a, uint64_t b);
  // Frees the last rank's whole experts.
  void KillTheLast();
  // Loads them again, to the other ranks in turn.
  void Repair();

  // Addresses, 0 where absent: [rank][layer][expert].
  std::vector<uint64_t> WholePlaces() const;
  std::vector<uint64_t> SlicedPlaces() const;

 private:
  struct Slot {
    uint64_t rank = 0, number = 0;  // of its layer
    std::unique_ptr<Handle> handle;
  };
  uint64_t AddressOf(uint64_t layer, const Slot& slot) const;
  uint64_t SliceAt(uint64_t rank, uint64_t layer, uint64_t expert) const;
  void Fill(uint64_t to, uint64_t layer, uint64_t expert, uint64_t seed) const;
  void Put(uint64_t layer, uint64_t expert, uint64_t rank);
  void Drop(uint64_t layer, uint64_t expert);
  void Stage(bool to_sliced, CUstream stream);

  const Gpu& gpu_;
  const Kernels& kernels_;
  const DecoderShape shape_;
  const uint64_t ranks_, seed_, pitch_, slots_;    // slots of a rank in a layer
  std::vector<std::unique_ptr<Range>> whole_;      // [rank]
  Buffers sliced_;                                 // [rank]; empty before first use
  std::vector<std::vector<Slot>> at_;              // [layer][expert]
  std::vector<std::vector<uint64_t>> taken_;       // [rank][layer]: used slots
  std::vector<std::unique_ptr<StripList>> lists_;  // of the last staging
  Owners owners_;
};

}  // namespace tangram::gpu
