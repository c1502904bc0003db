#include "tests/gpu/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <type_traits>

#include "agent/device/cuda_driver.h"

namespace tangram::gpu {

Result<MoreDriver> MoreDriver::Load(const std::string& library) {
  // Opened a second time; like the first one it is never closed.
  void* const opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  using Find = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
  const auto find =
      opened == nullptr ? nullptr : reinterpret_cast<Find>(dlsym(opened, "cuGetProcAddress_v2"));
  if (find == nullptr) return Status(Code::kInvalid, "cuda: no driver in " + library);
  const auto get = [&](const char* name, int version, auto* function) {
    void* found = nullptr;
    (void)find(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, nullptr);
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(found);
    return found != nullptr;
  };
  MoreDriver out;
#define TANGRAM_GPU_GET(name)                                                                      \
  if (!get("cu" #name, device::CudaDriver::kVersion, &out.name)) {                                 \
    return Status(Code::kInvalid, fmt::format("cuda: the driver {} has no cu{}", library, #name)); \
  }
  TANGRAM_GPU_ENTRY_POINTS(TANGRAM_GPU_GET)
#undef TANGRAM_GPU_GET
  (void)get("cuMemcpyBatchAsync", 13000, &out.MemcpyBatchAsync);
  return out;
}

}  // namespace tangram::gpu
