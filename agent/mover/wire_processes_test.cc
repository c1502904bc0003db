// Movers in separate processes fetch weights and KV from each other over comm channels. Ends die,
// hang and fail, and no process waits forever.
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "agent/mover/testing/processes.h"
#include "agent/net/testing/certs.h"

namespace tangram::mover {
namespace {

namespace fs = std::filesystem;
using tangram::testing::Eventually;
using testing::Process;

constexpr uint64_t kAll = 12 * 300'000;  // bytes of a grant (testing/wire_agent_main.cc)

struct Way {
  const char *platform, *wire, *library;
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.wire << " on " << way.platform; }

class Agent {
 public:
  Agent(const fs::path& dir, const Way& way, unsigned seed, const std::string& more = "",
        const std::vector<std::string>& environment = {})
      : seed_(seed), pod_("pod-" + std::to_string(seed)) {
    std::vector<std::string> words{TANGRAM_WIRE_AGENT,
                                   "dir=" + dir.string(),
                                   "pod=" + pod_,
                                   "seed=" + std::to_string(seed),
                                   std::string("platform=") + way.platform,
                                   std::string("wire=") + way.wire,
                                   std::string("library=") + way.library};
#ifdef TANGRAM_FAKE_CUDA
    words.push_back("driver=" TANGRAM_FAKE_CUDA);
#endif
    if (!more.empty()) words.push_back(more);
    process_ = std::make_unique<Process>(words, environment);
    std::istringstream ready(process_->Hear());
    std::string word;
    ready >> word >> port_ >> kind_;
    EXPECT_EQ(word, "ready") << pod_;
  }

  // The arguments for a fetch from here; a token is valid once.
  std::string Offer(const Agent& to, bool kv = false) {
    std::istringstream answer(process_->Ask((kv ? "grantkv " : "grant ") + to.pod_));
    std::string word, rest;
    answer >> word;
    std::getline(answer, rest);
    EXPECT_EQ(word, "token");
    return std::string(kv ? "kv " : "pull ") + port_ + " " + kind_ + " " + std::to_string(seed_) +
           rest;
  }
  void Begin(const std::string& offer) const { process_->Say(offer); }
  std::string End() { return process_->Hear(); }
  std::string Bring(Agent& from, bool kv = false) { return process_->Ask(from.Offer(*this, kv)); }
  std::string Look() { return process_->Ask("look"); }
  void Close() { EXPECT_EQ(process_->Ask("close"), "closed"); }
  Process& process() { return *process_; }
  void set_kind(std::string kind) { kind_ = std::move(kind); }

 private:
  const unsigned seed_;
  const std::string pod_;
  std::unique_ptr<Process> process_;
  std::string port_, kind_;
};

class WireProcesses : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    fs::create_directories(dir_);
    for (int pod = 1; pod <= 4; ++pod) {
      const std::string name = "pod-" + std::to_string(pod);
      ca_.Write("spiffe://tangram/w/agent/" + name, dir_.string(), name);
    }
  }
  void TearDown() override { fs::remove_all(dir_); }
  std::string Good(uint64_t bytes) const {
    return std::string(GetParam().wire) + " " + std::to_string(bytes) + " ok";
  }
  static void ExpectQuiet(Agent& agent) {
    const std::string look = agent.Look();
    EXPECT_TRUE(look.ends_with("complaint ")) << look;
  }
  const net::testing::TestCa ca_;
  const fs::path dir_ = fs::temp_directory_path() / ("wires-" + std::to_string(getpid()));
};

std::vector<Way> Ways() {
  std::vector<Way> out;
#ifdef TANGRAM_FAKE_NCCL
  out.push_back({"cuda", "nccl", TANGRAM_FAKE_NCCL});
#endif
#ifdef TANGRAM_UCX
  out.push_back({"host", "ucx", ""});
#endif
  return out;
}

