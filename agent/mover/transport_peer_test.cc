// Programs of peers that reply, do not reply, or reply wrongly, and the reports about them.
#include "agent/mover/transport_peer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tangram::mover {
namespace {

using std::chrono::seconds;

// A shell program that prints `hello`, then `answer` for each line.
std::vector<std::string> Says(const std::string& hello, const std::string& answer) {
  return {"sh", "-c", "echo '" + hello + "'; while read -r line; do echo '" + answer + "'; done"};
}

const std::string kHello = R"({"version": "7", "settings": ["slow", "fast"], "least": 2})";

nlohmann::json Sum(const Peer& peer, nlohmann::json* versions) {
  nlohmann::json metrics;
  peer.Sum(&metrics, versions);
  return metrics;
}

std::string OverOf(const Peer& peer) {
  nlohmann::json versions;
  const nlohmann::json over = Sum(peer, &versions)["over_p"];
  return over.is_string() ? over.get<std::string>() : over.dump();
}

TEST(Peer, MeasuresSecondTransferAndReportsFastestSetting) {
  // Settings take turns, each with a first transfer that does not count: 9 and 8 s.
  const std::string script = R"(
    echo '{"version": "7", "settings": ["slow", "fast"], "least": 2}'
    for s in 9 4 8 2   9 4 8 1   9 5 8 3; do read -r line; echo "{\"seconds\": $s}"; done)";
  Peer peer("p", {"sh", "-c", script}, 8);
  for (int i = 0; i < 3; ++i) peer.Turn(4'000'000'000);
  nlohmann::json line;
  peer.Tell(4'000'000'000, 1.0, &line);
  EXPECT_EQ(line, (nlohmann::json{{"p_gb_per_s", 2.0},
                                  {"p_setting", "fast"},
                                  {"p_settings_gb_per_s", {{"slow", 1.0}, {"fast", 2.0}}},
                                  {"over_p", 2.0}}));
  EXPECT_EQ(peer.trouble(), "");
}

TEST(Peer, SummarizesWorstRatioAndLastRate) {
  Peer peer("p", Says(kHello, R"({"seconds": 2})"), 8);
  nlohmann::json line, versions;
  for (const double ours : {1.0, 4.0, 0.5}) {
    peer.Turn(4'000'000'000);
    peer.Tell(4'000'000'000, ours, &line);
  }
  EXPECT_EQ(Sum(peer, &versions), (nlohmann::json{{"over_p", 0.5}, {"p_gb_per_s", 2.0}}));
  EXPECT_EQ(versions, (nlohmann::json{{"p", "7"}}));
}

TEST(Peer, AdvancesOffsetsAndSkipsSmallTransfers) {
  // It replies with the offset + 1 as seconds, and fails below its minimum.
  const std::string script = R"(
    echo '{"version": "7", "settings": ["one"], "least": 2}'
    while read -r line; do
      case $line in *'"bytes":1,'*) exit 1;; esac
      offset=${line##*'"offset":'}; offset=${offset%%,*}
      echo "{\"seconds\": $((offset + 1))}"
    done)";
  Peer peer("p", {"sh", "-c", script}, 7);
  nlohmann::json line;
  peer.Turn(1);
  peer.Tell(1, 1, &line);
  EXPECT_TRUE(line.empty());
  // Two of 3 bytes each: at 0 and 3, then at 0 and 3 again, because 6 + 3 exceeds the memory.
  for (int i = 0; i < 2; ++i) peer.Turn(3);
  peer.Tell(3, 4, &line);
  EXPECT_EQ(peer.trouble(), "");
  EXPECT_EQ(line["over_p"], 1.0);
}

TEST(Peer, ReportsMissingInstallationWithoutTransfers) {
  Peer peer("p", Says(R"({"trouble": "not installed"})", "never"), 8);
  peer.Turn(4);
  nlohmann::json line;
  peer.Tell(4, 1, &line);
  EXPECT_TRUE(line.is_null());
  EXPECT_EQ(OverOf(peer), "not installed");
}

TEST(Peer, ReportsFailureInsteadOfMeasurements) {
  const std::string script = R"(
    echo '{"version": "7", "settings": ["one"], "least": 0}'
    for s in 1 1; do read -r line; echo '{"seconds": 1}'; done
    read -r line; echo '{"trouble": "failed: bytes are wrong"}')";
  Peer peer("p", {"sh", "-c", script}, 8);
  nlohmann::json line;
  peer.Turn(4);
  peer.Tell(4, 1, &line);
  EXPECT_EQ(line["over_p"], 1.0);
  peer.Turn(4);
  EXPECT_EQ(OverOf(peer), "failed: bytes are wrong");
}

TEST(Peer, ReportsMissingOrInvalidReplyAsFailure) {
  EXPECT_EQ(OverOf(Peer("p", {"/nothing/here"}, 8)),
            "failed: /nothing/here does not start: No such file or directory");
  EXPECT_EQ(OverOf(Peer("p", {"true"}, 8)), "failed: it ended");
  EXPECT_EQ(OverOf(Peer("p", Says("hello", ""), 8)), "failed: it says 'hello'");
  EXPECT_EQ(OverOf(Peer("p", Says("[1]", ""), 8)), "failed: it says '[1]'");
  EXPECT_NE(OverOf(Peer("p", Says(R"({"version": 7})", ""), 8)).find("failed: it says"),
            std::string::npos);
  EXPECT_EQ(OverOf(Peer("p", {"sh", "-c", "read -r line"}, 8, {seconds(0), seconds(0)})),
            "failed: it says nothing for 0 s");
  for (const char* answer : {R"({"seconds": 0})", R"({"seconds": "1"})", R"({"second": 1})"}) {
    Peer peer("p", Says(kHello, answer), 8);
    peer.Turn(4);
    EXPECT_NE(OverOf(peer).find("failed: it says {"), std::string::npos) << answer;
  }
}

}  // namespace
}  // namespace tangram::mover
