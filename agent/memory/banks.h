// The banks and the dense region of one rank: address ranges whose pages are backed one by one,
// where a piece touches them (docs/architecture.md, section 8, "Where a piece lies"). pool + mapped
// = total, always.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "agent/device/device.h"
#include "agent/layout/layout.h"

namespace tangram::memory {

// A backed part of a bank or of the dense region.
struct BankRange {
  bool dense = false;
  uint32_t bank = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
// The same with the memory behind it, for an engine to map.
struct BackedRange : BankRange {
  device::Export behind;
};

// Not thread-safe: the store calls it under its lock. Pointers stay valid until the
// bytes behind them are released.
class Banks {
 public:
  static Result<std::unique_ptr<Banks>> Make(device::Device* device,
                                             const layout::GeometryView& geometry, uint32_t banks);

  // Backs every page of the pieces; a page that two pieces touch is counted for both.
  // kNoMemory leaves everything as it was.
  Status Back(const std::vector<layout::PlacedPiece>& pieces);
  // Backs the pages of the pieces (and the dense region) with memory that an engine kept.
  // `extents_of` returns the extents behind (address in the range, bytes). kInvalid: it does not
  // know them.
  using Behind = std::function<Result<std::vector<device::Extent>>(uint64_t, uint64_t)>;
  Status Adopt(const std::vector<layout::PlacedPiece>& pieces, bool dense,
               const Behind& extents_of);
  // The address of a place in the range.
  uint64_t AddressOf(bool dense, uint32_t bank, uint64_t offset) const {
    return dense ? dense_start_ + offset : bank * bank_pitch_ + offset;
  }
  // Removes one use of each page; pages without a use return to the pool.
  void Release(const std::vector<layout::PlacedPiece>& pieces);
  Status BackDense();
  void ReleaseDense();

  device::Memory At(uint32_t bank, uint64_t offset, uint64_t bytes) const {
    return {device_, space_->address() + bank * bank_pitch_ + offset, bytes};
  }
  device::Memory Dense(uint64_t offset, uint64_t bytes) const {
    return {device_, space_->address() + dense_start_ + offset, bytes};
  }
  uint64_t mapped_bytes() const { return mapped_bytes_; }

  // Offsets of backed bytes in the device's whole memory, in order (Device::PlaceOf). kInternal:
  // some are not backed.
  Result<std::vector<device::Extent>> ExtentsOf(const device::Memory& memory) const;

  // The backed ranges of the pages that `pieces` touch (and of the dense region, if `dense`). An
  // error comes from the device: it cannot export the memory (out of descriptors, for example).
  Result<std::vector<BackedRange>> Ranges(const std::vector<layout::PlacedPiece>& pieces,
                                          bool dense) const;
  // The subset that no other piece touches (and the dense region, if `dense`); errors as above.
  Result<std::vector<BackedRange>> RangesOnlyOf(const std::vector<layout::PlacedPiece>& pieces,
                                                bool dense) const;
  // The same without the memory behind it: unmapping needs no descriptors.
  std::vector<BankRange> PlacesOnlyOf(const std::vector<layout::PlacedPiece>& pieces,
                                      bool dense) const;

  // Every backed page has exactly the uses that `pieces` give it, and no extent of the
  // device is behind two pages. kInternal names the page.
  Status Audit(const std::vector<layout::PlacedPiece>& pieces, bool dense) const;

 private:
  // The unit of backing: the pages that one piece fills alone, or a single page at its edge, which
  // a neighbour may also touch.
  struct Block {
    device::Mapping mapping;
    uint32_t uses = 0;
  };

  Banks(device::Device* device, const layout::GeometryView& geometry)
      : device_(device),
        page_(geometry.page_bytes()),
        bank_pitch_(geometry.bank_pitch()),
        dense_bytes_(layout::RoundUp(geometry.proto().dense_bytes(), page_)) {}
  struct Span {
    uint64_t address = 0;  // in the range
    uint64_t bytes = 0;
  };
  std::vector<Span> BlocksOf(const layout::PlacedPiece& piece) const;
  std::vector<Span> BlocksOf(const std::vector<layout::PlacedPiece>& pieces) const;
  Status BackBlocks(const std::vector<Span>& spans, const Behind* extents_of = nullptr);
  Status MapFresh(std::vector<Span> fresh, const Behind* extents_of);
  void ReleaseBlocks(const std::vector<Span>& spans);
  // Addresses of the blocks that no other piece touches.
  std::vector<uint64_t> AddressesOnlyOf(const std::vector<layout::PlacedPiece>& pieces,
                                        bool dense) const;
  BankRange PlaceAt(uint64_t address) const;
  Result<BackedRange> RangeAt(uint64_t address) const;
  Result<std::vector<BackedRange>> RangesAt(const std::vector<uint64_t>& addresses) const;

  device::Device* device_;
  const uint64_t page_;
  const uint64_t bank_pitch_;
  const uint64_t dense_bytes_;
  uint64_t dense_start_ = 0;
  device::SpacePtr space_;
  std::map<uint64_t, Block> blocks_;  // by address in the range
  uint64_t mapped_bytes_ = 0;         // sum of their bytes
};

}  // namespace tangram::memory