INSTANTIATE_TEST_SUITE_P(Mover, WireProcesses, ::testing::ValuesIn(Ways()),
                         [](const auto& info) { return std::string(info.param.wire); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(WireProcesses);

TEST_P(WireProcesses, FetchesWeightsAndKvBetweenTwoAgents) {
  Agent one(dir_, GetParam(), 1), two(dir_, GetParam(), 2);
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(one.Bring(two), Good(kAll));
    ASSERT_EQ(two.Bring(one), Good(kAll));
    ASSERT_EQ(one.Bring(two, true), Good(0));
    if (round == 1) one.Close();
  }
  ExpectQuiet(one);
  ExpectQuiet(two);
}

// All fetch from all concurrently; the order is random.
TEST_P(WireProcesses, FetchesAmongFourAgentsWithoutDeadlock) {
  std::vector<std::unique_ptr<Agent>> agents;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    // The device has room for only one sending and one receiving kernel.
    agents.push_back(std::make_unique<Agent>(dir_, GetParam(), seed, "",
                                             std::vector<std::string>{"FAKE_NCCL_ROOM=2"}));
  }
  for (size_t turn = 1; turn < 4; ++turn) {
    std::vector<std::string> offers;
    for (size_t a = 0; a < 4; ++a) {
      offers.push_back(agents[(a + turn) % 4]->Offer(*agents[a], turn == 2));
    }
    for (size_t a = 0; a < 4; ++a) agents[a]->Begin(offers[a]);
    for (size_t a = 0; a < 4; ++a) {
      EXPECT_EQ(agents[a]->End(), Good(turn == 2 ? 0 : kAll));
    }
  }
  for (auto& agent : agents) ExpectQuiet(*agent);
}

TEST_P(WireProcesses, UsesTcpWhenCommLibrariesDiffer) {
  Agent one(dir_, GetParam(), 1), two(dir_, GetParam(), 2);
  two.set_kind("nccl_1.0.0");
  EXPECT_EQ(one.Bring(two), "tcp " + std::to_string(kAll) + " ok");
  EXPECT_EQ(one.Bring(two, true), "tcp 0 ok");
}

TEST_P(WireProcesses, RejectsForeignOrReusedToken) {
  Agent one(dir_, GetParam(), 1), two(dir_, GetParam(), 2), three(dir_, GetParam(), 3);
  const std::string offer = two.Offer(three);
  one.Begin(offer);
  const std::string refused = one.End();
  EXPECT_NE(refused.find("used a token that is unknown, expired"), std::string::npos) << refused;
  EXPECT_EQ(three.process().Ask(offer), Good(kAll)) << "it stayed good for who asked";
  EXPECT_NE(three.process().Ask(offer).find("failed: "), std::string::npos);
}

TEST_P(WireProcesses, DetectsCorruptionInTransit) {
  Agent one(dir_, GetParam(), 1, "faults=data.before_send=corrupt"), two(dir_, GetParam(), 2);
  const std::string found = two.Bring(one);
  EXPECT_NE(found.find("failed: unit 0 of 12"), std::string::npos) << found;
  ExpectQuiet(one);
}

TEST_P(WireProcesses, DoesNotSendReleasedMemory) {
  Agent one(dir_, GetParam(), 1), two(dir_, GetParam(), 2);
  const std::string offer = one.Offer(two);
  EXPECT_EQ(one.process().Ask("end"), "ended");
  const std::string found = two.process().Ask(offer);
  EXPECT_NE(found.find("the granted memory was released"), std::string::npos) << found;
}

// The source is stopped before it is killed, like one whose machine fails. The reader continues as
// soon as it is dead, long before its timeout, with another source.
TEST_P(WireProcesses, ReplacesSourceWhenKilledDuringFetch) {
  const fs::path points = dir_ / "points";
  fs::create_directories(points);
  Agent dies(dir_, GetParam(), 1, "points=" + points.string()), other(dir_, GetParam(), 3);
  Agent reader(dir_, GetParam(), 2);
  ASSERT_EQ(reader.Bring(dies), Good(kAll));
  const std::string offer = dies.Offer(reader);
  std::ofstream(points / "data.before_send.armed").close();
  reader.Begin(offer);
  ASSERT_TRUE(Eventually([&] { return fs::exists(points / "data.before_send.hit"); }));
  dies.process().Stop();
  dies.process().Kill();
  const std::string ended = reader.End();
  EXPECT_NE(ended.find("failed: "), std::string::npos) << ended;
  EXPECT_EQ(reader.Bring(other), Good(kAll));
  EXPECT_EQ(reader.Bring(other, true), Good(0));
}

TEST_P(WireProcesses, FreesSourceWhenReaderIsKilled) {
  Agent source(dir_, GetParam(), 1), other(dir_, GetParam(), 3);
  {
    Agent dies(dir_, GetParam(), 2);
    ASSERT_EQ(dies.Bring(source), Good(kAll));
    const std::string offer = source.Offer(dies);
    dies.process().Stop();
    dies.Begin(offer);
    dies.process().Kill();
  }
  EXPECT_EQ(other.Bring(source), Good(kAll));
  other.Close();
  EXPECT_TRUE(Eventually([&] { return source.Look().starts_with("sessions 0"); }));
}

