// Facts about the machine, for the interpretation of the other acts' figures; no decision depends
// on them.
#include <fmt/format.h>

#include <array>
#include <cctype>
#include <fstream>
#include <optional>
#include <string>

#include "tests/gpu/acts.h"
#include "tests/gpu/gpu.h"

namespace tangram::gpu {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string YesOrNo(bool value) { return value ? "yes" : "no"; }

// An older driver does not know all attributes.
std::optional<int> Attribute(const Gpu& gpu, CUdevice_attribute attribute) {
  int out = 0;
  if (gpu.driver().DeviceGetAttribute(&out, attribute, gpu.device()) != CUDA_SUCCESS) return {};
  return out;
}
std::string Told(const std::optional<int>& value, const char* unit = "") {
  return value ? fmt::format("{}{}", *value, unit) : "not told";
}
std::string Flag(const Gpu& gpu, CUdevice_attribute attribute) {
  const auto value = Attribute(gpu, attribute);
  return value ? YesOrNo(*value != 0) : "not told";
}

// The attribute may say yes although no handle can be made: handles need a service of the machine
// (IMEX).
std::string FabricHandles(const Gpu& gpu) {
  const std::string says = Flag(gpu, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
  if (says != "yes") return says;
  CUmemAllocationProp properties = gpu.properties();
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  CUmemGenericAllocationHandle handle = 0;
  const CUresult made = gpu.driver().MemCreate(&handle, gpu.granularity(), &properties, 0);
  if (made != CUDA_SUCCESS) {
    return "the device says yes, and making one: " + gpu.driver().Check(made, "no").message();
  }
  (void)gpu.driver().MemRelease(handle);
  return "yes, one was made";
}

// Other GPUs that this GPU reaches without the host; over NVLink also with atomics.
std::string Peers(const Gpu& gpu) {
  int devices = 0, peers = 0, linked = 0;
  gpu.Check(gpu.driver().DeviceGetCount(&devices), "counting devices");
  for (int i = 1; i < devices; ++i) {
    CUdevice other = 0;
    int can = 0, atomics = 0;
    gpu.Check(gpu.driver().DeviceGet(&other, i), "a device");
    gpu.Check(gpu.more().DeviceCanAccessPeer(&can, gpu.device(), other), "access to a peer");
    gpu.Check(gpu.more().DeviceGetP2PAttribute(
                  &atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, gpu.device(), other),
              "what a peer can");
    peers += can;
    linked += can != 0 && atomics != 0 ? 1 : 0;
  }
  return fmt::format("{} of {} other devices, {} of them over NVLink (by what they can)", peers,
                     devices - 1, linked);
}

}  // namespace

void RunMachine(const Task& task) {
  Recorder& out = *task.out;
  const std::string module = FirstLine("/proc/driver/nvidia/version");
  out.Fact("kernel module", module.empty() ? "not told (/proc/driver/nvidia/version)" : module);
  {
    auto driver = device::CudaDriver::Load(task.driver);
    if (!driver.ok()) throw Lacks(driver.status().message());
    int version = 0;
    (void)(*driver)->DriverGetVersion(&version);
    out.Fact("driver", fmt::format("CUDA {}.{}", version / 1000, version % 1000 / 10));
    CUdevice device = 0;
    std::array<char, 256> name{};
    (void)(*driver)->DeviceGet(&device, 0);
    (void)(*driver)->DeviceGetName(name.data(), name.size(), device);
    out.Fact("device", name.data());
    out.Fact("MIG slice", YesOrNo(std::string(name.data()).find(" MIG ") != std::string::npos) +
                              " (by its name)");
  }
  const Gpu gpu(task.driver);  // throws if the GPU is unfit; the facts above stay
  size_t free = 0, total = 0;
  gpu.Check(gpu.driver().MemGetInfo(&free, &total), "memory");
  out.Fact("memory", fmt::format("{:.1f} GiB, of which {:.1f} are free",
                                 static_cast<double>(total) / (1 << 30),
                                 static_cast<double>(free) / (1 << 30)));
  const auto clock = Attribute(gpu, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);  // kHz
  const auto width = Attribute(gpu, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
  if (clock && width) {
    out.Fact("memory bus",
             fmt::format("{} bits at {} MHz: {:.0f} GB/s read and written, by arithmetic", *width,
                         *clock / 1000, 2e-6 * *clock * *width / 8));
  }
  out.Fact("compute capability",
           fmt::format("{}.{}", gpu.Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                       gpu.Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)));
  out.Fact("multiprocessors", std::to_string(gpu.sms()));
  out.Fact("copy engines", Told(Attribute(gpu, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)));
  out.Fact("last cache", Told(Attribute(gpu, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE), " bytes"));
  out.Fact("ECC", Flag(gpu, CU_DEVICE_ATTRIBUTE_ECC_ENABLED));
  out.Fact("virtual memory management",
           fmt::format("yes, in multiples of {} MiB", gpu.granularity() >> 20));
  out.Fact("descriptors of memory", "yes");  // opening the context requires them
  out.Fact("fabric handles", FabricHandles(gpu));
  out.Fact("multicast", Flag(gpu, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED));
  out.Fact("peers", Peers(gpu));
  std::array<char, 64> bus{};
  gpu.Check(gpu.more().DeviceGetPCIBusId(bus.data(), bus.size(), gpu.device()), "its place");
  std::string place = bus.data();
  for (char& c : place) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::string id =
      FirstLine("/sys/bus/pci/devices/" + place.substr(place.size() - 12) + "/device");
  out.Fact("PCIe", id.empty() ? place : place + ", device " + id);
}

}  // namespace tangram::gpu
