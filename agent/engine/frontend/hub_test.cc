#include "agent/engine/frontend/hub.h"

#include <gtest/gtest.h>

#include "agent/base/testing/fake_time.h"

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

TEST(HubTest, BuffersTokensForGatewayInOrder) {
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

  // The session ends before it sends the last two: the next one gets them, then the rest.
  first->unsent = {first->got[3], first->got[4]};
  hub.Close("g", first.get());
  hub.Emit("g", At(4));
  auto second = std::make_shared<FakeOutlet>();
  hub.Open("g", second);
  ASSERT_EQ(second->got.size(), 5u);
  for (uint32_t i = 1; i < 4; ++i) EXPECT_EQ(second->got[i + 1].token().position(), i + 1);
}

TEST(HubTest, KeepsNewSessionWhenOldOneEnds) {
  Inbox inbox;
  Hub hub(&inbox);
  auto old = std::make_shared<FakeOutlet>(), fresh = std::make_shared<FakeOutlet>();
  hub.Open("g", old);
  hub.Open("g", fresh);
  hub.Close("g", old.get());
  hub.Emit("g", At(1));
  EXPECT_EQ(fresh->got.size(), 1u);
}

TEST(HubTest, CancelsRequestsWhenGatewayStaysAway) {
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

v1::Token Last(const std::string& request) {
  v1::Token token;
  token.set_request(request);
  token.set_finish(v1::FINISH_STOP);
  return token;
}

// Names are those of pods: each rollout of gateways has new ones.
TEST(HubTest, ForgetsLongAbsentGateway) {
  testing::FakeTime time;
  Inbox inbox;
  Hub hub(&inbox, 65536, time);
  for (int pod = 0; pod < 100; ++pod) {
    const std::string name = "pod-" + std::to_string(pod);
    auto session = std::make_shared<FakeOutlet>();
    hub.Open(name, session);
    hub.Emit(name, At(1));
    hub.Emit(name, Last("r"));
    session->unsent = session->got;
    hub.Close(name, session.get());
  }
  hub.SetLoad({});
  EXPECT_EQ(hub.gateways(), 100u) << "they may come again";
  time.Advance(Hub::kForget - std::chrono::seconds(1));
  auto back = std::make_shared<FakeOutlet>();
  hub.Open("pod-7", back);
  EXPECT_EQ(back->got.size(), 3u) << "the load, and what it was owed";
  time.Advance(std::chrono::seconds(1));
  hub.SetLoad({});
  EXPECT_EQ(hub.gateways(), 1u) << "the one that came again";
  hub.Emit("pod-7", At(2));
  EXPECT_EQ(back->got.back().token().position(), 2u);
}

TEST(HubTest, KeepsAbsentGatewayWithRequests) {
  testing::FakeTime time;
  Inbox inbox;
  Hub hub(&inbox, 65536, time);
  hub.Emit("g", At(1));  // for a request that arrived by a flip, before its gateway's session
  time.Advance(2 * Hub::kForget);
  hub.SetLoad({});
  EXPECT_EQ(hub.gateways(), 1u);
  hub.Emit("g", Last("r"));
  hub.SetLoad({});
  EXPECT_EQ(hub.gateways(), 0u) << "all is over, and it was away for long";
}

TEST(InboxTest, RejectsSubmitsBeyondByteLimit) {
  Inbox inbox(10'000);
  SubmitItem item{"g", {}};
  item.submit.mutable_prompt()->Resize(20'000, 1);
  EXPECT_TRUE(inbox.Put(item)) << "a long one has its turn when nothing waits";
  EXPECT_FALSE(inbox.Put(item));
  EXPECT_EQ(inbox.TakeAll().size(), 1u);
  item.submit.mutable_prompt()->Resize(1'000, 1);
  size_t put = 0;
  while (put < 100 && inbox.Put(item)) ++put;
  EXPECT_GT(put, 5u);
  EXPECT_LT(put, 10u);
  EXPECT_TRUE(inbox.Put(CancelItem{"r"})) << "cancels make room";
  EXPECT_EQ(inbox.TakeAll().size(), put + 1);
  EXPECT_TRUE(inbox.Put(item)) << "taken, it has room again";
}

}  // namespace
}  // namespace tangram::engine
