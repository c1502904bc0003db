// Acts are run and summed up, however they end.
#include "tests/gpu/check.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "tests/gpu/gpu.h"

namespace tangram::gpu {
namespace {

const Json* Find(const std::vector<Json>& records, const std::string& kind) {
  const auto it = std::find_if(records.begin(), records.end(),
                               [&](const Json& record) { return record["kind"] == kind; });
  return it == records.end() ? nullptr : &*it;
}

std::vector<Json> PlayOf(void (*run)(const Task&), int limit_seconds = 20) {
  return Play({"an-act", "what it does", limit_seconds, run}, {});
}

TEST(Play, RecordsResultsAndEndOfAct) {
  const auto records = PlayOf([](const Task& task) {
    task.out->Fact("a", "b");
    task.out->Right("things", 7);
  });
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0], Json({{"act", "an-act"}, {"kind", "fact"}, {"name", "a"}, {"text", "b"}}));
  EXPECT_EQ(records[1]["count"], 7);
  EXPECT_EQ(records[2]["kind"], "ended");
  EXPECT_FALSE(records[2].contains("how"));
  EXPECT_TRUE(IsRight(Summary("today", records)));
}

TEST(Play, KillsUnresponsiveActWithItsChildren) {
  const auto records = PlayOf(
      [](const Task& task) {
        task.out->Right("before", 1);
        if (fork() == 0) pause();  // the grandchild also holds the pipe
        pause();
      },
      1);
  ASSERT_NE(Find(records, "right"), nullptr);
  EXPECT_EQ(records.back()["how"], "it did not end within 1 s");
  EXPECT_FALSE(IsRight(Summary("today", records)));
}

TEST(Play, ReportsDeadActAsBrokenOff) {
  const auto records = PlayOf([](const Task& task) {
    task.out->Right("before", 1);
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
  });
  ASSERT_NE(Find(records, "right"), nullptr);
  EXPECT_NE(records.back()["how"].get<std::string>().find("signal 11"), std::string::npos);
  EXPECT_FALSE(IsRight(Summary("today", records)));
}

TEST(Play, ReportsActKilledFromOutside) {
  const auto records = PlayOf([](const Task&) { raise(SIGKILL); });
  EXPECT_EQ(records.back()["how"], "it died of signal 9");
}

TEST(Play, ReportsMissingCapabilityAsNotRun) {
  const auto lacks = PlayOf([](const Task&) { throw Lacks("no second GPU"); });
  ASSERT_NE(Find(lacks, "not_run"), nullptr);
  EXPECT_EQ((*Find(lacks, "not_run"))["why"], "no second GPU");
  EXPECT_TRUE(IsRight(Summary("today", lacks)));
  const auto failed = PlayOf([](const Task&) { throw Failed("it broke"); });
  ASSERT_NE(Find(failed, "failed"), nullptr);
  EXPECT_FALSE(IsRight(Summary("today", failed)));
}

TEST(Play, RunsNoActWithoutDriver) {
  for (const Act& act : Acts()) {
    Task task;
    task.driver = "libnone.so";
    const auto records = Play(act, task);
    EXPECT_EQ(Find(records, "wrong"), nullptr) << act.name;
    EXPECT_EQ(Find(records, "right"), nullptr) << act.name;
    ASSERT_NE(Find(records, "not_run"), nullptr) << act.name;
    const std::string why = (*Find(records, "not_run"))["why"];
    EXPECT_NE(why.find("libnone.so"), std::string::npos) << act.name << ": " << why;
  }
}

std::vector<Json> RecordsOf(const std::function<void(Recorder*)>& tell) {
  std::vector<Json> out;
  Recorder recorder("machine", [&](const Json& record) { out.push_back(record); });
  tell(&recorder);
  return out;
}

TEST(Figure, IsJudgedOnlyByGoal) {
  const auto records = RecordsOf([](Recorder* out) {
    out->Add({.name = "a", .value = 86, .ceiling = 100, .ceiling_is = "c", .goal = 0.85});
    out->Add({.name = "b", .value = 84, .ceiling = 100, .ceiling_is = "c", .goal = 0.85});
    out->Add({.name = "c", .value = 3, .goal = 2});
    out->Add({.name = "d", .value = 3, .goal = 2, .at_most = true});
    out->Add({.name = "e", .value = 3, .ceiling = 2, .ceiling_is = "c"});
  });
  const std::vector<std::string> verdicts{"pass", "missed", "pass", "missed", ""};
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].value("verdict", ""), verdicts[i]) << records[i];
  }
  EXPECT_EQ(records[4]["ratio"], 1.5);
  const Json summary = Summary("today", records);
  EXPECT_EQ(summary["goals_passed"], 2);
  EXPECT_EQ(summary["goals_missed"], 2);
  EXPECT_TRUE(IsRight(summary)) << "a goal that is missed is not wrong";
}

TEST(Summary, IgnoresFiguresOfRecordingDriver) {
  const auto records = RecordsOf([](Recorder* out) {
    out->Fact("device", "NVIDIA H200 (recorded)");
    out->Add({.name = "a", .value = 1, .goal = 2});
    out->Wrong("a byte");
  });
  const Json summary = Summary("today", records);
  EXPECT_EQ(summary["goals_missed"], 0);
  EXPECT_FALSE(IsRight(summary)) << "bytes are bytes";
  const std::string text = Markdown(summary);
  EXPECT_NE(text.find("Recorded driver: figures mean nothing"), std::string::npos) << text;
  EXPECT_NE(text.find("**WRONG**: a byte"), std::string::npos) << text;
  EXPECT_EQ(text.find("missed |"), std::string::npos) << text;
}

TEST(Summary, NamesMachine) {
  const auto records = RecordsOf([](Recorder* out) {
    out->Fact("device", "NVIDIA H100");
    out->Fact("driver", "CUDA 13.0");
    out->NotRun("a thing", "it needs two GPUs");
  });
  const std::string text = Markdown(Summary("2026-01-02", records));
  EXPECT_NE(text.find("2026-01-02, on NVIDIA H100 (driver of CUDA 13.0)"), std::string::npos);
  EXPECT_NE(text.find("* not run: a thing: it needs two GPUs"), std::string::npos);
  EXPECT_EQ(text.find("Recorded"), std::string::npos);
}

}  // namespace
}  // namespace tangram::gpu
