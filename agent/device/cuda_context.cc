#include "agent/device/cuda_context.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "kernels/kernels.h"

namespace tangram::device {
namespace {

Status Unfit(const std::string& name, const std::string& why) {
  return {Code::kInvalid, fmt::format("cuda: {} cannot be used: {}", name, why)};
}

}  // namespace

Status CudaContext::Examine(int ordinal) {
  int devices = 0;
  TANGRAM_RETURN_IF_ERROR(driver_->Check(driver_->DeviceGetCount(&devices), "counting devices"));
  if (ordinal < 0 || ordinal >= devices) {
    return {Code::kInvalid, fmt::format("cuda: there is no device {}: this process may use {}, "
                                        "counted from 0 (see CUDA_VISIBLE_DEVICES)",
                                        ordinal, devices)};
  }
  TANGRAM_RETURN_IF_ERROR(driver_->Check(driver_->DeviceGet(&device_, ordinal), "a device"));
  std::array<char, 256> name{};
  TANGRAM_RETURN_IF_ERROR(
      driver_->Check(driver_->DeviceGetName(name.data(), name.size(), device_), "its name"));
  name_ = name.data();
  // Only the name shows a MIG slice: its attributes are those of the whole GPU.
  if (name_.find(" MIG ") != std::string::npos) {
    return Unfit(name_,
                 "a MIG slice reaches no other GPU, and ranks copy from each other's; give "
                 "the pod a whole one");
  }
  const auto get = [&](CUdevice_attribute attribute, int* value) {
    return driver_->Check(driver_->DeviceGetAttribute(value, attribute, device_),
                          "an attribute of " + name_);
  };
  int major = 0, minor = 0, managed = 0, shared = 0;
  TANGRAM_RETURN_IF_ERROR(get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major));
  TANGRAM_RETURN_IF_ERROR(get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor));
  capability_ = fmt::format("{}.{}", major, minor);
  if (major < CudaKernels::kLeastMajor) {
    return Unfit(name_, fmt::format("its compute capability is {}, and the kernels are for {}.0 "
                                    "and newer (A100, H100, B200, ...)",
                                    capability_, CudaKernels::kLeastMajor));
  }
  TANGRAM_RETURN_IF_ERROR(get(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, &managed));
  TANGRAM_RETURN_IF_ERROR(
      get(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, &shared));
  if (managed == 0) return Unfit(name_, "it has no virtual memory management (cuMemMap)");
  if (shared == 0) return Unfit(name_, "its memory cannot be passed on as a file descriptor");
  const CUmemAllocationProp memory = properties();
  size_t unit = 0;
  TANGRAM_RETURN_IF_ERROR(driver_->Check(
      driver_->MemGetAllocationGranularity(&unit, &memory, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "its granularity"));
  granularity_ = unit;
  return driver_->Check(driver_->DevicePrimaryCtxRetain(&context_, device_),
                        "the primary context of " + name_);
}

Result<std::shared_ptr<CudaContext>> CudaContext::Open(const std::string& library, int ordinal) {
  static std::mutex mu;
  static std::map<std::pair<std::string, int>, std::weak_ptr<CudaContext>> open;
  const std::scoped_lock lock(mu);
  std::weak_ptr<CudaContext>& known = open[{library, ordinal}];
  if (auto context = known.lock()) return context;
  auto driver = CudaDriver::Load(library);
  if (!driver.ok()) return driver.status();
  std::shared_ptr<CudaContext> context(new CudaContext(std::move(driver).value()));
  TANGRAM_RETURN_IF_ERROR(context->Examine(ordinal));
  known = context;
  return context;
}

CudaContext::~CudaContext() {
  if (context_ == nullptr) return;
  {
    const Entered in(*this);
    scratch_.reset();
    kernels_.reset();
  }
  (void)driver_->DevicePrimaryCtxRelease(device_);
}

Result<CudaContext::Launching> CudaContext::ForLaunches() {
  if (kernels::Image().empty()) return Launching();
  const std::scoped_lock lock(mu_);
  const Entered in(*this);
  if (kernels_ == nullptr) {
    auto loaded = CudaKernels::Load(driver_);
    if (!loaded.ok()) return loaded.status();
    kernels_ = std::move(loaded).value();
  }
  if (scratch_ == nullptr) {
    auto made = CudaScratch::Make(driver_);
    if (made.status().code() == Code::kNoMemory) {
      return Status(Code::kNoMemory, fmt::format("{}; {}", made.status().message(), Room()));
    }
    if (!made.ok()) return made.status();
    scratch_ = std::move(made).value();
  }
  return Launching{kernels_.get(), scratch_.get()};
}

CUmemAllocationProp CudaContext::properties() const {
  CUmemAllocationProp out{};
  out.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  out.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  out.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  out.location.id = device_;
  return out;
}

std::string CudaContext::PciBusId() const {
  std::array<char, 32> out{};
  if (driver_->DeviceGetPCIBusId(out.data(), out.size(), device_) != CUDA_SUCCESS) return "";
  return out.data();
}

std::string CudaContext::Room() const {
  const Entered in(*this);
  size_t free = 0, total = 0;
  if (driver_->MemGetInfo(&free, &total) != CUDA_SUCCESS) return "how much is free is unknown";
  return fmt::format("{} of {} bytes of {} are free", free, total, name_);
}

// The thread may belong to another library with its own current context.
CudaContext::Entered::Entered(const CudaContext& context) : driver_(context.driver()) {
  CUcontext now = nullptr;
  (void)driver_.CtxGetCurrent(&now);
  if (now == context.context_) return;
  back_ = now;
  // Calls that fail without the context report that themselves.
  (void)driver_.CtxSetCurrent(context.context_);
}

CudaContext::Entered::~Entered() {
  if (back_ != nullptr) (void)driver_.CtxSetCurrent(back_);
}

}  // namespace tangram::device
