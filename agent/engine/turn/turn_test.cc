// A rank's turn in a world of two, with an agent and an engine that do what the test says. The
// other rank is a mesh, and says what a turn would.
#include "agent/engine/turn/turn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <future>
#include <thread>

#include "agent/base/testing/hang.h"
#include "agent/device/device.h"

namespace tangram::engine {
namespace {

using tangram::testing::kHang;

// A layout of one layer without experts over the members a and b.
struct TestMaps {
  TestMaps(uint64_t epoch, int32_t rank, const std::vector<std::string>& mesh, bool together)
      : endpoints{mesh[0].c_str(), mesh[1].c_str()} {
    groups[0] = {together ? 2U : 1U, ranks.data(), together ? both.data() : one.data()};
    groups[1] = {1, ranks.data() + 1, one.data()};
    layer.moe_ordinal = -1;
    layer.attention_groups = together ? 1 : 2;
    layer.attention = groups.data();
    maps.struct_size = sizeof maps;
    maps.epoch = epoch;
    maps.rank = rank;
    maps.world_size = 2;
    maps.members = names.data();
    maps.mesh = endpoints.data();
    maps.frontends = names.data();
    maps.pods = pods.data();
    maps.layers = &layer;
  }
  std::vector<const char*> names{"a", "b"}, endpoints, pods{"", ""};
  std::vector<uint32_t> ranks{0, 1}, one{0, 4}, both{0, 2, 4};
  std::vector<tg_attention_group> groups{2};
  tg_layer_map layer{};
  tg_maps maps{};
};

// In epoch 1, with an attempt that leads to epoch 2.
class ScriptedWorld final : public WorldView {
 public:
  ScriptedWorld(const tg_maps* now, const tg_maps* target) : now_(now), target_(target) {
    model_.world = "w";
    model_.member = "a";
    model_.layers = 1;
    model_.query_heads = 4;
    model_.kv_heads = 2;
  }
  const tg_model& model() const override { return model_; }
  std::span<const tg_tensor> dense() const override { return {}; }
  const tg_maps* maps() const override { return now_; }
  device::Device& device() override { std::abort(); }
  Result<tg_event> Poll(int) override {
    tg_event event{};
    if (told_ == 0) event = {sizeof event, TG_EVENT_FLIPPED, 1, 1, 0, 0, 0, now_, 0};
    if (told_ == 1) event = {sizeof event, TG_EVENT_PREPARE, 2, 2, 0, 0, 0, target_, 0};
    ++told_;
    return event;
  }
  Status Prepared(uint64_t, bool ok, const std::string& message) override {
    EXPECT_TRUE(ok) << message;
    prepared_ = ok;
    return OkStatus();
  }
  tg_word Word() override { return prepared_ ? tg_word{2, 7} : tg_word{1, 0}; }
  bool Decide(std::span<const tg_word> words) override {
    return std::ranges::all_of(words, [](const tg_word& word) { return word.epoch == 2; });
  }
  void Decline(const std::string& reason) override { declined = reason; }
  Status Commit() override {
    now_ = target_;
    return OkStatus();
  }
  void Stop(bool) override { stopped_ = true; }
  void Missed(std::span<const tg_missed> those) override {
    missed.assign(those.begin(), those.end());
  }
  void SetUnreachable(std::span<const uint32_t>) override {}
  bool stopped() const override { return stopped_; }
  Status Join(int) override { return OkStatus(); }
  Status PullKv(std::span<const tg_kv_move>) override { return OkStatus(); }
  Status StageKv(std::span<const tg_kv_move>) override { return OkStatus(); }
  Result<StagedKv> KvStaged(int) override { return StagedKv{}; }
  void StepDone() override {}
  void Count(uint32_t, uint32_t, uint64_t) override {}
  void CountExecuted(uint32_t, uint32_t, uint64_t) override {}
  void Report(const tg_engine_stats&) override {}

