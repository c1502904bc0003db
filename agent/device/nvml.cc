#include "agent/device/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace tangram::device {
namespace {

// The used part of nvml.h. Its pointers are void* in every call, so a caller and a separately
// compiled library agree on a function's type (sanitizers compare it).
constexpr int kSuccess = 0;
constexpr unsigned kCompleted = 3;  // the GPU has joined its domain
struct FabricInfo {
  std::array<uint8_t, 16> cluster{};
  int status = 0;
  unsigned clique = 0;
  unsigned state = 0;
};

}  // namespace

std::string FabricOf(const std::string& library, const std::string& pci_bus_id) {
  void* const opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) return "";
  const auto init = reinterpret_cast<int (*)()>(dlsym(opened, "nvmlInit_v2"));
  const auto shutdown = reinterpret_cast<int (*)()>(dlsym(opened, "nvmlShutdown"));
  const auto find = reinterpret_cast<int (*)(const char*, void**)>(
      dlsym(opened, "nvmlDeviceGetHandleByPciBusId_v2"));
  const auto tell = reinterpret_cast<int (*)(void*, void*)>(
      dlsym(opened, "nvmlDeviceGetGpuFabricInfo"));  // since driver 535
  std::string out;
  if (init != nullptr && shutdown != nullptr && init() == kSuccess) {
    void* device = nullptr;
    FabricInfo info;
    const bool told = find != nullptr && tell != nullptr &&
                      find(pci_bus_id.c_str(), &device) == kSuccess &&
                      tell(device, &info) == kSuccess;
    const bool named = std::any_of(info.cluster.begin(), info.cluster.end(),
                                   [](uint8_t byte) { return byte != 0; });
    if (told && named && info.state == kCompleted && info.status == kSuccess) {
      for (const uint8_t byte : info.cluster) out += fmt::format("{:02x}", byte);
      out += fmt::format(".{}", info.clique);
    }
    (void)shutdown();
  }
  dlclose(opened);
  return out;
}

}  // namespace tangram::device
