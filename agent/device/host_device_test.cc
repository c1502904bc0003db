#include "agent/device/host_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include "agent/device/conformance.h"

namespace tangram::device {
namespace {

struct Host {
  static constexpr uint64_t kUnit = HostDevice::kPage;
  static std::unique_ptr<Device> Make(uint64_t bytes) {
    auto made = HostDevice::Make("test", bytes, /*sealed=*/true);
    if (!made.ok()) return nullptr;
    return std::move(made).value();
  }
  static std::unique_ptr<Device> Importer() { return HostDevice::Importer(); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Host, DeviceConformance, Host);

// An engine is given the arena's own descriptor: what keeps it from the weights is the seal.
TEST(HostDevice, NobodyElseWritesASealedArena) {
  auto weights = HostDevice::Make("weights", HostDevice::kPage, /*sealed=*/true);
  ASSERT_TRUE(weights.ok());
  const int fd = (*weights)->fd();
  EXPECT_EQ(mmap(nullptr, HostDevice::kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0),
            MAP_FAILED);
  EXPECT_EQ(pwrite(fd, "x", 1, 0), -1);
  EXPECT_EQ(ftruncate(fd, 0), -1) << "a source that shrinks would kill its readers";
  EXPECT_EQ(ftruncate(fd, 2 * HostDevice::kPage), -1);
}

TEST(HostDevice, AnUnsealedArenaIsWrittenByItsEngineButKeepsItsSize) {
  auto kv = HostDevice::Make("kv", HostDevice::kPage, /*sealed=*/false);
  ASSERT_TRUE(kv.ok());
  const int fd = (*kv)->fd();
  void* view = mmap(nullptr, HostDevice::kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(view, MAP_FAILED);
  auto range = (*kv)->Reserve(HostDevice::kPage);
  auto handle = (*kv)->Create(HostDevice::kPage);
  ASSERT_TRUE(range.ok() && handle.ok());
  ASSERT_TRUE((*kv)->Map(**range, 0, *handle).ok());
  ASSERT_TRUE((*kv)->SetAccess(**range, 0, HostDevice::kPage, Access::kReadWrite).ok());
  static_cast<char*>(view)[17] = 'x';
  EXPECT_EQ((*range)->base()[17], std::byte('x'));
  munmap(view, HostDevice::kPage);
  EXPECT_EQ(ftruncate(fd, 0), -1);
}

TEST(HostDevice, RoundsUpToPagesAndRefusesNothing) {
  auto device = HostDevice::Make("odd", HostDevice::kPage + 1, true);
  ASSERT_TRUE(device.ok());
  EXPECT_EQ((*device)->total_bytes(), 2 * HostDevice::kPage);
  EXPECT_EQ(HostDevice::Make("empty", 0, true).status().code(), Code::kInvalid);
}

}  // namespace
}  // namespace tangram::device
