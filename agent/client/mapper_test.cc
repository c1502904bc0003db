#include "agent/client/mapper.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <vector>

namespace tangram {
namespace {

TEST(Mapper, WhoTellsItDoesNotWait) {
  std::promise<void> go, last;
  std::vector<int> done;
  Mapper mapper;
  EXPECT_TRUE(mapper.idle());
  mapper.Do([&, gone = go.get_future().share()] { gone.wait(); });
  for (int i = 0; i < 100; ++i) mapper.Do([&done, i] { done.push_back(i); });
  mapper.Do([&] { last.set_value(); });
  EXPECT_FALSE(mapper.idle());
  go.set_value();  // before, this thread came here though nothing was done
  last.get_future().wait();
  ASSERT_EQ(done.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(done[i], i);
  while (!mapper.idle()) std::this_thread::yield();
}

TEST(Mapper, ItsEndLeavesNothingUndone) {
  int done = 0;
  {
    Mapper mapper;
    for (int i = 0; i < 100; ++i) mapper.Do([&] { ++done; });
  }
  EXPECT_EQ(done, 100);
}

}  // namespace
}  // namespace tangram
