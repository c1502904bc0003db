#include "agent/device/platform.h"

#include <fmt/format.h>

#include "agent/device/control.h"
#include "agent/device/cuda_platform.h"
#include "agent/device/ghost.h"
#include "agent/device/host.h"
#include "agent/device/host_queue.h"
#include "agent/device/ucx_wires.h"

namespace tangram::device {
namespace {

class HostPlatform final : public Platform {
 public:
  HostPlatform(const Pages& pages, uint64_t descriptor_bytes)
      : pages_(pages), descriptor_bytes_(descriptor_bytes) {}

  const char* name() const override { return "host"; }
  uint64_t granularity() const override { return pages_.unit; }
  std::string pages() const override { return Describe(pages_); }
  bool hugetlb() const override { return pages_.kind == PageKind::kHugeTlb; }

  Result<RankDevices> Make(const std::string& rank, const RankBytes& bytes) const override {
    RankDevices out;
    TANGRAM_RETURN_IF_ERROR(Put(HostDevice::Make(Weights(rank, bytes)), &out.weights));
    TANGRAM_RETURN_IF_ERROR(Put(HostDevice::Make(Kv(rank, bytes)), &out.kv));
    TANGRAM_RETURN_IF_ERROR(MakeControl(rank, bytes.control, &out));
    return out;
  }

  Result<RankDevices> Adopt(const std::string& rank, const RankDescriptors& descriptors,
                            const RankBytes& bytes) const override {
    RankDevices out;
    TANGRAM_RETURN_IF_ERROR(
        Put(HostDevice::Adopt(Weights(rank, bytes), descriptors.weights), &out.weights));
    TANGRAM_RETURN_IF_ERROR(Put(HostDevice::Adopt(Kv(rank, bytes), descriptors.kv), &out.kv));
    TANGRAM_RETURN_IF_ERROR(AdoptControl(rank, bytes.control, descriptors.control, &out));
    return out;
  }

  RankDevices Importers() const override {
    return {HostDevice::Importer(pages_), HostDevice::Importer(pages_), ControlImporter()};
  }

  Result<std::unique_ptr<Queue>> OpenQueue(void*) const override { return MakeHostQueue(); }

  Result<std::unique_ptr<Wires>> OpenWires(const WireOptions& options) const override {
    if (options.name != "ucx") return Platform::OpenWires(options);
    UcxMemory memory;
    memory.make = [pages = pages_](uint64_t bytes) -> Result<std::unique_ptr<Device>> {
      const uint64_t whole = (bytes + pages.unit - 1) / pages.unit * pages.unit;
      auto made = HostDevice::Make({"tangram-wire", whole, false, pages, 0});
      if (!made.ok()) return made.status();
      return std::unique_ptr<Device>(std::move(made).value());
    };
    return MakeUcxWires(memory, options);
  }

 private:
  HostDevice::Options Weights(const std::string& rank, const RankBytes& bytes) const {
    return {fmt::format("tangram-{}-weights", rank), bytes.weights, true, pages_,
            descriptor_bytes_};
  }
  HostDevice::Options Kv(const std::string& rank, const RankBytes& bytes) const {
    return {fmt::format("tangram-{}-kv", rank), bytes.kv, false, pages_, descriptor_bytes_};
  }

  const Pages pages_;
  const uint64_t descriptor_bytes_;
};

class GhostPlatform final : public Platform {
 public:
  explicit GhostPlatform(uint64_t unit) : unit_(unit) {}

  const char* name() const override { return "ghost"; }
  uint64_t granularity() const override { return unit_; }
  std::string pages() const override { return fmt::format("none of {} bytes", unit_); }

  Result<RankDevices> Make(const std::string& rank, const RankBytes& bytes) const override {
    RankDevices out;
    out.weights = std::make_unique<GhostDevice>(bytes.weights, unit_);
    out.kv = std::make_unique<GhostDevice>(bytes.kv, unit_);
    TANGRAM_RETURN_IF_ERROR(MakeControl(rank, bytes.control, &out));
    return out;
  }

  Result<RankDevices> Adopt(const std::string&, const RankDescriptors&,
                            const RankBytes&) const override {
    return Status(Code::kInvalid, "ghost platform: no memory to retain");
  }

  RankDevices Importers() const override {
    return {std::make_unique<GhostDevice>(0, unit_), std::make_unique<GhostDevice>(0, unit_),
            ControlImporter()};
  }

 private:
  const uint64_t unit_;
};

}  // namespace

Result<std::unique_ptr<Queue>> Platform::OpenQueue(void*) const {
  return Status(Code::kInvalid, fmt::format("platform {} runs no kernels", name()));
}

Result<std::unique_ptr<Wires>> Platform::OpenWires(const WireOptions& options) const {
  return Status(Code::kInvalid,
                fmt::format("platform {} has no comm library{}", name(),
                            options.name.empty() ? "" : fmt::format(" named '{}'", options.name)));
}

Result<std::unique_ptr<Platform>> MakePlatform(const PlatformOptions& options) {
  if (options.name == "ghost" && options.sizes_only) {
    return std::unique_ptr<Platform>(std::make_unique<GhostPlatform>(options.map_bytes));
  }
  if (options.name == "cuda") return MakeCudaPlatform(options);
  if (options.name != "host") {
    return Status(Code::kInvalid,
                  fmt::format("unknown device platform '{}'; available: host, cuda", options.name));
  }
  const Pages pages = ChoosePages(options.hugetlb, options.map_bytes);
  if (options.map_bytes % pages.unit != 0) {
    return Status(Code::kInvalid,
                  fmt::format("page_bytes = {}: this machine maps pages of {}; use a multiple",
                              options.map_bytes, pages.unit));
  }
  if (options.descriptor_bytes % options.map_bytes != 0) {
    return Status(Code::kInvalid,
                  fmt::format("descriptors of {} bytes; use a multiple of page_bytes, which is {}",
                              options.descriptor_bytes, options.map_bytes));
  }
  return std::unique_ptr<Platform>(std::make_unique<HostPlatform>(pages, options.descriptor_bytes));
}

}  // namespace tangram::device
