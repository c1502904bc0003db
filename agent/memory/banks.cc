#include "agent/memory/banks.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace tangram::memory {

using layout::PlacedPiece;

Result<std::unique_ptr<Banks>> Banks::Make(device::Device* device,
                                           const layout::GeometryView& geometry, uint32_t count) {
  std::unique_ptr<Banks> banks(new Banks(device, geometry));
  banks->dense_start_ = uint64_t{count} * banks->bank_pitch_;
  auto space = device->Reserve(banks->dense_start_ + banks->dense_bytes_);
  if (!space.ok()) return space.status();
  banks->space_ = std::move(space).value();
  return banks;
}

std::vector<Banks::Span> Banks::BlocksOf(const PlacedPiece& piece) const {
  const uint64_t begin = piece.bank * bank_pitch_ + piece.offset;
  const uint64_t end = begin + piece.bytes;
  const uint64_t first = begin / page_ * page_;
  const uint64_t last = (end - 1) / page_ * page_;
  // Whole experts at page pitch own their last page, even where they do not fill it. A page at an
  // edge is counted separately. Blocks always end at these edges, so the blocks of neighbours are
  // the same in every order of arrival.
  std::vector<Span> out;
  uint64_t inner = first;
  if (begin != first || last == first) {
    out.push_back({first, page_});
    inner += page_;
  }
  const uint64_t inner_end = end % page_ == 0 ? end : last;
  if (inner < inner_end) out.push_back({inner, inner_end - inner});
  if (last != first && end % page_ != 0) out.push_back({last, page_});
  return out;
}

std::vector<Banks::Span> Banks::BlocksOf(const std::vector<PlacedPiece>& pieces) const {
  std::vector<Span> out;
  for (const PlacedPiece& piece : pieces) {
    const std::vector<Span> of = BlocksOf(piece);
    out.insert(out.end(), of.begin(), of.end());
  }
  return out;
}

// Sorted by address: neighbours in the bank then are neighbours in the pool too, where it has room,
// and are mapped as one.
Status Banks::MapFresh(std::vector<Span> fresh, const Behind* extents_of) {
  std::sort(fresh.begin(), fresh.end(),
            [](const Span& a, const Span& b) { return a.address < b.address; });
  std::vector<device::Placement> placements;
  placements.reserve(fresh.size());
  for (const Span& span : fresh) {
    const auto memory = [&]() -> Result<device::BlockPtr> {
      if (extents_of == nullptr) return device_->Create(span.bytes);
      auto extents = (*extents_of)(span.address, span.bytes);
      if (!extents.ok()) return extents.status();
      return device_->Claim(*extents);
    };
    auto block = memory();
    if (!block.ok()) return block.status();
    placements.push_back({span.address, std::move(block).value(), {0, span.bytes}});
  }
  auto mapped = device_->Map(space_, placements, device::Access::kReadWrite);
  if (!mapped.ok()) return mapped.status();
  for (device::Mapping& mapping : *mapped) {
    mapped_bytes_ += mapping.bytes();
    blocks_.at(mapping.at()).mapping = std::move(mapping);
  }
  return OkStatus();
}

Status Banks::BackBlocks(const std::vector<Span>& spans, const Behind* extents_of) {
  std::vector<Span> fresh;
  for (const Span& span : spans) {
    if (++blocks_[span.address].uses == 1) fresh.push_back(span);
  }
  Status status = MapFresh(std::move(fresh), extents_of);
  if (!status.ok()) ReleaseBlocks(spans);
  return status;
}

void Banks::ReleaseBlocks(const std::vector<Span>& spans) {
  std::vector<device::Mapping> gone;
  for (const Span& span : spans) {
    const auto it = blocks_.find(span.address);
    if (it == blocks_.end() || --it->second.uses > 0) continue;
    mapped_bytes_ -= it->second.mapping.bytes();
    gone.push_back(std::move(it->second.mapping));
    blocks_.erase(it);
  }
  // Copies to these addresses have ended: their callers waited for them.
  device_->Release(std::move(gone), device::Event::Finished(OkStatus()));
}

Status Banks::Back(const std::vector<PlacedPiece>& pieces) { return BackBlocks(BlocksOf(pieces)); }

Status Banks::Adopt(const std::vector<PlacedPiece>& pieces, bool dense, const Behind& extents_of) {
  std::vector<Span> spans = BlocksOf(pieces);
  if (dense && dense_bytes_ > 0) spans.push_back({dense_start_, dense_bytes_});
  return BackBlocks(spans, &extents_of);
}

void Banks::Release(const std::vector<PlacedPiece>& pieces) { ReleaseBlocks(BlocksOf(pieces)); }

Status Banks::BackDense() {
  return dense_bytes_ == 0 ? OkStatus() : BackBlocks({{dense_start_, dense_bytes_}});
}

void Banks::ReleaseDense() { ReleaseBlocks({{dense_start_, dense_bytes_}}); }

BankRange Banks::PlaceAt(uint64_t address) const {
  BankRange out;
  out.dense = address >= dense_start_;
  out.bank = out.dense ? 0 : static_cast<uint32_t>(address / bank_pitch_);
  out.offset = out.dense ? address - dense_start_ : address % bank_pitch_;
  out.bytes = blocks_.at(address).mapping.bytes();
  return out;
}

Result<BackedRange> Banks::RangeAt(uint64_t address) const {
  auto exported = device_->ExportOf(blocks_.at(address).mapping.block());
  if (!exported.ok()) return exported.status();
  return BackedRange{PlaceAt(address), std::move(exported).value()};
}

