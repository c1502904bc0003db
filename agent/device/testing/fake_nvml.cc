// libfakenvml.so: a management library that reports one GPU as in FAKE_NVML: "STATE CLIQUE UUID",
// with the uuid in hexadecimal digits.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {
bool begun = false;
}

extern "C" {

struct FakeFabricInfo {
  uint8_t cluster[16];
  int status;
  unsigned clique, state;
};

int nvmlInit_v2() {
  begun = true;
  return 0;
}
int nvmlShutdown() {
  begun = false;
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
  *device = &begun;
  return begun && std::strcmp(address, "ffff:00:00.0") == 0 ? 0 : 6;  // not found
}
int nvmlDeviceGetGpuFabricInfo(void* device, void* info) {
  const char* const told = std::getenv("FAKE_NVML");
  if (!begun || device != &begun || told == nullptr) return 3;  // not supported
  auto* const out = static_cast<FakeFabricInfo*>(info);
  *out = {};
  char digits[33] = {};
  if (std::sscanf(told, "%u %u %32s", &out->state, &out->clique, digits) != 3) return 2;
  for (size_t i = 0; i < sizeof out->cluster; ++i) {
    unsigned byte = 0;
    if (std::sscanf(digits + 2 * i, "%2x", &byte) != 1) return 2;
    out->cluster[i] = static_cast<uint8_t>(byte);
  }
  return 0;
}

}  // extern "C"
