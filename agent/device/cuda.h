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

// All of its memory is made at the start, in handles of one size; blocks are some of them. A handle
// is mapped whole, passed on whole, by one descriptor, and never given back to the driver while the
// device lives: a transition asks the driver for addresses alone, and cannot be refused memory.
class CudaDevice final : public Device {
 public:
  struct Options {
    uint64_t bytes = 0;  // rounded up to handles
    uint64_t unit = 0;   // of a handle: a multiple of the device's granularity
  };
  // kNoMemory with the numbers: the GPU has not so many; kInvalid: the unit is no such multiple.
  static Result<std::unique_ptr<CudaDevice>> Make(std::shared_ptr<CudaContext> context,
                                                  const Options& options);
  // Takes over the memory of a process of ours that died, by descriptors that somebody kept, a
  // handle each; what they lack of `bytes` is made anew. All of it is free until Claim. One that
  // came under two numbers is two to the driver: who adopts compares hashes anyway. kInvalid when
  // they are not such memory, or are of more.
  static Result<std::unique_ptr<CudaDevice>> Adopt(std::shared_ptr<CudaContext> context,
                                                   const Options& options,
                                                   std::span<const int> descriptors);
  // A device without memory of its own, for importing handles of multiples of `unit` (as Make's).
  static std::unique_ptr<CudaDevice> Importer(std::shared_ptr<CudaContext> context, uint64_t unit);

  const char* name() const override { return "cuda"; }
  std::string pages() const override;
  uint64_t granularity() const override { return unit_; }
  uint64_t total_bytes() const override { return arena_ ? arena_->bytes() : 0; }
  uint64_t free_bytes() const override { return arena_ ? arena_->free_bytes() : 0; }

  Result<SpacePtr> Reserve(uint64_t bytes) override;
  Result<BlockPtr> Create(uint64_t bytes) override;
  Result<BlockPtr> Claim(std::span<const Extent> extents) override;
  // A descriptor and an extent for each handle.
  Result<Export> ExportOf(const BlockPtr& block) override;
  Result<std::vector<Extent>> PlaceOf(const BlockPtr& block) const override;
  SharedFd Adopted(uint32_t descriptor) const override;
  // A descriptor for each handle. The driver knows none for reading alone: who maps for reading
  // cannot write, but may map for writing (docs/security.md).
  Result<Readable> ForReading() const override;
  // One handle, from its start on, mapped whole: one extent. How much it has shows in Map. Of
  // another GPU too, if this one reaches it; that it does not shows in Map.
  Result<BlockPtr> Import(int descriptor, std::span<const Extent> extents) override;
  bool maps_parts() const override { return false; }
  Result<std::vector<Mapping>> Map(const SpacePtr& space, std::span<const Placement> placements,
                                   Access access) override;
  // On a stream of its own.
  Event Copy(std::span<const CopyOp> ops) override;
  Event Hash(std::span<const HashOp> ops) override;
  Result<std::shared_ptr<std::byte[]>> Staging(uint64_t bytes) override;
  std::span<std::byte> ViewOf(const Memory&) override { return {}; }

 private:
  struct Handles;  // they live as long as blocks of them do
  struct OwnBlock;
  struct ForeignBlock;

  CudaDevice(std::shared_ptr<CudaContext> context, uint64_t unit)
      : context_(std::move(context)), unit_(unit) {}
  // Of an importer made when it is first used: an engine may copy nothing by this device.
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
