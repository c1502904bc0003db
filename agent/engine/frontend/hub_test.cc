#include "agent/engine/frontend/hub.h"

#include <gtest/gtest.h>

namespace tangram::engine {
namespace {

struct FakeOutlet : Outlet {
  void Push(v1::ServeReply reply) override { got.push_back(std::move(reply)); }
  std::deque<v1::ServeReply> TakeUnsent() override { return std::exchange(unsent, {}); }
  std::deque<v1::ServeReply> got, unsent;
};

v1::Token At(uint32_t position) {
  v1::Token token;
  token.set_request("r");
  token.set_position(position);
  return token;
}

TEST(HubTest, TokensWaitForTheirGatewayInOrder) {
  Inbox inbox;
  Hub hub(&inbox);
  hub.SetWorld({}, "m", {});
  hub.Emit("g", At(1));
  hub.Emit("other", At(9));
  hub.Emit("g", At(2));
  auto first = std::make_shared<FakeOutlet>();
  hub.Open("g", first);
  hub.Emit("g", At(3));
  ASSERT_EQ(first->got.size(), 5u);
  EXPECT_TRUE(first->got[0].has_world());
  EXPECT_TRUE(first->got[1].has_roster());
  for (uint32_t i = 1; i < 4; ++i) EXPECT_EQ(first->got[i + 1].token().position(), i);

  // The session ends before it could send the last two: the next one gets them, then the rest.
  first->unsent = {first->got[3], first->got[4]};
  hub.Close("g", first.get());
  hub.Emit("g", At(4));
  auto second = std::make_shared<FakeOutlet>();
  hub.Open("g", second);
  ASSERT_EQ(second->got.size(), 5u);
  for (uint32_t i = 1; i < 4; ++i) EXPECT_EQ(second->got[i + 1].token().position(), i + 1);
}

TEST(HubTest, AnOldSessionThatEndsDoesNotCloseTheNewOne) {
  Inbox inbox;
  Hub hub(&inbox);
  auto old = std::make_shared<FakeOutlet>(), fresh = std::make_shared<FakeOutlet>();
  hub.Open("g", old);
  hub.Open("g", fresh);
  hub.Close("g", old.get());
  hub.Emit("g", At(1));
  EXPECT_EQ(fresh->got.size(), 1u);
}

TEST(HubTest, AGatewayThatStaysAwayLosesItsRequests) {
  Inbox inbox;
  Hub hub(&inbox, 3);
  for (uint32_t i = 0; i < 4; ++i) hub.Emit("g", At(i));
  const std::vector<InboxItem> items = inbox.TakeAll();
  ASSERT_EQ(items.size(), 1u);
  EXPECT_EQ(std::get<CancelItem>(items[0]).request, "r");
  auto back = std::make_shared<FakeOutlet>();
  hub.Open("g", back);
  ASSERT_EQ(back->got.size(), 1u) << "it is told, and may submit it again";
  EXPECT_EQ(back->got[0].token().finish(), v1::FINISH_CANCELLED);
}

}  // namespace
}  // namespace tangram::engine
