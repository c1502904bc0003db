// The recording driver: initialisation, devices, the one context, and entry points by name.
#include <fmt/format.h>

#include <cstring>
#include <string>

#include "agent/device/cuda_driver.h"
#include "agent/device/testing/fake_cuda_state.h"

using tangram::device::testing::Call;
using tangram::device::testing::Current;
using tangram::device::testing::FakeState;
using tangram::device::testing::Primary;
using tangram::device::testing::State;

namespace {

// Entry points that only others than the backend use (tests/gpu).
#if CUDA_VERSION >= 13000
#define TANGRAM_FAKE_BATCH(X) X(MemcpyBatchAsync)
#else
#define TANGRAM_FAKE_BATCH(X)
#endif
#define TANGRAM_FAKE_MORE(X)   \
  X(DeviceCanAccessPeer)       \
  X(DeviceGetP2PAttribute)     \
  X(LaunchHostFunc)            \
  X(StreamWaitEvent)           \
  X(EventElapsedTime)          \
  X(StreamBeginCapture)        \
  X(StreamEndCapture)          \
  X(GraphInstantiateWithFlags) \
  X(GraphLaunch)               \
  X(GraphExecDestroy)          \
  X(GraphDestroy)

struct Error {
  CUresult code;
  const char *name, *text;
};
constexpr Error kErrors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE",
     "the operation cannot be performed in "
     "the present state"},
    {CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE",
     "uncorrectable ECC error encountered"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
};

const Error* Known(CUresult code) {
  for (const Error& error : kErrors) {
    if (error.code == code) return &error;
  }
  return nullptr;
}

bool IsDevice(CUdevice device) { return device >= 0 && device < State().machine.devices; }

}  // namespace

CUresult cuInit(unsigned int flags) {
  Call call("cuInit", Call::kNothing);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (flags != 0) return call.Refuse(CUDA_ERROR_INVALID_VALUE, "flags must be 0");
  if (State().machine.devices == 0) return CUDA_ERROR_NO_DEVICE;
  State().begun = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  Call call("cuDriverGetVersion", Call::kNothing);
  *version = State().machine.version;
  return call.failure();
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  const Error* const known = Known(error);
  *name = known != nullptr ? known->name : nullptr;
  return known != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  const Error* const known = Known(error);
  *text = known != nullptr ? known->text : nullptr;
  return known != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int* count) {
  Call call("cuDeviceGetCount");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  *count = State().machine.devices;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  Call call("cuDeviceGet");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (!IsDevice(ordinal)) return call.Refuse(CUDA_ERROR_INVALID_DEVICE, "no such ordinal");
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  Call call("cuDeviceGetName");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (!IsDevice(device)) return call.Refuse(CUDA_ERROR_INVALID_DEVICE, "no such device");
  fmt::format_to_n(name, static_cast<size_t>(length) - 1, "{}{}", State().machine.name, '\0');
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  Call call("cuDeviceGetAttribute");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (!IsDevice(device)) return call.Refuse(CUDA_ERROR_INVALID_DEVICE, "no such device");
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      *value = State().machine.memory_management ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      *value = State().machine.posix_descriptors ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = State().machine.capability / 10;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = State().machine.capability % 10;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 132;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:  // in kHz
      *value = 3'201'000;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:  // in bits
      *value = 6144;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      *value = 50 << 20;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      *value = 3;
      return CUDA_SUCCESS;
    default:
      return call.Refuse(CUDA_ERROR_INVALID_VALUE, "an attribute that was not recorded");
  }
}

CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  Call call("cuDeviceGetPCIBusId");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (!IsDevice(device)) return call.Refuse(CUDA_ERROR_INVALID_DEVICE, "no such device");
  fmt::format_to_n(text, static_cast<size_t>(length) - 1, "ffff:{:02x}:00.0{}", device, '\0');
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  Call call("cuDeviceCanAccessPeer");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (!IsDevice(device) || !IsDevice(peer)) {
    return call.Refuse(CUDA_ERROR_INVALID_DEVICE, "no such device");
  }
  *can = 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute, CUdevice device,
                                 CUdevice peer) {
  Call call("cuDeviceGetP2PAttribute");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (!IsDevice(device) || !IsDevice(peer)) {
    return call.Refuse(CUDA_ERROR_INVALID_DEVICE, "no such device");
  }
  *value = 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  Call call("cuDevicePrimaryCtxRetain");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (device != 0) return call.Refuse(CUDA_ERROR_INVALID_DEVICE, "one device was recorded");
  ++State().retained;
  *context = Primary();
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  Call call("cuDevicePrimaryCtxRelease");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  FakeState& state = State();
  if (device != 0 || state.retained == 0) {
    return call.Refuse(CUDA_ERROR_INVALID_CONTEXT, "released more often than retained");
  }
  --state.retained;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  Call call("cuCtxGetCurrent");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  *context = Current();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  Call call("cuCtxSetCurrent");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (context != nullptr && (context != Primary() || State().retained == 0)) {
    return call.Refuse(CUDA_ERROR_INVALID_CONTEXT, "a context that is not there");
  }
  Current() = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  Call call("cuCtxGetStreamPriorityRange", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t,
                          CUdriverProcAddressQueryResult* status) {
  struct Entry {
    const char* name;
    void* function;
  };
#define TANGRAM_FAKE_ENTRY(name) {"cu" #name, reinterpret_cast<void*>(&cu##name)},
  static const Entry entries[] = {TANGRAM_CUDA_ENTRY_POINTS(TANGRAM_FAKE_ENTRY) TANGRAM_FAKE_MORE(
      TANGRAM_FAKE_ENTRY) TANGRAM_FAKE_BATCH(TANGRAM_FAKE_ENTRY)};
#undef TANGRAM_FAKE_ENTRY
  Call call("cuGetProcAddress", Call::kNothing);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  *function = nullptr;
  for (const Entry& entry : entries) {
    if (std::strcmp(entry.name, symbol) != 0 || State().machine.missing == symbol) continue;
    if (version < 12000) return call.Refuse(CUDA_ERROR_INVALID_VALUE, "an older one was asked for");
    *function = entry.function;
  }
  if (status != nullptr) {
    *status =
        *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
