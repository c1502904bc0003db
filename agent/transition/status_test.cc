// Content of a status, whatever engines write to their pages meanwhile.
#include "agent/transition/status.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "agent/transition/testing/agent.h"

namespace tangram::testing {
namespace {

#define ASSERT_OK(expr)                                              \
  do {                                                               \
    const Status status_ = (expr);                                   \
    ASSERT_TRUE(status_.ok()) << #expr << ": " << status_.message(); \
  } while (false)

// The driver's protobuf rejects a message with invalid UTF-8. An engine could thus have made its
// healthy agent unreadable.
TEST(Status, ReplacesInvalidUtf8InEngineText) {
  OneAgent agent(1);
  ASSERT_OK(agent.Take(v1::FLIP_KIND_FIRST, 1, agent.First()));
  ASSERT_OK(agent.Retire(1));
  ASSERT_OK(agent.Prepare(v1::FLIP_KIND_LAYOUT, 2, agent.Again()));
  ASSERT_OK(agent.Stage(2));
  agent.AwaitPhase(v1::PHASE_STAGED);
  ASSERT_OK(agent.executor->Permit(agent.Header(2)));
  GatePage* page = agent.page(0);
  const std::string said = "no room for \xff, cut at \xe2\x82";
  std::memcpy(page->decline_reason, said.c_str(), said.size() + 1);
  page->declined = 1;
  const v1::StatusResponse status = agent.GetStatus();
  EXPECT_EQ(status.ranks(0).transition().error(),
            "the engine declined the flip 1 times, last reason: no room for ?, cut at ??");
  EXPECT_TRUE(v1::StatusResponse().ParseFromString(status.SerializeAsString()));
}

// Something changes during every read, as it may while memory takes long to answer.
TEST(Status, ReturnsDespiteConstantChanges) {
  OneAgent agent(1);
  ASSERT_OK(agent.Take(v1::FLIP_KIND_FIRST, 1, agent.First()));
  std::atomic<int> looks{0};
  agent.hooks.before_held = [&] {
    if (++looks > 10'000) std::abort();  // it never ends
    agent.executor->EngineGone(0);
  };
  const v1::StatusResponse status = agent.GetStatus();
  EXPECT_EQ(status.epoch(), 1U);
  EXPECT_TRUE(status.ranks(0).has_inventory());
  EXPECT_GT(looks, 1);
}

}  // namespace
}  // namespace tangram::testing