  std::string declined;
  std::vector<tg_missed> missed;

 private:
  const tg_maps* now_;
  const tg_maps* const target_;
  tg_model model_{};
  int told_ = 0;
  bool prepared_ = false, stopped_ = false;
};

class ScriptedBackend final : public Backend {
 public:
  std::function<Result<uint64_t>(Between&)> bring;
  std::vector<Entry> entries;

  void Submit(const std::string&, v1::Submit) override {}
  bool Cancel(const std::string&) override { return false; }
  std::map<std::string, v1::Roster> Rosters() const override { return {}; }
  void Measure(v1::Load*, tg_engine_stats*) override {}
  uint32_t max_tokens() const override { return 1; }
  uint32_t vocabulary() const override { return 1; }
  Status Fits(const tg_maps&, bool) override { return OkStatus(); }
  Announcement Announce(uint64_t) override { return {}; }
  Status Heard(const std::vector<Bytes>&, uint32_t*) override { return OkStatus(); }
  Status Compute(const StepInput&) override { return OkStatus(); }
  Bytes Manifest() override { return {1}; }
  Status Plan(const Side&, const Side&, const std::vector<Bytes>&, uint64_t*, uint32_t*) override {
    return OkStatus();
  }
  Result<uint64_t> Bring(uint32_t, Between& between) override { return bring(between); }
  void Drop() override {}
  Status Enter(const Epoch&, Entry entry) override {
    entries.push_back(entry);
    return OkStatus();
  }
  void Leave() override {}
};

class Nowhere final : public Sink {
 public:
  void Emit(const std::string&, v1::Token) override {}
  void Refuse(const std::string&, v1::Refused) override {}
  void SetWorld(v1::World, const std::string&, std::map<std::string, v1::Roster>) override {}
  void SetLoad(v1::Load) override {}
};

std::unique_ptr<Mesh> Listening(const std::string& member) {
  auto mesh = std::move(Mesh::Listen("127.0.0.1:0")).value();
  mesh->SetSelf("w", member, net::Credentials::Insecure());
  return mesh;
}

class TurnTest : public ::testing::Test {
 protected:
  TurnTest() {
    const std::vector<PeerAddress> peers{{"a", endpoints_[0], ""}, {"b", endpoints_[1], ""}};
    a_->Want(peers);
    b_->Want(peers);
    EXPECT_TRUE(tangram::testing::Eventually([&] {
      a_->Progress(0);
      b_->Progress(0);
      return a_->Connected(names_) && b_->Connected(names_);
    }));
  }
  // Steps until the flip is over, in a thread of its own.
  std::future<Status> Flips() {
    return std::async(std::launch::async, [this] {
      const auto end = std::chrono::steady_clock::now() + kHang;
      while (turn_.flips() == 0 && turn_.declined() == 0 && !turn_.stopped()) {
        TANGRAM_RETURN_IF_ERROR(turn_.Once());
        if (std::chrono::steady_clock::now() > end) return Status{Code::kInternal, "it hangs"};
      }
      return OkStatus();
    });
  }
  // b takes part in steps, until all words are for the flip; and in the flip's manifest.
  void FollowUntilThePull() {
    for (bool go = false; !go; ++step_) {
      Control mine;
      mine.word = {2, 7};
      std::vector<Bytes> all;
      const Status said = comm_.Gather(step_, kControlSequence, mine.Encode(), &all);
      ASSERT_TRUE(said.ok()) << said.message();
      go = Control::Decode(all[0])->word.epoch == 2;
    }
    --step_;
    std::vector<Bytes> all;
    const Status said = comm_.Gather(step_, kManifestSequence, {1}, &all);
    ASSERT_TRUE(said.ok()) << said.message();
  }

