// The suite of every device over the driver in TANGRAM_GPU_DRIVER: in CI the recording one, on a
// GPU the real one.
#include "agent/device/conformance.h"

#include <cstdlib>

#include "agent/device/cuda.h"

namespace tangram::device {
namespace {

std::shared_ptr<CudaContext> Open() {
  const char* const library = std::getenv("TANGRAM_GPU_DRIVER");
  auto context = CudaContext::Open(library != nullptr ? library : "libcuda.so.1", 0);
  EXPECT_TRUE(context.ok()) << context.status().message();
  return context.ok() ? *context : nullptr;
}

struct Gpu {
  static constexpr uint64_t kUnit = 2 << 20;
  static constexpr bool kBytes = true;
  // A handle's descriptor has no access rights; the importer chooses them in the mapping.
  static constexpr bool kReadOnlyExports = false;
  static std::unique_ptr<Device> Make(uint64_t bytes) {
    const auto context = Open();
    if (context == nullptr) return nullptr;
    auto made = CudaDevice::Make(context, {bytes, kUnit});
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (!made.ok()) return nullptr;
    return std::move(made).value();
  }
  static std::unique_ptr<Device> Importer() { return CudaDevice::Importer(Open(), kUnit); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Gpu, DeviceConformance, Gpu);

}  // namespace
}  // namespace tangram::device
