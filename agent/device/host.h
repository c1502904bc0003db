// The host backend: sealed memfds, usually one, populated by their owner, mapped in pages.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "agent/base/unique_fd.h"
#include "agent/device/arena.h"
#include "agent/device/device.h"
#include "agent/device/pages.h"

namespace tangram::device {

class HostDevice final : public Device {
 public:
  struct Options {
    std::string name;
    uint64_t bytes = 0;  // rounded up to a page
    // Exported descriptors are read-only (weights); otherwise receivers may map them for writing
    // (KV, control).
    bool read_only = false;
    Pages pages;
    uint64_t file_bytes = 0;  // whole pages per memfd, fewer in the last; 0: one memfd for all
  };
  // Memory is touched here, so the owner's cgroup is charged.
  static Result<std::unique_ptr<HostDevice>> Make(const Options& options);
  // Takes over the memory of a dead agent, by descriptors that an engine kept; missing bytes of
  // `bytes` are created. All of it is free until Claim. kInvalid: the descriptors are not such
  // memory, or are for more bytes.
  static Result<std::unique_ptr<HostDevice>> Adopt(const Options& options,
                                                   std::span<const int> descriptors);
  // A device without memory, for importing. Mappings are populated immediately.
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
  Result<std::vector<Extent>> PlaceOf(const BlockPtr& block) const override;
  SharedFd Adopted(uint32_t descriptor) const override;
  // Fails if it has several memfds of different sizes (the last one may be smaller).
  Result<Readable> ForReading() const override;
  Result<BlockPtr> Import(int descriptor, std::span<const Extent> extents) override;
  Result<std::vector<Mapping>> Map(const SpacePtr& space, std::span<const Placement> placements,
                                   Access access) override;
  // Both complete before they return.
  Event Copy(std::span<const CopyOp> ops) override;
  Event Hash(std::span<const HashOp> ops) override;
  void Enter(const Memory& memory) override;
  std::span<std::byte> ViewOf(const Memory& memory) override;

 private:
  struct Files;  // they live as long as their blocks
  struct OwnBlock;
  struct ForeignBlock;
  class HostSpace;
  struct Run;

  explicit HostDevice(const Pages& pages) : pages_(pages) {}
  static Result<std::unique_ptr<HostDevice>> Of(const Options& options,
                                                std::shared_ptr<Files> files);
  Result<BlockPtr> BlockOf(std::vector<Extent> extents);
  Result<std::vector<Run>> RunsOf(std::span<const Placement> placements) const;

  const Pages pages_;
  std::shared_ptr<Files> files_;  // null: an importer
  std::shared_ptr<Arena> arena_;
};

}  // namespace tangram::device
