// What becomes of a rank, and of the others, when its announcement makes no sense.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "agent/base/testing/hang.h"
#include "agent/engine/abi/testing/fakes.h"
#include "agent/engine/turn/turn.h"
#include "agent/net/testing/certs.h"

namespace tangram::engine {
namespace {

using tangram::testing::Eventually;
using tangram::testing::kHang;

// A backend without requests, which announces steps of `rows`.
class Rows final : public Backend {
 public:
  void Submit(const std::string&, v1::Submit) override {}
  bool Cancel(const std::string&) override { return false; }
  std::map<std::string, v1::Roster> Rosters() const override { return {}; }
  void Measure(v1::Load*, tg_engine_stats*) override {}
  uint32_t max_tokens() const override { return 1; }
  uint32_t vocabulary() const override { return 1; }
  Status Fits(const tg_maps&, bool) override { return OkStatus(); }
  Announcement Announce(uint64_t) override {
    return {rows, rows > 0, text_is_wrong ? Bytes{9} : Bytes{}};
  }
  Status Heard(const std::vector<Bytes>& texts, uint32_t* malformed) override {
    const auto wrong = std::find(texts.begin(), texts.end(), Bytes{9});
    if (wrong == texts.end()) return OkStatus();
    *malformed = static_cast<uint32_t>(wrong - texts.begin());
    return {Code::kInternal, "no text of this backend"};
  }
  Status Compute(const StepInput&) override {
    ++steps;
    return OkStatus();
  }
  Bytes Manifest() override { return {}; }
  Status Plan(const Side&, const Side&, const std::vector<Bytes>&, uint64_t*, uint32_t*) override {
    return OkStatus();
  }
  Result<uint64_t> Bring(uint32_t, Between&) override { return uint64_t{0}; }
  void Drop() override {}
  Status Enter(const Epoch&, Entry) override { return OkStatus(); }
  void Leave() override {}

  std::atomic<uint64_t> rows{1}, steps{0};
  std::atomic<bool> text_is_wrong{false};
};

class Nowhere final : public Sink {
 public:
  void Emit(const std::string&, v1::Token) override {}
  void Refuse(const std::string&, v1::Refused) override {}
  void SetWorld(v1::World, const std::string&, std::map<std::string, v1::Roster>) override {}
  void SetLoad(v1::Load) override {}
};

// An agent whose world is in epoch 1 and stays there.
class OneEpoch final : public FakeWorld {
 public:
  OneEpoch(int32_t rank, const std::vector<const char*>& members) {
    model_.world = "w";
    model_.member = members[static_cast<size_t>(rank)];
    maps_.epoch = 1;
    maps_.rank = rank;
    maps_.world_size = static_cast<uint32_t>(members.size());
    maps_.members = maps_.mesh = maps_.frontends = maps_.pods = members.data();
  }
  const tg_model& model() const override { return model_; }
  const tg_maps* maps() const override { return &maps_; }
  Result<tg_event> Poll(int) override {
    tg_event event = TG_INIT(tg_event);
    event.kind = told_ ? TG_EVENT_NONE : TG_EVENT_FLIPPED;
    event.target_epoch = 1;
    told_ = true;
    return event;
  }
  tg_word Word() override { return {1, 0}; }
  void Missed(std::span<const tg_missed> missed) override {
    missed_.assign(missed.begin(), missed.end());
  }
  void Stop(bool) override { stopped_ = true; }
  bool stopped() const override { return stopped_; }

  std::vector<tg_missed> missed_;
  std::atomic<bool> stopped_{false};

 private:
  tg_model model_{};
  tg_maps maps_{};
  bool told_ = false;
};

struct Rank {
  ~Rank() {
    stop = true;
    if (thread.joinable()) thread.join();
  }
  std::unique_ptr<Mesh> mesh;
  std::unique_ptr<OneEpoch> world;
  Rows rows;
  Inbox inbox;
  Nowhere sink;
  std::unique_ptr<Turn> turn;
  std::atomic<bool> stop{false};
  std::thread thread;
  Status ended;
};

// One of three ranks announces what `spoil` makes of it.
void ExpectThatOnlyItEnds(const std::function<void(Rows&)>& spoil) {
  const std::vector<const char*> names = {"a", "b", "c"};
  const std::vector<std::string> members(names.begin(), names.end());
  const net::testing::TestCa ca;
  std::vector<Rank> ranks(names.size());
  std::vector<PeerAddress> peers;
  for (size_t r = 0; r < ranks.size(); ++r) {
    Rank& rank = ranks[r];
    rank.mesh = std::move(Mesh::Listen("127.0.0.1:0")).value();
    rank.mesh->SetSelf("w", names[r], ca.Open("w", "engine", std::string("pod-") + names[r]));
    peers.push_back({names[r], "127.0.0.1:" + std::to_string(rank.mesh->port()),
                     std::string("pod-") + names[r]});
    rank.world = std::make_unique<OneEpoch>(static_cast<int32_t>(r), names);
    Turn::Options options;
    options.patience.least = options.patience.most = kHang;
    rank.turn = std::make_unique<Turn>(options, rank.world.get(), rank.mesh.get(), &rank.inbox,
                                       &rank.sink, &rank.rows);
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
  EXPECT_TRUE(Eventually([&] { return ranks[2].rows.steps > 3; }));
  spoil(ranks[1].rows);
  ranks[1].thread.join();
  EXPECT_EQ(ranks[1].ended.code(), Code::kInternal) << ranks[1].ended.message();
  for (const size_t r : {0, 2}) {
    EXPECT_TRUE(Eventually([&] { return ranks[r].world->stopped(); })) << "it stands still";
    ranks[r].stop = true;
    ranks[r].thread.join();
    EXPECT_TRUE(ranks[r].ended.ok()) << names[r] << ": " << ranks[r].ended.message();
    ASSERT_FALSE(ranks[r].world->missed_.empty()) << names[r];
    EXPECT_EQ(ranks[r].world->missed_[0].rank, 1U);
    EXPECT_EQ(ranks[r].world->missed_[0].cause, static_cast<uint32_t>(TG_HOSTILE));
  }
}

TEST(Announcements, AMalformedOneEndsItsRankAndNotTheOthers) {
  ExpectThatOnlyItEnds([](Rows& rows) { rows.rows = kMostRows + 1; });
}

TEST(Announcements, OneWithAMalformedTextEndsItsRankAndNotTheOthers) {
  ExpectThatOnlyItEnds([](Rows& rows) { rows.text_is_wrong = true; });
}

}  // namespace
}  // namespace tangram::engine
