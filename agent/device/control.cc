#include "agent/device/control.h"

#include <fmt/format.h>

#include "agent/device/host.h"

namespace tangram::device {
namespace {

// Control memory is small, so it uses the host's base pages.
Pages Small() { return ChoosePages(false, 4096); }

HostDevice::Options Options(const std::string& rank, uint64_t bytes) {
  return {fmt::format("tangram-{}-control", rank), bytes, false, Small()};
}

}  // namespace

Status MakeControl(const std::string& rank, uint64_t bytes, RankDevices* to) {
  return Put(HostDevice::Make(Options(rank, bytes)), &to->control);
}

Status AdoptControl(const std::string& rank, uint64_t bytes, std::span<const int> descriptors,
                    RankDevices* to) {
  return Put(HostDevice::Adopt(Options(rank, bytes), descriptors), &to->control);
}

std::unique_ptr<Device> ControlImporter() { return HostDevice::Importer(Small()); }

}  // namespace tangram::device
