#include "agent/client/regions.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "agent/device/platform.h"

namespace tangram {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kFilePages = 200;

// Page p of file f holds the number 1000 f + p.
UniqueFd File(uint32_t number) {
  UniqueFd fd(memfd_create("file", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  for (uint64_t p = 0; p < kFilePages; ++p) {
    const std::vector<uint64_t> page(kPage / 8, 1000 * number + p);
    EXPECT_EQ(pwrite(fd.get(), page.data(), kPage, static_cast<off_t>(p * kPage)), ssize_t{kPage});
  }
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  return fd;
}

class RegionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (uint32_t f = 0; f < 2; ++f) table_.Add(f, File(f));
  }
  static Region Make(uint64_t pages) {
    auto platform = device::MakePlatform({});
    auto made = Region::Reserve(std::move((*platform)->Importers().weights), pages * kPage,
                                device::Access::kRead);
    EXPECT_TRUE(made.ok());
    return std::move(*made);
  }
  static void Add(Extents* extents, uint32_t file, uint64_t page, uint64_t pages) {
    v1::Extent* extent = extents->Add();
    extent->set_fd_index(file);
    extent->set_offset(page * kPage);
    extent->set_length(pages * kPage);
  }
  static uint64_t At(const Region& region, uint64_t page) {
    return *reinterpret_cast<const uint64_t*>(region.data() + page * kPage);
  }
  DescriptorTable table_;
};

// Compared page by page with a plain model: reported and real mappings are equal.
TEST_F(RegionTest, ReportsMappingsAfterAnyMapsAndUnmaps) {
  std::mt19937 random(3);
  constexpr uint64_t kPages = 64;
  for (int round = 0; round < 60; ++round) {
    Region region = Make(kPages);
    std::vector<int64_t> want(kPages, -1);
    for (int step = 0; step < 30; ++step) {
      const uint64_t first = random() % kPages;
      const uint64_t count = random() % (kPages - first) + 1;
      if (random() % 3 == 0) {
        ASSERT_TRUE(region.Unmap(first * kPage, count * kPage).ok());
        for (uint64_t p = first; p < first + count; ++p) want[p] = -1;
        continue;
      }
      Extents extents;
      for (uint64_t p = first; p < first + count;) {
        const uint64_t run = random() % (first + count - p) + 1;
        const uint32_t file = random() % 2;
        const uint64_t from = random() % (kFilePages - kPages);
        Add(&extents, file, from, run);
        for (uint64_t i = 0; i < run; ++i)
          want[p + i] = static_cast<int64_t>(1000 * file + from + i);
        p += run;
      }
      const Status mapped = region.Map(first * kPage, extents, table_);
      ASSERT_TRUE(mapped.ok()) << mapped.message();
    }
    std::vector<int64_t> got(kPages, -1);
    uint64_t bytes = 0;
    for (const Region::Run& run : region.runs()) {
      bytes += run.bytes;
      for (uint64_t i = 0; i < run.bytes / kPage; ++i) {
        const uint64_t page = run.place / kPage + i;
        ASSERT_EQ(got[page], -1) << "two runs over each other";
        got[page] = static_cast<int64_t>(1000 * run.descriptor + run.offset / kPage + i);
        ASSERT_EQ(At(region, page), static_cast<uint64_t>(got[page]));
      }
    }
    ASSERT_EQ(got, want);
    ASSERT_EQ(region.mapped_bytes(), bytes);
  }
}

TEST_F(RegionTest, KeepsExistingMappingWhenMappedAgain) {
  Region region = Make(8);
  Extents whole, part;
  Add(&whole, 1, 10, 6);
  Add(&part, 1, 12, 2);
  ASSERT_TRUE(region.Map(0, whole, table_).ok());
  ASSERT_TRUE(region.Map(2 * kPage, part, table_).ok());
  ASSERT_EQ(region.runs().size(), 1U);
  EXPECT_EQ(region.runs()[0].bytes, 6 * kPage);
}

// A step continues to read while slabs are mapped next to its memory, also by one extent over both.
TEST_F(RegionTest, NeverInterruptsExistingMapping) {
  Region region = Make(64);
  Extents live, both;
  Add(&live, 1, 30, 4);
  Add(&both, 1, 10, 40);
  ASSERT_TRUE(region.Map(30 * kPage, live, table_).ok());
  std::atomic<bool> over = false;
  std::atomic<uint64_t> reads = 0;
  std::jthread step([&] {
    while (!over) {
      for (uint64_t page = 30; page < 34; ++page) ASSERT_EQ(At(region, page), 1000 + page);
      ++reads;
    }
  });
  for (int round = 0; round < 2000 || reads < 100; ++round) {
    ASSERT_TRUE(region.Map(10 * kPage, both, table_).ok());
    ASSERT_EQ(At(region, 10), 1010U);
    ASSERT_EQ(At(region, 49), 1049U);
    ASSERT_TRUE(region.Unmap(10 * kPage, 20 * kPage).ok());
    ASSERT_TRUE(region.Unmap(34 * kPage, 16 * kPage).ok());
  }
  over = true;
}

TEST_F(RegionTest, RejectsInvalidExtentsWithoutChange) {
  Region region = Make(8);
  Extents good;
  Add(&good, 0, 3, 2);
  ASSERT_TRUE(region.Map(kPage, good, table_).ok());
  const auto refused = [&](uint64_t place, const v1::Extent& bad) {
    Extents extents;
    Add(&extents, 1, 0, 1);
    *extents.Add() = bad;
    return region.Map(place, extents, table_).code() == Code::kInvalid;
  };
  const auto extent = [](uint32_t file, uint64_t offset, uint64_t length) {
    v1::Extent out;
    out.set_fd_index(file);
    out.set_offset(offset);
    out.set_length(length);
    return out;
  };
  EXPECT_TRUE(refused(0, extent(2, 0, kPage))) << "never received";
  EXPECT_TRUE(refused(0, extent(0, 1, kPage)));
  EXPECT_TRUE(refused(0, extent(0, 0, kPage / 2)));
  EXPECT_TRUE(refused(0, extent(0, 0, 0)));
  EXPECT_TRUE(refused(0, extent(0, kFilePages * kPage, kPage)));
  EXPECT_TRUE(refused(0, extent(0, UINT64_MAX - kPage + 1, 2 * kPage)));
  EXPECT_TRUE(refused(0, extent(0, 0, 8 * kPage))) << "longer than the range";
  EXPECT_TRUE(refused(7 * kPage, extent(0, 0, kPage)));
  EXPECT_TRUE(refused(1, extent(0, 0, kPage)));
  EXPECT_TRUE(refused(UINT64_MAX - kPage + 1, extent(0, 0, kPage)));
  EXPECT_EQ(region.Map(0, {}, table_).code(), Code::kInvalid) << "nothing would be mapped";
  EXPECT_EQ(region.Unmap(0, 9 * kPage).code(), Code::kInvalid);
  EXPECT_EQ(region.Unmap(kPage / 2, kPage).code(), Code::kInvalid);
  ASSERT_EQ(region.runs().size(), 1U);
  EXPECT_EQ(At(region, 1), 3U);
  EXPECT_EQ(At(region, 2), 4U);
}

}  // namespace
}  // namespace tangram
