#include "agent/client/regions.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace tangram {

void DescriptorTable::Add(uint32_t number, UniqueFd fd) {
  struct stat info {};
  const bool known = fstat(fd.get(), &info) == 0 && info.st_size > 0;
  const uint64_t bytes = known ? static_cast<uint64_t>(info.st_size) : 0;
  const auto [it, fresh] = descriptors_.try_emplace(number, Descriptor{std::move(fd), bytes});
  if (!fresh) descriptors_.erase(it);
}

const DescriptorTable::Descriptor* DescriptorTable::Find(uint32_t number) const {
  const auto it = descriptors_.find(number);
  return it == descriptors_.end() ? nullptr : &it->second;
}

Result<Region> Region::Reserve(std::unique_ptr<device::Device> importer, uint64_t bytes,
                               device::Access access) {
  if (bytes > (uint64_t{1} << 46)) {
    return Status{Code::kInvalid, fmt::format("address range of {} bytes", bytes)};
  }
  Region region;
  region.device_ = std::move(importer);
  region.access_ = access;
  if (bytes == 0) return region;
  auto space = region.device_->Reserve(bytes);
  if (!space.ok()) return space.status();
  region.space_ = std::move(*space);
  return region;
}

uint8_t* Region::data() const {
  if (space_ == nullptr) return nullptr;
  return reinterpret_cast<uint8_t*>(space_->address());
}

Status Region::Check(const v1::Extent& extent, const DescriptorTable& table) const {
  const DescriptorTable::Descriptor* descriptor = table.Find(extent.fd_index());
  if (descriptor == nullptr) {
    return {Code::kInvalid,
            fmt::format("extent refers to descriptor {}, which was not passed or was passed twice",
                        extent.fd_index())};
  }
  // The device measures a descriptor of unknown size when it maps it, up to the size of this
  // region.
  const uint64_t size = descriptor->bytes > 0 ? descriptor->bytes : bytes();
  const uint64_t unit = device_->granularity();
  if (extent.length() == 0 || extent.offset() % unit != 0 || extent.length() % unit != 0 ||
      extent.offset() > size || extent.length() > size - extent.offset()) {
    return {Code::kInvalid,
            fmt::format("extent of {} bytes at {} is not whole pages of {} inside descriptor {} of "
                        "{} bytes",
                        extent.length(), extent.offset(), unit, extent.fd_index(), size)};
  }
  return OkStatus();
}

Result<device::BlockPtr> Region::BlockOf(const v1::Extent& extent, const DescriptorTable& table) {
  device::BlockPtr& block = imports_[extent.fd_index()].block;
  if (block == nullptr) {
    const uint64_t unit = device_->granularity();
    const DescriptorTable::Descriptor& is = *table.Find(extent.fd_index());
    const device::Extent whole{
        0, is.bytes > 0 ? is.bytes / unit * unit : extent.offset() + extent.length()};
    auto imported = device_->Import(is.fd.get(), {&whole, 1});
    if (!imported.ok()) return imported.status();
    block = std::move(*imported);
  }
  return block;
}

void Region::Cut(uint64_t place) {
  auto it = pieces_.upper_bound(place);
  if (it == pieces_.begin()) return;
  --it;
  const uint64_t head = place - it->first;
  if (head == 0 || head >= it->second.mapping.bytes()) return;
  pieces_.emplace(place, Piece{it->second.mapping.Split(head), it->second.descriptor});
}

uint64_t Region::Lies(uint64_t place, uint32_t descriptor, uint64_t offset, uint64_t most,
                      bool* so) const {
  auto it = pieces_.upper_bound(place);
  *so = false;
  const uint64_t next = it == pieces_.end() ? UINT64_MAX : it->first;
  if (it != pieces_.begin()) {
    --it;
    const uint64_t skip = place - it->first;
    const device::Slice& slice = it->second.mapping.slice();
    if (skip < slice.bytes) {
      *so = it->second.descriptor == descriptor && slice.offset + skip == offset;
      return std::min(most, slice.bytes - skip);
    }
  }
  return std::min(most, next - place);
}

