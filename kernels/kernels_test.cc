// The table, the image, and the distribution of work.
#include "kernels/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "kernels/testing/launch.h"
#include "kernels/work.h"

namespace tangram::kernels {
namespace {

TEST(Kernels, AreFoundByExactName) {
  std::set<std::string_view> names;
  for (const Kernel& kernel : All()) {
    EXPECT_TRUE(names.insert(kernel.name).second) << kernel.name;
    EXPECT_EQ(Find(kernel.name), &kernel);
    EXPECT_GT(kernel.parameter_bytes, 0u);
    EXPECT_LT(kernel.parameter_bytes, 4096u) << "the driver takes no more";
  }
  EXPECT_EQ(Find("copy_strip"), nullptr);
  EXPECT_EQ(Find(""), nullptr);
}

#ifdef TANGRAM_CUDA
bool Has(std::span<const std::byte> image, std::string_view text) {
  const std::string_view all(reinterpret_cast<const char*>(image.data()), image.size());
  return all.find(text) != std::string_view::npos;
}

TEST(Image, IsFatBinaryWithEveryKernel) {
  const std::span<const std::byte> image = Image();
  ASSERT_GE(image.size(), 16u);
  uint32_t magic = 0;
  uint64_t bytes = 0;  // after the header
  std::memcpy(&magic, image.data(), 4);
  std::memcpy(&bytes, image.data() + 8, 8);
  EXPECT_EQ(magic, 0xba55ed50u);
  EXPECT_EQ(bytes + 16, image.size()) << "all of it was embedded, and no more";
  EXPECT_EQ(reinterpret_cast<uintptr_t>(image.data()) % 16, 0u);
  for (const Kernel& kernel : All()) {
    EXPECT_TRUE(Has(image, ".text." + std::string(kernel.name))) << kernel.name;
  }
}
#else
TEST(Image, IsEmptyWithoutCompiler) { EXPECT_TRUE(Image().empty()); }
#endif

TEST(Work, SharesCoverAllUnitsAndDifferByAtMostOne) {
  for (uint64_t units = 0; units < 200; ++units) {
    for (uint32_t parts = 1; parts < 40; ++parts) {
      uint64_t at = 0;
      for (uint32_t part = 0; part < parts; ++part) {
        const Share share = ShareOf(units, part, parts);
        ASSERT_EQ(share.begin, at);
        ASSERT_GE(share.end - share.begin, units / parts);
        ASSERT_LE(share.end - share.begin, units / parts + 1);
        at = share.end;
      }
      ASSERT_EQ(at, units);
    }
  }
}

struct Item {
  uint64_t name = 0, first = 0;
};

// Every list of five items of 0 to 3 units each, and every jump in it.
TEST(Work, CursorFindsItemOfUnitFromAnyPosition) {
  for (int list = 0; list < 4 * 4 * 4 * 4 * 4; ++list) {
    std::vector<Item> items;
    std::vector<uint64_t> whose;
    for (uint64_t i = 0, digits = static_cast<uint64_t>(list); i < 5; ++i, digits /= 4) {
      items.push_back({i, whose.size()});
      whose.insert(whose.end(), digits % 4, i);
    }
    DirectMemory memory;
    for (uint64_t before = 0; before < whose.size(); ++before) {
      for (uint64_t unit = 0; unit < whose.size(); ++unit) {
        Cursor<Item> cursor(testing::AddressOf(items), items.size(), whose.size());
        ASSERT_EQ(cursor.At(memory, before).name, whose[before]);
        ASSERT_EQ(cursor.At(memory, unit).name, whose[unit]);
        ASSERT_EQ(cursor.number(), whose[unit]);
      }
    }
  }
}

}  // namespace
}  // namespace tangram::kernels