  static constexpr Patience::Bounds kPatient{.least = kHang, .most = kHang};
  const std::vector<std::string> names_{"a", "b"};
  std::unique_ptr<Mesh> a_ = Listening("a"), b_ = Listening("b");
  const std::vector<std::string> endpoints_{"127.0.0.1:" + std::to_string(a_->port()),
                                            "127.0.0.1:" + std::to_string(b_->port())};
  TestMaps now_{1, 0, endpoints_, false}, target_{2, 0, endpoints_, true};
  ScriptedWorld world_{&now_.maps, &target_.maps};
  ScriptedBackend backend_;
  Nowhere nowhere_;
  Inbox inbox_;
  Turn turn_{{.patience = kPatient, .kv_ahead = std::chrono::milliseconds(-1)},
             &world_,
             a_.get(),
             &inbox_,
             &nowhere_,
             &backend_};
  Patience patience_{kPatient};
  Communicator comm_{b_.get(), 1, 1, names_, &patience_};
  uint64_t step_ = 0;
};

// Others that gave the flip up stand still and hang up. Who goes on to pull KV then answers nobody,
// and is taken for a rank that hangs.
TEST_F(TurnTest, APullEndsWhenAPeerGivesTheFlipUp) {
  std::promise<void> pulls;
  Status seen;
  backend_.bring = [&](Between& between) -> Result<uint64_t> {
    pulls.set_value();
    const auto end = std::chrono::steady_clock::now() + kHang;
    while ((seen = between.Lives()).ok() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return seen;
  };
  auto flips = Flips();
  ASSERT_NO_FATAL_FAILURE(FollowUntilThePull());
  pulls.get_future().wait();
  b_.reset();
  const Status status = flips.get();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(seen.code(), Code::kUnavailable) << seen.message();
  EXPECT_TRUE(turn_.stopped());
  EXPECT_EQ(turn_.declined(), 0u) << "what is written to still must not be used";
  ASSERT_EQ(world_.missed.size(), 1u);
  EXPECT_EQ(world_.missed[0].rank, 1u);
}

// While it pulls, the others hear that it lives.
TEST_F(TurnTest, APullSendsHeartbeats) {
  std::atomic<bool> heard{false};
  backend_.bring = [&](Between& between) -> Result<uint64_t> {
    const auto end = std::chrono::steady_clock::now() + kHang;
    while (!heard && std::chrono::steady_clock::now() < end) {
      TANGRAM_RETURN_IF_ERROR(between.Lives());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return uint64_t{8};
  };
  auto flips = Flips();
  ASSERT_NO_FATAL_FAILURE(FollowUntilThePull());
  const uint64_t before = b_->Moved("a");
  EXPECT_TRUE(tangram::testing::Eventually([&] {
    b_->Progress(1);
    return b_->Moved("a") > before;
  }));
  heard = true;
  ByteWriter brought;
  brought.PutString("");
  std::vector<Bytes> all;
  const Status told = comm_.Gather(step_, kPulledSequence, brought.Take(), &all);
  EXPECT_TRUE(told.ok()) << told.message();
  const Status status = flips.get();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(turn_.epoch(), 2u);
  EXPECT_EQ(backend_.entries, (std::vector{Entry::kEmpty, Entry::kCarried}));
}

// A pull that failed, and has ended: all hear so and stay.
TEST_F(TurnTest, APullThatFailedIsDeclined) {
  backend_.bring = [](Between&) { return Result<uint64_t>(Status{Code::kEngine, "no source"}); };
  auto flips = Flips();
  ASSERT_NO_FATAL_FAILURE(FollowUntilThePull());
  ByteWriter brought;
  brought.PutString("");
  std::vector<Bytes> all;
  EXPECT_TRUE(comm_.Gather(step_, kPulledSequence, brought.Take(), &all).ok());
  b_.reset();
  (void)flips.get();
  EXPECT_NE(world_.declined.find("no source"), std::string::npos) << world_.declined;
  EXPECT_EQ(turn_.epoch(), 1u);
}

}  // namespace
}  // namespace tangram::engine
