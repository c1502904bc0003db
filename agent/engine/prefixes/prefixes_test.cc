#include "agent/engine/prefixes/prefixes.h"

#include <gtest/gtest.h>

#include <random>

namespace tangram::engine {
namespace {

// The hashes that a gateway knows after all messages.
struct Gateway {
  void Hear(const PrefixNews& news) {
    for (const uint64_t hash : news.gone) knows.erase(hash);
    knows.insert(news.here.begin(), news.here.end());
  }
  std::set<uint64_t> knows;
};

// A gateway with all messages, and one that came late and lost some: in the end both know all
// hashes, and none for long that is not cached.
TEST(CachedPrefixes, ConvergeForEarlyAndLateGateways) {
  std::mt19937_64 draw(3);
  for (int round = 0; round < 50; ++round) {
    CachedPrefixes cached;
    std::set<uint64_t> here;
    Gateway first, late;
    for (int step = 0; step < 300; ++step) {
      for (uint64_t n = draw() % 8; n > 0; --n) {
        const uint64_t hash = draw() % 64;  // some twice
        if (draw() % 2 == 0) {
          cached.Here(hash);
          here.insert(hash);
        } else {
          cached.Gone(hash);
          here.erase(hash);
        }
      }
      const PrefixNews news = cached.Take(1 + draw() % 6, draw() % 4);
      EXPECT_LE(news.gone.size(), 6u);
      first.Hear(news);
      if (step > 100 && draw() % 4 != 0) late.Hear(news);
    }
    for (int step = 0; step < 200; ++step) {
      const PrefixNews news = cached.Take(6, 2);
      first.Hear(news);
      late.Hear(news);
    }
    EXPECT_EQ(first.knows, here);
    for (const uint64_t hash : here) EXPECT_TRUE(late.knows.contains(hash));
  }
}

TEST(CachedPrefixes, AreReportedAsNewOnlyOnce) {
  CachedPrefixes cached;
  cached.Here(1);
  cached.Here(1);
  cached.Gone(2);
  const PrefixNews news = cached.Take(10, 0);
  EXPECT_EQ(news.here, std::vector<uint64_t>{1});
  EXPECT_TRUE(news.gone.empty()) << "it was never here";
  EXPECT_TRUE(cached.Take(10, 0).here.empty());
  EXPECT_EQ(cached.Take(10, 5).here, std::vector<uint64_t>{1}) << "again, once";
}

}  // namespace
}  // namespace tangram::engine
