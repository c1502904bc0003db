// The experts of the act `tokens`, on virtual ranks: whole, a handle each, in slots of their rank's
// addresses; and sliced.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/gpu/decoder_shape.h"
#include "tests/gpu/kernel.h"

namespace tangram::gpu {

class DecoderExperts {
 public:
  // Who has which whole expert: [layer][expert].
  using Owners = std::vector<std::vector<uint64_t>>;

  // Weights follow from the seed and from the expert's number alone.
  DecoderExperts(const Gpu& gpu, const Kernels& kernels, const DecoderShape& shape, uint64_t ranks,
                 uint64_t seed);
  ~DecoderExperts();

  // In order over the ranks.
  Owners InOrder() const;
  // As read from a checkpoint.
  void LoadWhole(const Owners& owners);
  void LoadSliced();
  // From the other layout, by one launch for each rank, on this stream.
  void StageSliced(CUstream stream);
  void StageWhole(CUstream stream);
  // The memory of that layout is somebody else's now: it has other bytes.
  void SpoilWhole();
  void SpoilSliced();

  const Owners& owners() const { return owners_; }
  // Two whole experts of a layer change places by their pages; the owners have each other's.
  void Exchange(uint64_t layer, uint64_t a, uint64_t b);
  // The last rank's whole experts are gone.
  void KillTheLast();
  // They are read again, to the others in turn.
  void Repair();

  // Addresses, 0 where it is not: [rank][layer][expert].
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
  const uint64_t ranks_, seed_, pitch_, slots_;    // of a rank in a layer
  std::vector<std::unique_ptr<Range>> whole_;      // [rank]
  Buffers sliced_;                                 // [rank]; empty before they are wanted
  std::vector<std::vector<Slot>> at_;              // [layer][expert]
  std::vector<std::vector<uint64_t>> taken_;       // [rank][layer]: slots
  std::vector<std::unique_ptr<StripList>> lists_;  // of what is staged last
  Owners owners_;
};

}  // namespace tangram::gpu
