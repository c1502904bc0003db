// Memory of a platform that an engine has mapped, and access to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/device/platform.h"
#ifdef TANGRAM_FAKE_CUDA
#include "agent/device/testing/fake_cuda.h"
#endif

namespace tangram::engine::testing {

// Platforms of such tests: `cuda` if the build has the recording driver.
inline std::vector<std::string> Platforms() {
#ifdef TANGRAM_FAKE_CUDA
  return {"host", "cuda"};
#else
  return {"host"};
#endif
}

class DeviceMemory {
 public:
  static constexpr uint64_t kBytes = 2 << 20;

  explicit DeviceMemory(const std::string& platform) {
    device::PlatformOptions options{.name = platform, .map_bytes = kBytes};
#ifdef TANGRAM_FAKE_CUDA
    if (platform == "cuda") device::testing::FakeCuda::Become({});
    options.driver = TANGRAM_FAKE_CUDA;
#endif
    platform_ = device::MakePlatform(options).value();
    owner_ = platform_->Make("rank", {kBytes, kBytes, 4096}).value();
    whole_ = device::MapWhole(*owner_.kv).value();
    importer_ = platform_->Importers().kv;
  }

  // As in an engine: a device without its own memory, and an address.
  device::Device* device() { return importer_.get(); }
  std::byte* address() const { return reinterpret_cast<std::byte*>(whole_.first->address()); }

  void Put(uint64_t offset, std::vector<std::byte> bytes) {
    const device::CopyOp op{In(offset, bytes.size()), device::Memory::Own(bytes)};
    const Status put = owner_.kv->Copy({&op, 1}).Wait();
    if (!put.ok()) std::abort();
  }
  std::vector<std::byte> Get(uint64_t offset, uint64_t bytes) {
    std::vector<std::byte> out(bytes);
    const device::CopyOp op{device::Memory::Own(out), In(offset, bytes)};
    if (!owner_.kv->Copy({&op, 1}).Wait().ok()) std::abort();
    return out;
  }

 private:
  device::Memory In(uint64_t offset, uint64_t bytes) {
    return {owner_.kv.get(), whole_.first->address() + offset, bytes};
  }

  std::unique_ptr<device::Platform> platform_;
  device::RankDevices owner_;
  std::unique_ptr<device::Device> importer_;
  std::pair<device::SpacePtr, device::Mapping> whole_;  // last member: it is destroyed first
};

}  // namespace tangram::engine::testing
