// The CUDA backend: memory of a GPU through the driver's virtual memory management.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "agent/device/arena.h"
#include "agent/device/cuda_context.h"
#include "agent/device/cuda_copy.h"
#include "agent/device/cuda_space.h"
#include "agent/device/device.h"

namespace tangram::device {

// All of its memory is created at the start, in handles of one size; a block is a set of handles. A
// handle is mapped whole and exported whole, by one descriptor, and never returned to the driver
// while the device lives. So a transition requests only addresses from the driver, and the driver
// cannot refuse it memory.
class CudaDevice final : public Device {
 public:
  struct Options {
    uint64_t bytes = 0;  // rounded up to handles
    uint64_t unit = 0;   // bytes per handle: a multiple of the device's granularity
  };
  // kNoMemory with the numbers: the GPU has less free memory. kInvalid: the unit is not such a
  // multiple.
  static Result<std::unique_ptr<CudaDevice>> Make(std::shared_ptr<CudaContext> context,
                                                  const Options& options);
  // Takes over the memory of a dead agent, by descriptors that an engine kept, one per handle;
  // missing handles of `bytes` are created. All of it is free until Claim. The driver does not
  // detect a handle with two descriptors; the adopting agent compares hashes anyway. kInvalid: the
  // descriptors are not such memory, or are for more bytes.
  static Result<std::unique_ptr<CudaDevice>> Adopt(std::shared_ptr<CudaContext> context,
                                                   const Options& options,
                                                   std::span<const int> descriptors);
  // A device without memory, for importing handles of multiples of `unit` (as in Make).
  static std::unique_ptr<CudaDevice> Importer(std::shared_ptr<CudaContext> context, uint64_t unit);

  const char* name() const override { return "cuda"; }
  std::string pages() const override;
  uint64_t granularity() const override { return unit_; }
  uint64_t total_bytes() const override { return arena_ ? arena_->bytes() : 0; }
  uint64_t free_bytes() const override { return arena_ ? arena_->free_bytes() : 0; }

  Result<SpacePtr> Reserve(uint64_t bytes) override;
  Result<BlockPtr> Create(uint64_t bytes) override;
  Result<BlockPtr> Claim(std::span<const Extent> extents) override;
  // One descriptor and one extent per handle.
  Result<Export> ExportOf(const BlockPtr& block) override;
  Result<std::vector<Extent>> PlaceOf(const BlockPtr& block) const override;
  SharedFd Adopted(uint32_t descriptor) const override;
  // One descriptor per handle. The driver has none that are read-only: a process that maps for
  // reading cannot write, but it may map for writing (docs/security.md).
  Result<Readable> ForReading() const override;
  // Imports one handle, mapped whole: one extent. Errors show only in Map: a wrong size, or memory
  // of another GPU that this one does not reach.
  Result<BlockPtr> Import(int descriptor, std::span<const Extent> extents) override;
  bool maps_parts() const override { return false; }
  Result<std::vector<Mapping>> Map(const SpacePtr& space, std::span<const Placement> placements,
                                   Access access) override;
  // On the device's own stream.
  Event Copy(std::span<const CopyOp> ops) override;
  Event Hash(std::span<const HashOp> ops) override;
  Result<std::shared_ptr<std::byte[]>> Staging(uint64_t bytes) override;
  std::span<std::byte> ViewOf(const Memory&) override { return {}; }

 private:
  struct Handles;  // they live as long as their blocks
  struct OwnBlock;
  struct ForeignBlock;

  CudaDevice(std::shared_ptr<CudaContext> context, uint64_t unit)
      : context_(std::move(context)), unit_(unit) {}
  // An importer's is created at its first use: an engine may never copy by this device.
  Result<CudaStream*> Stream();
  Result<std::vector<CudaRun>> RunsOf(std::span<const Placement> placements) const;

  const std::shared_ptr<CudaContext> context_;
  const uint64_t unit_;
  std::shared_ptr<const Handles> handles_;  // null: an importer
  std::shared_ptr<Arena> arena_;
  std::mutex mu_;
  std::unique_ptr<CudaStream> stream_;
};

}  // namespace tangram::device
