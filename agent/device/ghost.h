// The ghost backend: sizes, places and counts, without bytes. For tests and benches of sizes that
// no machine of ours has.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "agent/base/unique_fd.h"
#include "agent/device/arena.h"
#include "agent/device/device.h"

namespace tangram::device {

class GhostDevice final : public Device {
 public:
  // The hash of any content.
  static constexpr uint64_t kHash = 1;

  GhostDevice(uint64_t bytes, uint64_t unit);

  const char* name() const override { return "ghost"; }
  std::string pages() const override;
  uint64_t granularity() const override { return arena_->unit(); }
  uint64_t total_bytes() const override { return arena_->bytes(); }
  uint64_t free_bytes() const override { return arena_->free_bytes(); }

  Result<SpacePtr> Reserve(uint64_t bytes) override;
  Result<BlockPtr> Create(uint64_t bytes) override;
  Result<BlockPtr> Claim(std::span<const Extent> extents) override;
  Result<Export> ExportOf(const BlockPtr& block) override;
  Result<std::vector<Extent>> PlaceOf(const BlockPtr& block) const override;
  Result<Readable> ForReading() const override;
  Result<BlockPtr> Import(int descriptor, std::span<const Extent> extents) override;
  Result<std::vector<Mapping>> Map(const SpacePtr& space, std::span<const Placement> placements,
                                   Access access) override;
  Event Copy(std::span<const CopyOp> ops) override;
  Event Hash(std::span<const HashOp> ops) override;
  std::span<std::byte> ViewOf(const Memory&) override { return {}; }
  bool has_bytes() const override { return false; }

  // Bytes that real copies would have moved.
  uint64_t copied() const { return copied_; }

 private:
  std::shared_ptr<Arena> arena_;
  SharedFd stand_in_;  // exported: a file of this size that is one hole
  std::atomic<uint64_t> copied_{0};
};

}  // namespace tangram::device
