// The effect of a malformed announcement on its rank and on the others.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "agent/base/testing/hang.h"
#include "agent/engine/turn/testing/scripted.h"

namespace tangram::engine::testing {
namespace {

using tangram::testing::Eventually;
using tangram::testing::kHang;

struct Rank {
  ~Rank() {
    stop = true;
    if (thread.joinable()) thread.join();
  }
  std::unique_ptr<Mesh> mesh;
  std::unique_ptr<TestMaps> maps;
  std::unique_ptr<ScriptedWorld> world;
  ScriptedBackend backend;
  Inbox inbox;
  Nowhere sink;
  std::unique_ptr<Turn> turn;
  std::atomic<bool> stop{false};
  std::thread thread;
  Status ended;
};

// `spoil` damages the announcement of one of three ranks.
void ExpectThatOnlyItEnds(const std::function<void(ScriptedBackend&)>& spoil) {
  const std::vector<std::string> members = {"a", "b", "c"};
  std::vector<Rank> ranks(members.size());
  std::vector<PeerAddress> peers;
  std::vector<std::string> endpoints;
  for (size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].mesh = Listening(members[r]);
    endpoints.push_back(EndpointOf(*ranks[r].mesh));
    peers.push_back({members[r], endpoints[r], ""});
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    Rank& rank = ranks[r];
    rank.maps = std::make_unique<TestMaps>(1, static_cast<int32_t>(r), members, endpoints);
    rank.world = std::make_unique<ScriptedWorld>(members[r]);
    rank.world->events = {Flipped(*rank.maps)};
    rank.backend.rows = 1;
    Turn::Options options;
    options.patience.least = options.patience.most = kHang;
    rank.turn = std::make_unique<Turn>(options, rank.world.get(), rank.mesh.get(), &rank.inbox,
                                       &rank.sink, &rank.backend);
  }
  for (Rank& rank : ranks) rank.mesh->Want(peers);
  ASSERT_TRUE(Eventually([&] {
    bool all = true;
    for (Rank& rank : ranks) {
      rank.mesh->Progress(1);
      all = all && rank.mesh->Connected(members);
    }
    return all;
  }));
  for (Rank& rank : ranks) {
    rank.thread = std::thread([&rank] { rank.ended = rank.turn->Run(rank.stop); });
  }
  EXPECT_TRUE(Eventually([&] { return ranks[2].backend.steps > 3; }));
  spoil(ranks[1].backend);
  ranks[1].thread.join();
  EXPECT_EQ(ranks[1].ended.code(), Code::kInternal) << ranks[1].ended.message();
  for (const size_t r : {0, 2}) {
    EXPECT_TRUE(Eventually([&] { return ranks[r].world->stopped(); })) << "it stands still";
    ranks[r].stop = true;
    ranks[r].thread.join();
    EXPECT_TRUE(ranks[r].ended.ok()) << members[r] << ": " << ranks[r].ended.message();
    ASSERT_FALSE(ranks[r].world->missed.empty()) << members[r];
    EXPECT_EQ(ranks[r].world->missed[0].rank, 1U);
    EXPECT_EQ(ranks[r].world->missed[0].cause, static_cast<uint32_t>(TG_HOSTILE));
  }
}

TEST(Announcements, EndOnlyTheirRankWhenMalformed) {
  ExpectThatOnlyItEnds([](ScriptedBackend& backend) { backend.rows = kMostRows + 1; });
}

TEST(Announcements, EndOnlyTheirRankWhenTextIsMalformed) {
  ExpectThatOnlyItEnds([](ScriptedBackend& backend) { backend.text_is_wrong = true; });
}

}  // namespace
}  // namespace tangram::engine::testing
