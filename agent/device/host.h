// The host backend: one sealed memfd, filled by its owner, mapped in pages.
#pragma once

#include <memory>
#include <string>

#include "agent/base/unique_fd.h"
#include "agent/device/arena.h"
#include "agent/device/device.h"
#include "agent/device/pages.h"

namespace tangram::device {

class HostDevice final : public Device {
 public:
  // `bytes` (rounded up to a page) of memory, touched here so that the owner's cgroup pays.
  // `read_only`: the descriptor that others are given is open for reading alone (weights);
  // otherwise they may map it for writing (KV, control).
  static Result<std::unique_ptr<HostDevice>> Make(const std::string& name, uint64_t bytes,
                                                  bool read_only, const Pages& pages);
  // Takes over the memory of a process of ours that died, by a descriptor that somebody kept; all
  // of it is free until Claim. kInvalid when it is not such memory of `bytes`.
  static Result<std::unique_ptr<HostDevice>> Adopt(int descriptor, uint64_t bytes, bool read_only,
                                                   const Pages& pages);
  // A device without memory of its own, for importing. What it maps is populated at once.
  static std::unique_ptr<HostDevice> Importer(const Pages& pages);

  const char* name() const override { return "host"; }
  std::string pages() const override { return Describe(pages_); }
  uint64_t granularity() const override { return pages_.unit; }
  uint64_t total_bytes() const override { return arena_ ? arena_->bytes() : 0; }
  uint64_t free_bytes() const override { return arena_ ? arena_->free_bytes() : 0; }

  Result<SpacePtr> Reserve(uint64_t bytes) override;
  Result<BlockPtr> Create(uint64_t bytes) override;
  Result<BlockPtr> Claim(std::span<const Extent> extents) override;
  Result<Export> ExportOf(const BlockPtr& block) override;
  int descriptor() const override { return memory_ ? memory_->shown.get() : -1; }
  Result<UniqueFd> ForReading() const override;
  Result<BlockPtr> Import(int descriptor, std::span<const Extent> extents) override;
  Result<std::vector<Mapping>> Map(const SpacePtr& space, std::span<const Placement> placements,
                                   Access access) override;
  // Both are over when they return.
  Event Copy(std::span<const CopyOp> ops) override;
  Event Hash(std::span<const HashOp> ops) override;
  void Enter(const Memory& memory) override;
  std::span<std::byte> ViewOf(const Memory& memory) override;

 private:
  // Lives as long as blocks of it do.
  struct Memfd {
    UniqueFd own;    // for reading and writing
    UniqueFd shown;  // what others are given
  };
  struct OwnBlock;
  struct ForeignBlock;
  class HostSpace;
  struct Run;

  explicit HostDevice(const Pages& pages) : pages_(pages) {}
  Status Open(uint64_t bytes, bool read_only);
  Result<BlockPtr> BlockOf(std::vector<Extent> extents);
  Result<std::vector<Run>> RunsOf(std::span<const Placement> placements) const;

  const Pages pages_;
  std::shared_ptr<Memfd> memory_;  // null: an importer
  std::shared_ptr<Arena> arena_;
};

}  // namespace tangram::device
