#include "agent/client/mapper.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "agent/base/unique_fd.h"

namespace tangram {
namespace {

TEST(Mapper, RunsWorkInOrderWithoutBlockingCaller) {
  std::promise<void> go, last;
  std::vector<int> done;
  Mapper mapper;
  EXPECT_TRUE(mapper.idle());
  mapper.Do([&, gone = go.get_future().share()] { gone.wait(); });
  for (int i = 0; i < 100; ++i) mapper.Do([&done, i] { done.push_back(i); });
  mapper.Do([&] { last.set_value(); });
  EXPECT_FALSE(mapper.idle());
  go.set_value();  // this thread got here before any work was done
  last.get_future().wait();
  ASSERT_EQ(done.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(done[i], i);
  while (!mapper.idle()) std::this_thread::yield();
}

TEST(Mapper, CompletesAllWorkOnDestruction) {
  int done = 0;
  {
    Mapper mapper;
    for (int i = 0; i < 100; ++i) mapper.Do([&] { ++done; });
  }
  EXPECT_EQ(done, 100);
}

TEST(Mapper, StopsWaitingForUnresponsiveDevice) {
  UniqueFd never(eventfd(0, EFD_CLOEXEC)), done(eventfd(1, EFD_CLOEXEC));
  std::promise<bool> hangs, ready, ending;
  {
    Mapper mapper;
    mapper.Do([&] { hangs.set_value(!mapper.Await(never.get(), std::chrono::milliseconds(1))); });
    mapper.Do([&] { ready.set_value(mapper.Await(done.get(), std::chrono::hours(1))); });
    mapper.Do([&] { ending.set_value(mapper.Await(never.get(), std::chrono::hours(1))); });
    EXPECT_TRUE(hangs.get_future().get());
    EXPECT_TRUE(ready.get_future().get());
  }
  EXPECT_TRUE(ending.get_future().get()) << "its end waits for no device";
}

}  // namespace
}  // namespace tangram
