#include "agent/device/cuda_driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace tangram::device {
namespace {

// cuGetProcAddress has five parameters since CUDA 12; the exported function of this name has them.
using GetProcAddress = CUresult (*)(const char* symbol, void** function, int version,
                                    cuuint64_t flags, CUdriverProcAddressQueryResult* status);
constexpr const char* kGetProcAddress = "cuGetProcAddress_v2";

std::string Version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Status TooOld(const std::string& path, const std::string& why) {
  return {Code::kInvalid,
          fmt::format("cuda: the driver {} is too old: {}; CUDA {} or newer is needed", path, why,
                      Version(CudaDriver::kVersion))};
}

// Errors after which, by the driver's manual, the process must end and be started again: all its
// later work on the device fails.
bool LosesTheDevice(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
      return true;
    default:
      return false;
  }
}

}  // namespace

Status CudaDriver::Resolve(void* library, const std::string& path) {
  const auto find = reinterpret_cast<GetProcAddress>(dlsym(library, kGetProcAddress));
  if (find == nullptr) return TooOld(path, fmt::format("it has no {}", kGetProcAddress));
  const auto get = [&](const char* name, auto* function) -> Status {
    void* found = nullptr;
    const CUresult result = find(name, &found, kVersion, CU_GET_PROC_ADDRESS_DEFAULT, nullptr);
    if (result != CUDA_SUCCESS || found == nullptr) {
      return TooOld(path, fmt::format("it has no {}", name));
    }
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(found);
    return OkStatus();
  };
#define TANGRAM_CUDA_GET(name) TANGRAM_RETURN_IF_ERROR(get("cu" #name, &this->name));
  TANGRAM_CUDA_ENTRY_POINTS(TANGRAM_CUDA_GET)
#undef TANGRAM_CUDA_GET
  return OkStatus();
}

Result<std::shared_ptr<const CudaDriver>> CudaDriver::Load(const std::string& library) {
  void* const opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    const char* why = dlerror();
    return Status(Code::kInvalid, fmt::format("cuda: driver not found ({}); give this process a "
                                              "GPU and its driver, or use platform host",
                                              why != nullptr ? why : library));
  }
  std::shared_ptr<CudaDriver> driver(new CudaDriver);
  TANGRAM_RETURN_IF_ERROR(driver->Resolve(opened, library));
  const CUresult begun = driver->Init(0);
  int version = 0, devices = 0;
  if (begun != CUDA_ERROR_NO_DEVICE) {
    TANGRAM_RETURN_IF_ERROR(driver->Check(begun, "starting the driver"));
    TANGRAM_RETURN_IF_ERROR(driver->Check(driver->DriverGetVersion(&version), "its version"));
    driver->version_ = Version(version);
    if (version < kVersion) return TooOld(library, "it is of CUDA " + driver->version());
    TANGRAM_RETURN_IF_ERROR(
        driver->Check(driver->DeviceGetCount(&devices), "counting the devices"));
  }
  if (devices == 0) {
    return Status(Code::kInvalid,
                  fmt::format("cuda: no device: the driver {} finds no GPU that this process may "
                              "use (see CUDA_VISIBLE_DEVICES, or what the pod asks for)",
                              library));
  }
  return std::shared_ptr<const CudaDriver>(std::move(driver));
}

Status CudaDriver::Check(CUresult result, const std::string& what) const {
  if (result == CUDA_SUCCESS) return OkStatus();
  const char *name = nullptr, *text = nullptr;
  if (GetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "an unknown error";
  if (GetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) text = "no text";
  const Code code = result == CUDA_ERROR_OUT_OF_MEMORY   ? Code::kNoMemory
                    : result == CUDA_ERROR_INVALID_VALUE ? Code::kInvalid
                                                         : Code::kInternal;
  Status status{code,
                fmt::format("cuda: {}: {} ({}, {})", what, text, name, static_cast<int>(result))};
  if (LosesTheDevice(result)) {
    const std::scoped_lock lock(mu_);
    if (health_.ok()) health_ = status;
  }
  return status;
}

Status CudaDriver::Health() const {
  const std::scoped_lock lock(mu_);
  if (health_.ok()) return OkStatus();
  return {Code::kInternal, "this process has lost the GPU: " + health_.message()};
}

}  // namespace tangram::device