Status Region::Map(uint64_t place, const Extents& extents, const DescriptorTable& table) {
  // The agent would take an empty mapping as done, and a step would read unmapped memory.
  if (extents.empty() && bytes() > 0) {
    return {Code::kInvalid, fmt::format("mapping at {} has no extents", place)};
  }
  uint64_t total = 0;
  for (const v1::Extent& extent : extents) {
    TANGRAM_RETURN_IF_ERROR(Check(extent, table));
    total += extent.length();  // each is at most 2^63: checked against a file's size
    if (total > bytes()) break;
  }
  if (place % device_->granularity() != 0 || place > bytes() || total > bytes() - place) {
    return {Code::kInvalid, fmt::format("mapping of {} bytes at {} is not whole pages inside a "
                                        "range of {}",
                                        total, place, bytes())};
  }
  // Maps only parts that are not mapped there yet: a step may be reading the rest.
  std::vector<device::Placement> placements;
  std::vector<uint32_t> from;
  for (const v1::Extent& extent : extents) {
    auto block = BlockOf(extent, table);
    if (!block.ok()) return block.status();
    bool lies = true, before = true;
    for (uint64_t done = 0; done < extent.length(); before = lies) {
      const uint64_t bytes = Lies(place + done, extent.fd_index(), extent.offset() + done,
                                  extent.length() - done, &lies);
      if (!lies && !before) {
        placements.back().slice.bytes += bytes;
      } else if (!lies) {
        placements.push_back({place + done, *block, {extent.offset() + done, bytes}});
        from.push_back(extent.fd_index());
      }
      done += bytes;
    }
    place += extent.length();
  }
  for (const device::Placement& p : placements) TANGRAM_RETURN_IF_ERROR(Unmap(p.at, p.slice.bytes));
  auto mapped = device_->Map(space_, placements, access_);
  if (!mapped.ok()) return mapped.status();
  for (size_t i = 0; i < mapped->size(); ++i) {
    const uint64_t at = (*mapped)[i].at();
    imports_.at(from[i]).mapped += (*mapped)[i].bytes();
    pieces_.emplace(at, Piece{std::move((*mapped)[i]), from[i]});
  }
  return OkStatus();
}

Status Region::Unmap(uint64_t place, uint64_t length) {
  const uint64_t unit = device_->granularity();
  if (place % unit != 0 || length % unit != 0 || place > bytes() || length > bytes() - place) {
    return {Code::kInvalid, fmt::format("unmapping {} bytes at {} is not whole pages inside a "
                                        "range of {}",
                                        length, place, bytes())};
  }
  Cut(place);
  Cut(place + length);
  const auto first = pieces_.lower_bound(place), last = pieces_.lower_bound(place + length);
  std::vector<device::Mapping> gone;
  for (auto it = first; it != last; ++it) {
    imports_.at(it->second.descriptor).mapped -= it->second.mapping.bytes();
    gone.push_back(std::move(it->second.mapping));
  }
  pieces_.erase(first, last);
  // The agent unmaps only between two steps, so no kernel uses it now.
  device_->Release(std::move(gone), device::Event::Finished(OkStatus()));
  return OkStatus();
}

std::vector<Region::Run> Region::runs() const {
  std::vector<Run> out;
  for (const auto& [place, piece] : pieces_) {
    out.push_back({place, piece.mapping.bytes(), piece.descriptor, piece.mapping.slice().offset});
  }
  return out;
}

bool Region::Uses(uint32_t descriptor) {
  const auto it = imports_.find(descriptor);
  if (it == imports_.end()) return false;
  if (it->second.mapped > 0) return true;
  imports_.erase(it);
  return false;
}

uint64_t Region::mapped_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [place, piece] : pieces_) bytes += piece.mapping.bytes();
  return bytes;
}

}  // namespace tangram
