#include "agent/device/cuda_platform.h"

#include <fmt/format.h>

#include <utility>

#include "agent/device/control.h"
#include "agent/device/cuda.h"
#include "agent/device/cuda_queue.h"
#include "agent/device/nccl_wires.h"
#include "agent/device/nvml.h"
#include "agent/device/ucx_wires.h"

namespace tangram::device {
namespace {

class CudaPlatform final : public Platform {
 public:
  CudaPlatform(std::shared_ptr<CudaContext> context, uint64_t unit, std::string management)
      : context_(std::move(context)), unit_(unit), management_(std::move(management)) {}

  const char* name() const override { return "cuda"; }
  uint64_t granularity() const override { return unit_; }
  std::string pages() const override {
    return fmt::format("{} MiB (handles of {})", unit_ >> 20, context_->name());
  }

  PlatformInfo info() const override {
    return {name(), pages(), context_->name(), context_->capability(),
            context_->driver().version()};
  }

  Status Health() const override { return context_->driver().Health(); }

  Result<RankDevices> Make(const std::string& rank, const RankBytes& bytes) const override {
    return Adopt(rank, {}, bytes);
  }

  Result<RankDevices> Adopt(const std::string& rank, const RankDescriptors& descriptors,
                            const RankBytes& bytes) const override {
    RankDevices out;
    TANGRAM_RETURN_IF_ERROR(Put(
        CudaDevice::Adopt(context_, {bytes.weights, unit_}, descriptors.weights), &out.weights));
    // KV is one handle, because no process maps a part of it.
    const uint64_t unit = context_->granularity();
    const uint64_t kv = (bytes.kv + unit - 1) / unit * unit;
    TANGRAM_RETURN_IF_ERROR(Put(CudaDevice::Adopt(context_, {kv, kv}, descriptors.kv), &out.kv));
    TANGRAM_RETURN_IF_ERROR(AdoptControl(rank, bytes.control, descriptors.control, &out));
    return out;
  }

  RankDevices Importers() const override {
    return {CudaDevice::Importer(context_, unit_),
            CudaDevice::Importer(context_, context_->granularity()), ControlImporter()};
  }

  std::string fabric() const override { return FabricOf(management_, context_->PciBusId()); }

  Result<std::unique_ptr<Queue>> OpenQueue(void* stream) const override {
    return MakeCudaQueue(context_, stream);
  }

  Result<std::unique_ptr<Wires>> OpenWires(const WireOptions& options) const override {
    if (options.name.empty() || options.name == "nccl") return MakeNcclWires(context_, options);
    if (options.name != "ucx") return Platform::OpenWires(options);
    const UcxMemory memory{
        .make = [context = context_](uint64_t bytes) -> Result<std::unique_ptr<Device>> {
          const uint64_t unit = context->granularity();
          const uint64_t whole = (bytes + unit - 1) / unit * unit;
          auto made = CudaDevice::Make(context, {whole, whole});
          if (!made.ok()) return made.status();
          return std::unique_ptr<Device>(std::move(made).value());
        },
        .gpu = true};
    return MakeUcxWires(memory, options);
  }

 private:
  const std::shared_ptr<CudaContext> context_;
  const uint64_t unit_;
  const std::string management_;
};

}  // namespace

Result<std::unique_ptr<Platform>> MakeCudaPlatform(const PlatformOptions& options) {
  auto context = CudaContext::Open(options.driver, options.ordinal);
  if (!context.ok()) return context.status();
  const uint64_t unit = (*context)->granularity();
  if (options.map_bytes % unit != 0) {
    return Status(Code::kInvalid,
                  fmt::format("page_bytes = {}: {} maps handles of multiples of {}; best is a "
                              "multiple that holds a whole expert, as each handle costs",
                              options.map_bytes, (*context)->name(), unit));
  }
  return std::unique_ptr<Platform>(std::make_unique<CudaPlatform>(
      std::move(context).value(), options.map_bytes, options.management));
}

}  // namespace tangram::device
