#include "agent/server/source_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "agent/base/testing/hang.h"
#include "agent/base/testing/no_threads.h"

namespace tangram::testing {
namespace {

TEST(SourceWatch, ReportsLossAndReturnOfSource) {
  std::atomic<int> looks{0};
  std::promise<void> back;
  std::vector<std::string> told;
  {
    const auto watch = SourceWatch::Start(
        [&] {
          return ++looks == 2 ? Status{Code::kUnavailable, "gone"} : Status();
        },
        [&](const std::string& why) {
          told.push_back(why);
          if (told.size() == 3) back.set_value();
        },
        std::chrono::milliseconds(1));
    ASSERT_TRUE(watch.ok());
    ASSERT_EQ(back.get_future().wait_for(kHang), std::future_status::ready);
  }
  told.resize(3);
  EXPECT_EQ(told, (std::vector<std::string>{"", "gone", ""}));
}

// Like stat() on a network file system whose server is down: the agent can still shut down.
TEST(SourceWatch, EndsDuringUnresponsiveCheck) {
  const auto hanging = std::make_shared<std::latch>(1);
  const auto answer = std::make_shared<std::latch>(1);
  std::atomic<bool> told{false};
  auto owned = std::make_shared<int>(0);  // used by the check
  const std::weak_ptr<int> alive = owned;
  auto started = SourceWatch::Start(
      [hanging, answer, owned = std::move(owned)] {
        hanging->count_down();
        answer->wait();
        return OkStatus();
      },
      [&](const std::string&) { told = true; }, std::chrono::hours(1));
  ASSERT_TRUE(started.ok());
  std::unique_ptr<SourceWatch> watch = std::move(started).value();
  hanging->wait();
  auto ended = std::async(std::launch::async, [&] { watch.reset(); });
  if (ended.wait_for(kHang) != std::future_status::ready) {
    std::fprintf(stderr, "it waits for the check\n");
    std::abort();
  }
  EXPECT_FALSE(alive.expired()) << "the check still uses it";
  answer->count_down();
  EXPECT_TRUE(Eventually([&] { return alive.expired(); }));
  EXPECT_FALSE(told);
}

TEST(SourceWatch, ReportsErrorWhenThreadCannotStart) {
  WithoutThreads([] {
    const auto watch = SourceWatch::Start([] { return OkStatus(); }, [](const std::string&) {},
                                          std::chrono::hours(1));
    EXPECT_EQ(watch.status().code(), Code::kUnavailable);
  });
}

}  // namespace
}  // namespace tangram::testing
