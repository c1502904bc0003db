#include "agent/device/ghost.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/device/occupancy.h"

namespace tangram::device {
namespace {

// No two spaces share addresses, not even of different devices.
uint64_t NextAddresses(uint64_t bytes) {
  static std::atomic<uint64_t> next{uint64_t{1} << 48};
  return next.fetch_add(bytes);
}

class GhostSpace final : public Space {
 public:
  GhostSpace(uint64_t bytes, uint64_t unit)
      : occupancy_(bytes, unit), address_(NextAddresses(bytes)) {}
  uint64_t address() const override { return address_; }
  uint64_t bytes() const override { return occupancy_.bytes(); }
  Status Map(std::span<const Placement> placements) { return occupancy_.Take(placements); }

 private:
  bool Unmap(uint64_t at, uint64_t bytes) override {
    occupancy_.Drop(at, bytes);
    return true;
  }

  Occupancy occupancy_;
  const uint64_t address_;
};

struct Imported final : Block {
  uint64_t bytes() const override { return size; }
  uint64_t size = 0;
};

uint64_t RoundUp(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

bool InUnits(const Slice& slice, uint64_t unit) {
  return slice.bytes != 0 && slice.offset % unit == 0 && slice.bytes % unit == 0;
}

}  // namespace

GhostDevice::GhostDevice(uint64_t bytes, uint64_t unit)
    : arena_(std::make_shared<Arena>(RoundUp(bytes, unit), unit)) {
  UniqueFd file(memfd_create("tangram-ghost", MFD_CLOEXEC));
  // A receiver rejects a file of another size, or none.
  if (file) (void)ftruncate(file.get(), static_cast<off_t>(arena_->bytes()));
  stand_in_ = std::make_shared<const UniqueFd>(std::move(file));
}

std::string GhostDevice::pages() const { return fmt::format("none of {} bytes", granularity()); }

Result<SpacePtr> GhostDevice::Reserve(uint64_t bytes) {
  return SpacePtr(std::make_shared<GhostSpace>(RoundUp(bytes, granularity()), granularity()));
}

Result<BlockPtr> GhostDevice::Create(uint64_t bytes) {
  auto extents = arena_->Take(bytes);
  if (!extents.ok()) {
    return Status(extents.status().code(), "ghost device: " + extents.status().message());
  }
  return BlockPtr(std::make_shared<ArenaBlock>(arena_, std::move(extents).value()));
}

Result<BlockPtr> GhostDevice::Claim(std::span<const Extent> extents) {
  if (Status status = arena_->Claim(extents); !status.ok()) {
    return Status(status.code(), "ghost device: " + status.message());
  }
  return BlockPtr(
      std::make_shared<ArenaBlock>(arena_, std::vector<Extent>(extents.begin(), extents.end())));
}

Result<Export> GhostDevice::ExportOf(const BlockPtr& block) {
  const auto* own = dynamic_cast<const ArenaBlock*>(block.get());
  if (own == nullptr) return Status(Code::kInvalid, "ghost device: a block of another device");
  return Export{{stand_in_}, {own->extents().begin(), own->extents().end()}};
}

Result<std::vector<Extent>> GhostDevice::PlaceOf(const BlockPtr& block) const {
  const auto* own = dynamic_cast<const ArenaBlock*>(block.get());
  if (own == nullptr) return Status(Code::kInvalid, "ghost device: a block of another device");
  return std::vector<Extent>(own->extents().begin(), own->extents().end());
}

Result<Readable> GhostDevice::ForReading() const {
  return Status(Code::kInvalid, "ghost device: no bytes to read");
}

Result<BlockPtr> GhostDevice::Import(int, std::span<const Extent> extents) {
  auto block = std::make_shared<Imported>();
  for (const Extent& extent : extents) {
    if (!InUnits({extent.offset, extent.length}, granularity())) {
      return Status(Code::kInvalid,
                    fmt::format("ghost device: import of {} bytes at {} is not in units of {}",
                                extent.length, extent.offset, granularity()));
    }
    block->size += extent.length;
  }
  return BlockPtr(std::move(block));
}

Result<std::vector<Mapping>> GhostDevice::Map(const SpacePtr& space,
                                              std::span<const Placement> placements, Access) {
  for (const Placement& p : placements) {
    const uint64_t bytes = p.block == nullptr ? 0 : p.block->bytes();
    if (!InUnits(p.slice, granularity()) || p.slice.offset > bytes ||
        p.slice.bytes > bytes - p.slice.offset) {
      return Status(Code::kInvalid,
                    fmt::format("ghost device: {} bytes at {} are no units of a block of {}",
                                p.slice.bytes, p.slice.offset, bytes));
    }
  }
  if (Status status = static_cast<GhostSpace&>(*space).Map(placements); !status.ok()) {
    return Status(status.code(), "ghost device: " + status.message());
  }
  std::vector<Mapping> out;
  out.reserve(placements.size());
  for (const Placement& p : placements) out.emplace_back(space, p.at, p.block, p.slice);
  return out;
}

Event GhostDevice::Copy(std::span<const CopyOp> ops) {
  for (const CopyOp& op : ops) {
    if (op.to.bytes != op.from.bytes) {
      return Event::Finished({Code::kInvalid, fmt::format("ghost device: copy of {} bytes to {}",
                                                          op.from.bytes, op.to.bytes)});
    }
    copied_ += op.to.bytes;
    if (op.hash != nullptr) *op.hash = kHash;
  }
  return Event::Finished(OkStatus());
}

Event GhostDevice::Hash(std::span<const HashOp> ops) {
  for (const HashOp& op : ops) *op.hash = kHash;
  return Event::Finished(OkStatus());
}

}  // namespace tangram::device
