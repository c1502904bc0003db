#include "agent/device/host_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include "agent/device/conformance.h"

namespace tangram::device {
namespace {

struct Host {
  static constexpr uint64_t kUnit = HostDevice::kPage;
  static std::unique_ptr<Device> Make(uint64_t bytes) {
    auto made = HostDevice::Make("test", bytes, /*read_only=*/true);
    if (!made.ok()) return nullptr;
    return std::move(made).value();
  }
  static std::unique_ptr<Device> Importer() { return HostDevice::Importer(); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Host, DeviceConformance, Host);

// What keeps an engine from the weights is how its descriptor was opened.
TEST(HostDevice, NobodyWritesThroughADescriptorForReading) {
  auto weights = HostDevice::Make("weights", HostDevice::kPage, /*read_only=*/true);
  ASSERT_TRUE(weights.ok());
  const int fd = (*weights)->fd();
  EXPECT_EQ(mmap(nullptr, HostDevice::kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0),
            MAP_FAILED);
  EXPECT_EQ(pwrite(fd, "x", 1, 0), -1);
  EXPECT_EQ(ftruncate(fd, 0), -1) << "a source that shrinks would kill its readers";
  EXPECT_EQ(ftruncate(fd, 2 * HostDevice::kPage), -1);
}

TEST(HostDevice, AnArenaForWritingIsWrittenByItsEngineButKeepsItsSize) {
  auto kv = HostDevice::Make("kv", HostDevice::kPage, /*read_only=*/false);
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

TEST(HostDevice, AnArenaOutlivesItsOwnerAndIsTakenOver) {
  auto first = HostDevice::Make("arena", 4 * HostDevice::kPage, true);
  ASSERT_TRUE(first.ok());
  auto range = (*first)->Reserve(4 * HostDevice::kPage);
  auto skipped = (*first)->Create(HostDevice::kPage);
  auto handle = (*first)->Create(2 * HostDevice::kPage);
  ASSERT_TRUE(range.ok() && skipped.ok() && handle.ok());
  ASSERT_TRUE((*first)->Map(**range, 0, *handle).ok());
  ASSERT_TRUE((*first)->SetAccess(**range, 0, 2 * HostDevice::kPage, Access::kReadWrite).ok());
  (*range)->base()[HostDevice::kPage] = std::byte('x');
  const auto extents = (*first)->ExportHandle(*handle)->extents;
  const int kept = dup((*first)->fd());  // as an engine keeps it: for reading
  first->reset();

  EXPECT_EQ(HostDevice::Adopt(kept, HostDevice::kPage, true).status().code(), Code::kInvalid);
  auto second = HostDevice::Adopt(kept, 4 * HostDevice::kPage, true);
  ASSERT_TRUE(second.ok()) << second.status().message();
  close(kept);
  auto claimed = (*second)->Claim(extents);
  ASSERT_TRUE(claimed.ok()) << claimed.status().message();
  EXPECT_EQ((*second)->free_bytes(), 2 * HostDevice::kPage);
  EXPECT_EQ((*second)->Claim(extents).status().code(), Code::kInvalid) << "it is not free";
  auto again = (*second)->Reserve(2 * HostDevice::kPage);
  ASSERT_TRUE((*second)->Map(**again, 0, *claimed).ok());
  ASSERT_TRUE((*second)->SetAccess(**again, 0, 2 * HostDevice::kPage, Access::kReadWrite).ok());
  EXPECT_EQ((*again)->base()[HostDevice::kPage], std::byte('x'));
  (*again)->base()[0] = std::byte('y');  // the new owner writes, too
  claimed->reset();
  ASSERT_TRUE((*second)->Unmap(**again, 0).ok());
  EXPECT_EQ((*second)->free_bytes(), 4 * HostDevice::kPage);
}

// What is claimed comes from an engine's socket: it may say anything.
TEST(HostDevice, AClaimThatWrapsOrIsNotInPagesIsRefusedAndTakesNothing) {
  constexpr uint64_t kPage = HostDevice::kPage;
  auto device = HostDevice::Make("arena", 4 * kPage, true);
  ASSERT_TRUE(device.ok());
  const std::vector<std::vector<Extent>> bad{
      {{UINT64_MAX - kPage + 1, 2 * kPage}},  // offset + length = 4096
      {{0, UINT64_MAX - kPage + 1}},
      {{kPage, UINT64_MAX - kPage + 1}},
      {{4 * kPage, kPage}},
      {{3 * kPage, 2 * kPage}},
      {{1, kPage}},
      {{0, kPage + 1}},
      {{0, 0}},
      {{0, kPage}, {0, kPage}},
      {{kPage, kPage}, {3 * kPage, kPage}, {0, 3 * kPage}},
      {},
  };
  for (const auto& extents : bad) {
    EXPECT_EQ((*device)->Claim(extents).status().code(), Code::kInvalid);
    EXPECT_EQ((*device)->free_bytes(), 4 * kPage);
    // The free list is whole: one handle takes all of it, as one run.
    const auto all = (*device)->Create(4 * kPage);
    ASSERT_TRUE(all.ok()) << all.status().message();
    EXPECT_EQ((*device)->ExportHandle(*all)->extents.size(), 1u);
  }
}

TEST(HostDevice, RoundsUpToPagesAndRefusesNothing) {
  auto device = HostDevice::Make("odd", HostDevice::kPage + 1, true);
  ASSERT_TRUE(device.ok());
  EXPECT_EQ((*device)->total_bytes(), 2 * HostDevice::kPage);
  EXPECT_EQ(HostDevice::Make("empty", 0, true).status().code(), Code::kInvalid);
}

}  // namespace
}  // namespace tangram::device
