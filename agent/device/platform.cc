#include "agent/device/platform.h"

#include <fmt/format.h>

#include "agent/device/ghost.h"
#include "agent/device/host.h"

namespace tangram::device {
namespace {

// Moves what was made, or tells why it was not.
template <typename Made>
Status Put(Result<Made> made, std::unique_ptr<Device>* to) {
  if (!made.ok()) return made.status();
  *to = std::move(made).value();
  return OkStatus();
}

// Control pages are small, and of the host's own size.
Pages Small() { return ChoosePages(false, 4096); }

class HostPlatform final : public Platform {
 public:
  explicit HostPlatform(const Pages& pages) : pages_(pages) {}

  const char* name() const override { return "host"; }
  uint64_t granularity() const override { return pages_.unit; }
  std::string pages() const override { return Describe(pages_); }
  bool hugetlb() const override { return pages_.kind == PageKind::kHugeTlb; }

  Result<RankDevices> Make(const std::string& rank, const RankBytes& bytes) const override {
    RankDevices out;
    const auto make = [&](const char* purpose, uint64_t size, bool read_only, const Pages& pages) {
      return HostDevice::Make(fmt::format("tangram-{}-{}", rank, purpose), size, read_only, pages);
    };
    TANGRAM_RETURN_IF_ERROR(Put(make("weights", bytes.weights, true, pages_), &out.weights));
    TANGRAM_RETURN_IF_ERROR(Put(make("kv", bytes.kv, false, pages_), &out.kv));
    TANGRAM_RETURN_IF_ERROR(Put(make("control", bytes.control, false, Small()), &out.control));
    return out;
  }

  Result<RankDevices> Adopt(const std::array<int, 3>& fds, const RankBytes& bytes) const override {
    RankDevices out;
    TANGRAM_RETURN_IF_ERROR(
        Put(HostDevice::Adopt(fds[0], bytes.weights, true, pages_), &out.weights));
    TANGRAM_RETURN_IF_ERROR(Put(HostDevice::Adopt(fds[1], bytes.kv, false, pages_), &out.kv));
    TANGRAM_RETURN_IF_ERROR(
        Put(HostDevice::Adopt(fds[2], bytes.control, false, Small()), &out.control));
    return out;
  }

  RankDevices Importers() const override {
    return {HostDevice::Importer(pages_), HostDevice::Importer(pages_),
            HostDevice::Importer(Small())};
  }

 private:
  const Pages pages_;
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
    TANGRAM_RETURN_IF_ERROR(Put(
        HostDevice::Make(fmt::format("tangram-{}-control", rank), bytes.control, false, Small()),
        &out.control));
    return out;
  }

  Result<RankDevices> Adopt(const std::array<int, 3>&, const RankBytes&) const override {
    return Status(Code::kInvalid, "ghost platform: there is no memory that could be kept");
  }

  RankDevices Importers() const override {
    return {std::make_unique<GhostDevice>(0, unit_), std::make_unique<GhostDevice>(0, unit_),
            HostDevice::Importer(Small())};
  }

 private:
  const uint64_t unit_;
};

}  // namespace

Result<std::unique_ptr<Platform>> MakePlatform(const PlatformOptions& options) {
  if (options.name == "ghost" && options.sizes_only) {
    return std::unique_ptr<Platform>(std::make_unique<GhostPlatform>(options.map_bytes));
  }
  if (options.name != "host") {
    return Status(Code::kInvalid,
                  fmt::format("there is no device platform '{}' that holds bytes; there is: host",
                              options.name));
  }
  const Pages pages = ChoosePages(options.hugetlb, options.map_bytes);
  if (options.map_bytes % pages.unit != 0) {
    return Status(Code::kInvalid,
                  fmt::format("page_bytes = {}: this machine maps pages of {}; use a multiple",
                              options.map_bytes, pages.unit));
  }
  return std::unique_ptr<Platform>(std::make_unique<HostPlatform>(pages));
}

}  // namespace tangram::device
