#include "agent/client/page_map.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace tangram {
namespace {

constexpr uint64_t kPage = 4096;

// Page by page, in the plainest form.
TEST(PageMap, TellsWhatLiesWhereAfterAnyMapsAndUnmaps) {
  std::mt19937 random(3);
  constexpr uint64_t kPages = 64;
  for (int round = 0; round < 200; ++round) {
    PageMap map;
    std::vector<int64_t> want(kPages, -1);
    for (int step = 0; step < 30; ++step) {
      const uint64_t first = random() % kPages;
      const uint64_t count = random() % (kPages - first) + 1;
      if (random() % 3 == 0) {
        map.Unmap(first * kPage, count * kPage);
        for (uint64_t p = first; p < first + count; ++p) want[p] = -1;
        continue;
      }
      v1::Mapping mapping;
      for (uint64_t p = first; p < first + count;) {
        const uint64_t run = random() % (first + count - p) + 1;
        const uint64_t from = random() % 1000;
        v1::Extent* extent = mapping.add_extents();
        extent->set_offset(from * kPage);
        extent->set_length(run * kPage);
        for (uint64_t i = 0; i < run; ++i) want[p + i] = static_cast<int64_t>(from + i);
        p += run;
      }
      map.Map(first * kPage, mapping.extents());
    }
    std::vector<int64_t> got(kPages, -1);
    for (const auto& [place, run] : map.runs()) {
      for (uint64_t i = 0; i < run.bytes / kPage; ++i) {
        ASSERT_EQ(got[place / kPage + i], -1) << "two runs over each other";
        got[place / kPage + i] = static_cast<int64_t>(run.fd_offset / kPage + i);
      }
    }
    ASSERT_EQ(got, want);
  }
}

}  // namespace
}  // namespace tangram
