#include "agent/transition/peers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace tangram {
namespace {

using std::chrono::milliseconds;

v1::QueryResponse Says(v1::Phase phase) {
  v1::QueryResponse answer;
  answer.set_phase(phase);
  return answer;
}

// Each agent answers after its time with its phase, or is unreachable. Cancelled calls end early.
class TimedPeers final : public Peers {
 public:
  struct Answer {
    milliseconds after{0};
    std::optional<v1::Phase> phase;
  };
  explicit TimedPeers(std::map<std::string, Answer> answers) : answers_(std::move(answers)) {}

  void Query(const std::string& agent, const v1::QueryRequest&, std::stop_token stop,
             Answered answered) override {
    threads_.emplace_back([this, agent, stop = std::move(stop), answered = std::move(answered)] {
      const Answer& answer = answers_.at(agent);
      const auto until = std::chrono::steady_clock::now() + answer.after;
      while (std::chrono::steady_clock::now() < until && !stop.stop_requested()) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      if (stop.stop_requested()) {
        let_go.fetch_add(1);
        answered(Status{Code::kUnavailable, "let go"});
      } else if (answer.phase) {
        answered(Says(*answer.phase));
      } else {
        answered(Status{Code::kUnavailable, "away"});
      }
    });
  }
  void Word(const std::string&, const v1::VoteRequest&, std::stop_token, Told) override {}

  std::atomic<int> let_go = 0;

 private:
  const std::map<std::string, Answer> answers_;
  std::vector<std::jthread> threads_;
};

constexpr auto kForEver = std::chrono::hours(1);

// Regression: peers were queried in turn, so an unresponsive one hid the next one's reply.
TEST(AskAll, DeliversRepliesDespiteUnresponsivePeer) {
  TimedPeers peers({{"hangs", {kForEver, v1::PHASE_STAGED}},
                    {"is away", {}},
                    {"knows", {milliseconds(5), v1::PHASE_PERMITTED}}});
  std::vector<std::string> heard;
  AskAll(&peers, {"hangs", "is away", "knows"}, {}, {},
         [&](const std::string& agent, const v1::QueryResponse& seen) {
           heard.push_back(agent);
           return seen.phase() == v1::PHASE_PERMITTED;
         });
  EXPECT_EQ(heard, std::vector<std::string>{"knows"});
  // "hangs", and on a busy machine perhaps "is away".
  EXPECT_GE(peers.let_go, 1);
}

TEST(AskAll, DeliversEachReplyOnce) {
  std::map<std::string, TimedPeers::Answer> answers;
  std::set<std::string> agents;
  for (int i = 0; i < 50; ++i) {
    const std::string agent = std::to_string(i);
    agents.insert(agent);
    answers[agent].after = milliseconds(i % 7);
    if (i % 5 != 0) answers[agent].phase = v1::PHASE_STAGED;
  }
  TimedPeers peers(answers);
  std::map<std::string, int> heard;
  AskAll(&peers, agents, {}, {}, [&](const std::string& agent, const v1::QueryResponse&) {
    ++heard[agent];
    return false;
  });
  EXPECT_EQ(heard.size(), 40U);
  for (const auto& [agent, times] : heard) EXPECT_EQ(times, 1) << agent;
  EXPECT_EQ(peers.let_go, 0);
}

TEST(AskAll, ReturnsWithoutPeers) {
  TimedPeers peers({});
  AskAll(&peers, {}, {}, {}, [](const std::string&, const v1::QueryResponse&) { return true; });
}

TEST(AskAll, CancelsAllCallsOnStop) {
  TimedPeers peers({{"a", {kForEver, v1::PHASE_STAGED}}, {"b", {kForEver, v1::PHASE_STAGED}}});
  std::stop_source stop;
  const std::jthread later([&] {
    std::this_thread::sleep_for(milliseconds(5));
    stop.request_stop();
  });
  AskAll(&peers, {"a", "b"}, {}, stop.get_token(),
         [](const std::string&, const v1::QueryResponse&) { return false; });
  EXPECT_EQ(peers.let_go, 2);
}

}  // namespace
}  // namespace tangram