Result<std::vector<BackedRange>> Banks::RangesAt(const std::vector<uint64_t>& addresses) const {
  std::vector<BackedRange> out;
  for (const uint64_t address : addresses) {
    auto range = RangeAt(address);
    if (!range.ok()) return range.status();
    out.push_back(std::move(range).value());
  }
  return out;
}

Result<std::vector<device::Extent>> Banks::ExtentsOf(const device::Memory& memory) const {
  std::vector<device::Extent> out;
  uint64_t at = memory.address - space_->address();
  for (uint64_t left = memory.bytes; left > 0;) {
    const auto after = blocks_.upper_bound(at);
    if (after == blocks_.begin() || !std::prev(after)->second.mapping.block() ||
        at - std::prev(after)->first >= std::prev(after)->second.mapping.bytes()) {
      return Status(Code::kInternal, fmt::format("byte {} of the banks is not backed", at));
    }
    const auto& [begin, block] = *std::prev(after);
    const auto place = device_->PlaceOf(block.mapping.block());
    if (!place.ok()) return place.status();
    uint64_t skip = at - begin;
    for (const device::Extent& extent : *place) {
      if (left == 0) break;
      if (skip >= extent.length) {
        skip -= extent.length;
        continue;
      }
      const uint64_t length = std::min(extent.length - skip, left);
      const uint64_t offset = extent.offset + skip;
      skip = 0;
      at += length;
      left -= length;
      if (!out.empty() && out.back().offset + out.back().length == offset) {
        out.back().length += length;
      } else {
        out.push_back({offset, length});
      }
    }
  }
  return out;
}

Result<std::vector<BackedRange>> Banks::Ranges(const std::vector<PlacedPiece>& pieces,
                                               bool dense) const {
  std::set<uint64_t> touched;
  for (const PlacedPiece& piece : pieces) {
    for (const Span& span : BlocksOf(piece)) touched.insert(span.address);
  }
  if (dense) touched.insert(dense_start_);
  std::vector<uint64_t> backed;
  for (const uint64_t address : touched) {
    if (blocks_.contains(address)) backed.push_back(address);
  }
  return RangesAt(backed);
}

std::vector<uint64_t> Banks::AddressesOnlyOf(const std::vector<PlacedPiece>& pieces,
                                             bool dense) const {
  std::map<uint64_t, uint32_t> uses;
  for (const PlacedPiece& piece : pieces) {
    for (const Span& span : BlocksOf(piece)) ++uses[span.address];
  }
  std::vector<uint64_t> out;
  for (const auto& [address, count] : uses) {
    const auto it = blocks_.find(address);
    if (it != blocks_.end() && it->second.uses == count) out.push_back(address);
  }
  if (dense && blocks_.contains(dense_start_)) out.push_back(dense_start_);
  return out;
}

Result<std::vector<BackedRange>> Banks::RangesOnlyOf(const std::vector<PlacedPiece>& pieces,
                                                     bool dense) const {
  return RangesAt(AddressesOnlyOf(pieces, dense));
}

std::vector<BankRange> Banks::PlacesOnlyOf(const std::vector<PlacedPiece>& pieces,
                                           bool dense) const {
  std::vector<BankRange> out;
  for (const uint64_t address : AddressesOnlyOf(pieces, dense)) out.push_back(PlaceAt(address));
  return out;
}

Status Banks::Audit(const std::vector<PlacedPiece>& pieces, bool dense) const {
  std::map<uint64_t, uint32_t> uses;
  for (const PlacedPiece& piece : pieces) {
    for (const Span& span : BlocksOf(piece)) ++uses[span.address];
  }
  if (dense && dense_bytes_ > 0) ++uses[dense_start_];
  std::map<std::pair<SharedFd, uint64_t>, uint64_t> extents;  // (descriptor, offset)
  uint64_t mapped = 0;
  for (const auto& [address, block] : blocks_) {
    mapped += block.mapping.bytes();
    const auto it = uses.find(address);
    if (it == uses.end() || it->second != block.uses) {
      return {Code::kInternal, fmt::format("audit: block at {} has {} uses, the pieces give it {}",
                                           address, block.uses, it == uses.end() ? 0 : it->second)};
    }
    const auto range = RangeAt(address);
    if (!range.ok()) return range.status();
    const device::Export& behind = range->behind;
    for (const device::Extent& extent : behind.extents) {
      extents.emplace(std::pair(behind.descriptors[extent.descriptor], extent.offset),
                      extent.length);
    }
  }
  if (uses.size() != blocks_.size()) {
    return {Code::kInternal, fmt::format("audit: {} blocks are backed, the pieces touch {}",
                                         blocks_.size(), uses.size())};
  }
  std::pair<SharedFd, uint64_t> next;
  for (const auto& [at, length] : extents) {
    const auto& [descriptor, offset] = at;
    if (descriptor == next.first && offset < next.second) {
      return {Code::kInternal, fmt::format("audit: byte {} of the pool is owned twice", offset)};
    }
    next = {descriptor, offset + length};
  }
  if (mapped != mapped_bytes_ || mapped + device_->free_bytes() != device_->total_bytes()) {
    return {Code::kInternal,
            fmt::format("audit: {} mapped (counted as {}) and {} free are not the {} bytes of the "
                        "pool",
                        mapped, mapped_bytes_, device_->free_bytes(), device_->total_bytes())};
  }
  return OkStatus();
}

}  // namespace tangram::memory
