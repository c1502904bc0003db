#include "agent/device/host.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "agent/base/testing/no_threads.h"

namespace tangram::device {
namespace {

constexpr Pages kPages{};
constexpr uint64_t kPage = kPages.unit;

Export ExportOfAll(HostDevice* device) {
  return device->ExportOf(device->Create(device->total_bytes()).value()).value();
}

// Only the open mode of its descriptor keeps an engine from writing the weights.
TEST(HostDevice, RejectsWritesThroughReadOnlyDescriptor) {
  auto weights = HostDevice::Make({"weights", kPage, /*read_only=*/true, kPages});
  ASSERT_TRUE(weights.ok());
  const Export all = ExportOfAll(weights->get());
  const int fd = all.descriptors[0]->get();
  EXPECT_EQ(mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_EQ(pwrite(fd, "x", 1, 0), -1);
  EXPECT_EQ(ftruncate(fd, 0), -1) << "a source that shrinks would kill its readers";
  EXPECT_EQ(ftruncate(fd, 2 * kPage), -1);
}

TEST(HostDevice, AllowsEngineWritesButNoResize) {
  auto kv = HostDevice::Make({"kv", kPage, /*read_only=*/false, kPages});
  ASSERT_TRUE(kv.ok());
  auto whole = MapWhole(**kv);
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  const Export all = (*kv)->ExportOf(whole->second.block()).value();
  const int fd = all.descriptors[0]->get();
  void* view = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(view, MAP_FAILED);
  static_cast<char*>(view)[17] = 'x';
  EXPECT_EQ(View({kv->get(), whole->first->address(), kPage})[17], std::byte('x'));
  munmap(view, kPage);
  EXPECT_EQ(ftruncate(fd, 0), -1);
}

// An engine keeps what it had mapped, for reading: here two pages per descriptor, the last of
// three. The rest ended with its owner.
TEST(HostDevice, AdoptsMemoryAfterOwnerIsDestroyed) {
  for (const uint64_t file_bytes : {uint64_t{0}, 2 * kPage}) {
    const HostDevice::Options arena{"arena", 6 * kPage, true, kPages, file_bytes};
    auto first = HostDevice::Make(arena);
    ASSERT_TRUE(first.ok());
    const BlockPtr skipped = (*first)->Create((file_bytes == 0 ? 1 : 4) * kPage).value();
    Export kept;
    {
      auto space = (*first)->Reserve(2 * kPage);
      const BlockPtr block = (*first)->Create(2 * kPage).value();
      const Placement placement{0, block, {0, 2 * kPage}};
      const auto mapped = (*first)->Map(*space, {&placement, 1}, Access::kReadWrite);
      ASSERT_TRUE(mapped.ok());
      View({first->get(), (*space)->address(), 2 * kPage})[kPage] = std::byte('x');
      kept = (*first)->ExportOf(block).value();
    }
    ASSERT_EQ(kept.descriptors.size(), 1U);
    const int fd = kept.descriptors[0]->get();
    first->reset();

    const std::vector<int> one{fd}, twice{fd, fd};
    HostDevice::Options small = arena;
    small.bytes = kPage;
    EXPECT_EQ(HostDevice::Adopt(small, one).status().code(), Code::kInvalid);
    EXPECT_EQ(HostDevice::Adopt(arena, twice).status().code(), Code::kInvalid)
        << "one memory would be two";
    auto second = HostDevice::Adopt(arena, one);
    ASSERT_TRUE(second.ok()) << second.status().message();
    EXPECT_EQ((*second)->total_bytes(), 6 * kPage);
    EXPECT_EQ((*second)->free_bytes(), 6 * kPage);
    for (const Extent& bad : {Extent{0, kPage, 9}, Extent{6 * kPage, kPage}, Extent{1, kPage}}) {
      EXPECT_EQ((*second)->Claim({&bad, 1}).status().code(), Code::kInvalid);
    }
    auto claimed = (*second)->Claim(kept.extents);
    ASSERT_TRUE(claimed.ok()) << claimed.status().message();
    EXPECT_EQ((*second)->free_bytes(), 4 * kPage);
    EXPECT_EQ((*second)->Claim(kept.extents).status().code(), Code::kInvalid) << "it is not free";
    {
      auto again = (*second)->Reserve(2 * kPage);
      const Placement placement{0, *claimed, {0, 2 * kPage}};
      const auto mapped = (*second)->Map(*again, {&placement, 1}, Access::kReadWrite);
      ASSERT_TRUE(mapped.ok());
      const auto bytes = View({second->get(), (*again)->address(), 2 * kPage});
      EXPECT_EQ(bytes[kPage], std::byte('x'));
      bytes[0] = std::byte('y');  // the new owner can write
      claimed->reset();
    }
    EXPECT_EQ((*second)->free_bytes(), 6 * kPage);
  }
}

// As at vm.max_map_count: a process that can still read the bytes would see later writes of other
// owners.
TEST(HostDevice, DoesNotReuseMemoryWhenUnmapFails) {
  auto made = HostDevice::Make({"arena", 4 * kPage, true, kPages});
  ASSERT_TRUE(made.ok());
  HostDevice& device = **made;
  const SpacePtr space = device.Reserve(4 * kPage).value();
  std::jthread([&] {
    const auto map = [&](uint64_t page) {
      const Placement placement{page * kPage, device.Create(kPage).value(), {0, kPage}};
      return std::move(device.Map(space, {&placement, 1}, Access::kReadWrite).value()[0]);
    };
    auto alone = std::make_unique<Mapping>(map(0));
    std::vector<Mapping> together;
    for (const uint64_t page : {1, 2}) together.push_back(map(page));
    ASSERT_EQ(device.free_bytes(), kPage);
    tangram::testing::FailCall(SYS_mmap, ENOMEM, 2, ~0U, PROT_NONE);
    alone.reset();
    device.Release(std::move(together), Event::Finished(OkStatus()));
  }).join();
  EXPECT_EQ(device.free_bytes(), kPage);
  const BlockPtr last = device.Create(kPage).value();
  for (const uint64_t page : {0, 1, 2, 3}) {
    const Placement placement{page * kPage, last, {0, kPage}};
    EXPECT_EQ(device.Map(space, {&placement, 1}, Access::kRead).ok(), page == 3) << page;
  }
}

TEST(HostDevice, RoundsUpToPagesAndRejectsZeroBytes) {
  auto device = HostDevice::Make({"odd", kPage + 1, true, kPages});
  ASSERT_TRUE(device.ok());
  EXPECT_EQ((*device)->total_bytes(), 2 * kPage);
  EXPECT_EQ(HostDevice::Make({"empty", 0, true, kPages}).status().code(), Code::kInvalid);
}

// A machine without a pool of huge pages reports that at the start, not by a SIGBUS later.
TEST(HostDevice, RejectsUnavailableHugePages) {
  const Pages huge{PageKind::kHugeTlb, 2 << 20, 2 << 20};
  const auto device = HostDevice::Make({"huge", uint64_t{1} << 40, true, huge});
  EXPECT_EQ(device.status().code(), Code::kNoMemory) << device.status().message();
}

TEST(Pages, SelectsHugePagesOnlyForLargeMappings) {
  EXPECT_EQ(ChoosePages(true, 4096).unit, 4096U);
  EXPECT_EQ(ChoosePages(true, 2 << 20).kind, PageKind::kHugeTlb);
  EXPECT_NE(ChoosePages(false, 2 << 20).kind, PageKind::kHugeTlb);
  EXPECT_EQ(Describe(ChoosePages(true, 4 << 20)), "2 MiB (hugetlb)");
}

// The cost of mapping a bank depends on the runs of memory behind it, not on its pieces.
TEST(HostDevice, MergesMappingsOfAdjacentBlocks) {
  auto device = HostDevice::Make({"many", 1024 * kPage, true, kPages});
  ASSERT_TRUE(device.ok());
  auto space = (*device)->Reserve(1024 * kPage);
  std::vector<Placement> placements;
  for (uint64_t i = 0; i < 1024; ++i) {
    placements.push_back({i * kPage, (*device)->Create(kPage).value(), {0, kPage}});
  }
  const auto mapped = (*device)->Map(*space, placements, Access::kReadWrite);
  ASSERT_TRUE(mapped.ok());
  // The kernel's own list of mappings is the reference.
  const uint64_t from = (*space)->address(), to = from + 1024 * kPage;
  std::ifstream maps("/proc/self/maps");
  int lines = 0;
  for (std::string line; std::getline(maps, line);) {
    const uint64_t at = std::stoull(line, nullptr, 16);
    lines += at >= from && at < to ? 1 : 0;
  }
  EXPECT_EQ(lines, 1);
}

// After Enter a write waits for no page. Otherwise an owner would wait for each first write in the
// middle of staging.
TEST(HostDevice, WritesEnteredMemoryWithoutPageFaults) {
  constexpr uint64_t kCount = 512;
  auto device = HostDevice::Make({"entered", 2 * kCount * kPage, true, kPages});
  ASSERT_TRUE(device.ok());
  auto space = (*device)->Reserve(2 * kCount * kPage);
  const std::vector<Placement> placements{
      {0, (*device)->Create(kCount * kPage).value(), {0, kCount * kPage}},
      {kCount * kPage, (*device)->Create(kCount * kPage).value(), {0, kCount * kPage}}};
  auto mapped = (*device)->Map(*space, placements, Access::kReadWrite);
  ASSERT_TRUE(mapped.ok());
  const Memory entered{device->get(), (*space)->address(), kCount * kPage};
  const Memory left{device->get(), (*space)->address() + kCount * kPage, kCount * kPage};
  (*device)->Enter({entered.device, entered.address + 100, entered.bytes - 200});
  const auto faults = [](const Memory& memory) {
    const std::span<std::byte> bytes = View(memory);
    rusage before{}, after{};
    getrusage(RUSAGE_THREAD, &before);
    for (uint64_t at = 0; at < bytes.size(); at += kPage) bytes[at] = std::byte{1};
    getrusage(RUSAGE_THREAD, &after);
    return static_cast<uint64_t>(after.ru_minflt - before.ru_minflt);
  };
  EXPECT_LT(faults(entered), kCount / 4) << "a sanitizer's own pages are an eighth";
  EXPECT_GE(faults(left), kCount) << "one for each page, or there are none to count";
  mapped->clear();
  (*device)->Enter(entered);  // no mapping is left there
}

}  // namespace
}  // namespace tangram::device
