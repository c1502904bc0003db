#include "agent/device/cuda.h"

#include <fmt/format.h>

#include <utility>

namespace tangram::device {
namespace {

uint64_t RoundUp(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

Status Invalid(const std::string& what) { return {Code::kInvalid, "cuda device: " + what}; }

}  // namespace

// The handles in order are the bytes of the arena.
struct CudaDevice::Handles {
  std::vector<CudaHandlePtr> all;
  uint64_t adopted = 0;  // number of adopted handles, which are the first
};

struct CudaDevice::OwnBlock final : ArenaBlock {
  OwnBlock(std::shared_ptr<const Handles> from, std::shared_ptr<Arena> arena,
           std::vector<Extent> extents)
      : ArenaBlock(std::move(arena), std::move(extents)), handles(std::move(from)) {}
  const std::shared_ptr<const Handles> handles;
};

struct CudaDevice::ForeignBlock final : Block {
  explicit ForeignBlock(CudaHandlePtr imported) : handle(std::move(imported)) {}
  uint64_t bytes() const override { return handle->bytes(); }
  const CudaHandlePtr handle;
};

Result<CudaStream*> CudaDevice::Stream() {
  const std::scoped_lock lock(mu_);
  if (stream_ == nullptr) {
    auto stream = CudaStream::Make(context_);
    if (!stream.ok()) return stream.status();
    stream_ = std::move(stream).value();
  }
  return stream_.get();
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::Make(std::shared_ptr<CudaContext> context,
                                                     const Options& options) {
  return Adopt(std::move(context), options, {});
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::Adopt(std::shared_ptr<CudaContext> context,
                                                      const Options& options,
                                                      std::span<const int> descriptors) {
  const uint64_t unit = options.unit, granularity = context->granularity();
  if (unit == 0 || unit % granularity != 0) {
    return Invalid(fmt::format("handles of {} bytes; {} makes them in multiples of {}", unit,
                               context->name(), granularity));
  }
  std::unique_ptr<CudaDevice> device(new CudaDevice(std::move(context), unit));
  const uint64_t bytes = RoundUp(options.bytes, unit);
  if (bytes == 0) return Invalid("memory of 0 bytes");
  if (descriptors.size() > bytes / unit) {
    return Invalid(fmt::format("{} handles of {} bytes were kept of memory of {}",
                               descriptors.size(), unit, bytes));
  }
  auto handles = std::make_shared<Handles>();
  handles->adopted = descriptors.size();
  handles->all.reserve(bytes / unit);
  for (const int descriptor : descriptors) {
    auto handle = CudaHandle::Adopt(device->context_, descriptor, unit);
    if (!handle.ok()) return handle.status();
    handles->all.push_back(std::move(handle).value());
  }
  while (handles->all.size() < bytes / unit) {
    auto handle = CudaHandle::Create(device->context_, unit);
    if (!handle.ok()) {
      return Status(handle.status().code(),
                    fmt::format("cuda device: memory of {} bytes, of which {} are made: {}", bytes,
                                handles->all.size() * unit, handle.status().message()));
    }
    handles->all.push_back(std::move(handle).value());
  }
  device->handles_ = std::move(handles);
  device->arena_ = std::make_shared<Arena>(bytes, unit);
  // Created now, so that a missing resource shows at the start.
  if (const auto stream = device->Stream(); !stream.ok()) return stream.status();
  return device;
}

std::unique_ptr<CudaDevice> CudaDevice::Importer(std::shared_ptr<CudaContext> context,
                                                 uint64_t unit) {
  return std::unique_ptr<CudaDevice>(new CudaDevice(std::move(context), unit));
}

std::string CudaDevice::pages() const {
  return fmt::format("{} MiB (handles of {})", unit_ >> 20, context_->name());
}

Result<SpacePtr> CudaDevice::Reserve(uint64_t bytes) {
  auto space = CudaSpace::Reserve(context_, RoundUp(bytes, unit_), unit_);
  if (!space.ok()) return space.status();
  return SpacePtr(std::move(space).value());
}

Result<BlockPtr> CudaDevice::Create(uint64_t bytes) {
  if (arena_ == nullptr) {
    return Status(Code::kNoMemory, "cuda device: an importer has no memory of its own");
  }
  auto extents = arena_->Take(bytes);
  if (!extents.ok()) {
    return Status(extents.status().code(), "cuda device: " + extents.status().message());
  }
  return BlockPtr(std::make_shared<OwnBlock>(handles_, arena_, std::move(extents).value()));
}

Result<BlockPtr> CudaDevice::Claim(std::span<const Extent> extents) {
  if (arena_ == nullptr) return Invalid("an importer has no memory of its own");
  std::vector<Extent> all;
  for (const Extent& extent : extents) {
    if (extent.descriptor >= handles_->adopted || extent.offset != 0 || extent.length != unit_) {
      return Invalid(fmt::format("a claim of {} bytes at {} of descriptor {}: {} came, of {} each",
                                 extent.length, extent.offset, extent.descriptor, handles_->adopted,
                                 unit_));
    }
    all.push_back({extent.descriptor * unit_, unit_});
  }
  if (Status status = arena_->Claim(all); !status.ok()) return Invalid(status.message());
  return BlockPtr(std::make_shared<OwnBlock>(handles_, arena_, std::move(all)));
}

Result<Export> CudaDevice::ExportOf(const BlockPtr& block) {
  const auto* own = dynamic_cast<const OwnBlock*>(block.get());
  if (own == nullptr || own->handles != handles_) return Invalid("a block of another device");
  Export out;
  for (const Extent& extent : own->extents()) {
    for (uint64_t at = extent.offset; at < extent.offset + extent.length; at += unit_) {
      auto descriptor = handles_->all[at / unit_]->Descriptor();
      if (!descriptor.ok()) return descriptor.status();
      out.extents.push_back({0, unit_, static_cast<uint32_t>(out.descriptors.size())});
      out.descriptors.push_back(std::move(descriptor).value());
    }
  }
  return out;
}

SharedFd CudaDevice::Adopted(uint32_t descriptor) const {
  return handles_->all.at(descriptor)->Descriptor().value();  // adopted handles keep a descriptor
}

Result<std::vector<Extent>> CudaDevice::PlaceOf(const BlockPtr& block) const {
  const auto* own = dynamic_cast<const OwnBlock*>(block.get());
  if (own == nullptr || own->handles != handles_) return Invalid("a block of another device");
  return std::vector<Extent>(own->extents().begin(), own->extents().end());
}

Result<Readable> CudaDevice::ForReading() const {
  if (handles_ == nullptr) return Invalid("an importer has no memory to be read");
  return Readable{total_bytes(), unit_, [handles = handles_](uint64_t number) -> Result<SharedFd> {
                    if (number >= handles->all.size()) {
                      return Invalid(fmt::format("handle {} of {}", number, handles->all.size()));
                    }
                    return handles->all[number]->Descriptor();
                  }};
}

Result<BlockPtr> CudaDevice::Import(int descriptor, std::span<const Extent> extents) {
  const Extent extent = extents.empty() ? Extent{} : extents.front();
  if (extents.size() != 1 || extent.offset != 0 || extent.length == 0 ||
      extent.length % unit_ != 0) {
    return Invalid(
        fmt::format("import of {} extents, the first of {} bytes at {}: a handle is "
                    "mapped from its start, in multiples of {}",
                    extents.size(), extent.length, extent.offset, unit_));
  }
  auto handle = CudaHandle::Import(context_, descriptor, extent.length);
  if (!handle.ok()) return handle.status();
  return BlockPtr(std::make_shared<ForeignBlock>(std::move(handle).value()));
}

Result<std::vector<CudaRun>> CudaDevice::RunsOf(std::span<const Placement> placements) const {
  std::vector<CudaRun> runs;
  for (const Placement& p : placements) {
    const auto* own = dynamic_cast<const OwnBlock*>(p.block.get());
    const auto* foreign = dynamic_cast<const ForeignBlock*>(p.block.get());
    const uint64_t bytes = p.block == nullptr ? 0 : p.block->bytes();
    const uint64_t unit = foreign != nullptr ? bytes : unit_;  // smallest part that can be mapped
    if ((own == nullptr && foreign == nullptr) || p.slice.bytes == 0 ||
        p.slice.offset % unit != 0 || p.slice.bytes % unit != 0 || p.slice.offset > bytes ||
        p.slice.bytes > bytes - p.slice.offset) {
      return Invalid(fmt::format("{} bytes at {} are no handles of {} of a block of {}",
                                 p.slice.bytes, p.slice.offset, unit, bytes));
    }
    uint64_t at = p.at;
    if (foreign != nullptr) {
      runs.push_back({at, foreign->handle});
      continue;
    }
    EachOf(own->extents(), p.slice, [&](const Extent& extent) {
      for (uint64_t in = 0; in < extent.length; in += unit_, at += unit_) {
        runs.push_back({at, own->handles->all[(extent.offset + in) / unit_]});
      }
      return true;
    });
  }
  return runs;
}

Result<std::vector<Mapping>> CudaDevice::Map(const SpacePtr& space,
                                             std::span<const Placement> placements, Access access) {
  auto runs = RunsOf(placements);
  if (!runs.ok()) return runs.status();
  TANGRAM_RETURN_IF_ERROR(static_cast<CudaSpace&>(*space).Map(placements, *runs, access));
  std::vector<Mapping> out;
  out.reserve(placements.size());
  for (const Placement& p : placements) out.emplace_back(space, p.at, p.block, p.slice);
  return out;
}

Event CudaDevice::Copy(std::span<const CopyOp> ops) {
  if (Status status = CheckCopies(ops); !status.ok()) return Event::Finished(std::move(status));
  const auto stream = Stream();
  if (!stream.ok()) return Event::Finished(stream.status());
  return (*stream)->Copy(ops);
}

Result<std::shared_ptr<std::byte[]>> CudaDevice::Staging(uint64_t bytes) {
  const CudaContext::Entered in(*context_);
  const CudaDriver& driver = context_->driver();
  void* out = nullptr;
  const Status status = driver.Check(driver.MemHostAlloc(&out, bytes, 0),
                                     fmt::format("{} bytes of pinned memory", bytes));
  if (!status.ok()) return status;
  return std::shared_ptr<std::byte[]>(static_cast<std::byte*>(out),
                                      [context = context_](std::byte* at) {
                                        const CudaContext::Entered in(*context);
                                        (void)context->driver().MemFreeHost(at);
                                      });
}

Event CudaDevice::Hash(std::span<const HashOp> ops) {
  const auto stream = Stream();
  if (!stream.ok()) return Event::Finished(stream.status());
  return (*stream)->Hash(ops);
}

}  // namespace tangram::device