#ifdef TANGRAM_FAKE_NCCL
class NcclProcesses : public WireProcesses {};
INSTANTIATE_TEST_SUITE_P(Mover, NcclProcesses,
                         ::testing::Values(Way{"cuda", "nccl", TANGRAM_FAKE_NCCL}));

// A kernel never ends: the end where it hangs aborts after its timeout, and the next batch uses
// TCP. A reader reports which bytes had arrived.
TEST_P(NcclProcesses, FallsBackToTcpWhenReaderHangs) {
  Agent source(dir_, GetParam(), 1);
  Agent reader(dir_, GetParam(), 2, "clock=hangs", {"FAKE_NCCL_HANG_AT=3"});
  const std::string ended = reader.Bring(source);
  EXPECT_NE(ended.find("nccl 1800000 failed: "), std::string::npos) << ended;
  EXPECT_NE(ended.find("took longer than"), std::string::npos) << ended;
  EXPECT_EQ(reader.Bring(source), "tcp " + std::to_string(kAll) + " ok");
}

TEST_P(NcclProcesses, FallsBackToTcpWhenSourceHangs) {
  Agent source(dir_, GetParam(), 1, "clock=hangs", {"FAKE_NCCL_HANG_AT=3"});
  Agent reader(dir_, GetParam(), 2);
  const std::string ended = reader.Bring(source);
  EXPECT_TRUE(ended.starts_with("nccl ")) << ended;
  EXPECT_NE(ended.find("failed: "), std::string::npos) << ended;
  EXPECT_EQ(reader.Bring(source), "tcp " + std::to_string(kAll) + " ok");
  EXPECT_EQ(reader.Bring(source, true), "tcp 0 ok");
  for (Agent* agent : {&source, &reader}) {
    EXPECT_TRUE(Eventually([&] {
      const std::string look = agent->Look();
      return look.find(" open 0 ") != std::string::npos && look.ends_with("complaint ");
    })) << "a communicator is left, or: "
        << agent->Look();
  }
  reader.Close();  // the next attempt tries again
  EXPECT_EQ(reader.Bring(source), Good(kAll));
}

TEST_P(NcclProcesses, DetectsKilledSourceWithoutLibraryError) {
  Agent dies(dir_, GetParam(), 1, "", {"FAKE_NCCL_HANG_AT=3"});
  Agent reader(dir_, GetParam(), 2, "", {"FAKE_NCCL_DEAF=1"});
  reader.Begin(dies.Offer(reader));
  ASSERT_TRUE(Eventually([&] { return dies.Look().find(" hangs 1 ") != std::string::npos; }));
  dies.process().Kill();
  EXPECT_NE(reader.End().find("failed: "), std::string::npos);
  EXPECT_NE(reader.Look().find(" open 0 "), std::string::npos) << "a communicator is left";
}

TEST_P(NcclProcesses, NamesErrorAndFallsBackToTcp) {
  Agent source(dir_, GetParam(), 1);
  Agent reader(dir_, GetParam(), 2, "", {"FAKE_NCCL_FAIL_AT=3"});
  const std::string ended = reader.Bring(source);
  EXPECT_NE(ended.find("unhandled system error (2)"), std::string::npos) << ended;
  EXPECT_EQ(reader.Bring(source), "tcp " + std::to_string(kAll) + " ok");
}

TEST_P(NcclProcesses, UsesTcpWhenNcclVersionsDiffer) {
  Agent source(dir_, GetParam(), 1, "", {"FAKE_NCCL_VERSION=23000"});
  Agent reader(dir_, GetParam(), 2);
  EXPECT_EQ(reader.Bring(source), "tcp " + std::to_string(kAll) + " ok");
}

TEST_P(NcclProcesses, RejectsOutdatedLibraryAtStart) {
  Process old({TANGRAM_WIRE_AGENT, "dir=" + dir_.string(), "pod=pod-1", "driver=" TANGRAM_FAKE_CUDA,
               "library=" TANGRAM_FAKE_NCCL},
              {"FAKE_NCCL_VERSION=21703"});
  EXPECT_EQ(old.Hear(), "");
  ASSERT_TRUE(old.Ended(tangram::testing::kHang));
  EXPECT_EQ(old.code(), 1);
}
#endif

}  // namespace
}  // namespace tangram::mover
