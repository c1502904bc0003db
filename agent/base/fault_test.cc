#include "agent/base/fault.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "agent/base/testing/hang.h"

namespace tangram::fault {
namespace {

const Point kPoint("test.point", kErrors | kCorruption);
const Point kDeaf("test.deaf");

TEST(Fault, FiresOnceAtTheNamedPass) {
  ASSERT_TRUE(Arm("test.point=error@2").ok());
  EXPECT_TRUE(Check("test.point").ok());
  EXPECT_EQ(Check("test.point").code(), Code::kInternal);
  EXPECT_TRUE(Check("test.point").ok());
}

TEST(Fault, LeavesCorruptionToCaller) {
  ASSERT_TRUE(Arm("test.point=corrupt").ok());
  EXPECT_EQ(Hit("test.point"), Action::kCorrupt);
}

TEST(Fault, RejectsUnknownPointsAndActions) {
  EXPECT_EQ(Arm("no.such=error").code(), Code::kInvalid);
  EXPECT_EQ(Arm("test.point=explode").code(), Code::kInvalid);
  EXPECT_EQ(Arm("test.point=error@0").code(), Code::kInvalid);
  EXPECT_EQ(Arm("test.point").code(), Code::kInvalid);
}

TEST(Fault, RejectsActionsUnsupportedByPoint) {
  EXPECT_EQ(Arm("test.deaf=error").code(), Code::kInvalid);
  EXPECT_EQ(Arm("test.deaf=corrupt").code(), Code::kInvalid);
  EXPECT_TRUE(Arm("test.deaf=delay:1").ok());
  EXPECT_TRUE(Arm("").ok());
}

TEST(Fault, DescribesActionsOfEachPoint) {
  const auto points = Describe();
  EXPECT_NE(std::find(points.begin(), points.end(), "test.point error corrupt"), points.end());
  EXPECT_NE(std::find(points.begin(), points.end(), "test.deaf"), points.end());
}

TEST(Fault, ListNamesEveryPoint) {
  const auto names = List();
  EXPECT_NE(std::find(names.begin(), names.end(), "test.point"), names.end());
}

class FollowTest : public ::testing::Test {
 protected:
  FollowTest()
      : dir_(std::filesystem::temp_directory_path() / ("faults-" + std::to_string(getpid()))) {
    std::filesystem::create_directory(dir_);
    Follow(dir_);
  }
  ~FollowTest() override {
    Follow("");
    std::filesystem::remove_all(dir_);
  }
  void Touch(const std::string& name, const std::string& text = "") {
    std::ofstream(dir_ / name) << text;
  }
  const std::filesystem::path dir_;
};

TEST_F(FollowTest, BlocksAtArmedPointUntilReleased) {
  (void)Hit("test.point");
  EXPECT_TRUE(std::filesystem::exists(dir_ / "test.point.seen"));
  Touch("test.point.armed");
  std::atomic<bool> passed{false};
  std::thread thread([&] {
    (void)Hit("test.point");
    passed = true;
  });
  EXPECT_TRUE(
      testing::Eventually([&] { return std::filesystem::exists(dir_ / "test.point.hit"); }));
  EXPECT_FALSE(passed);
  std::filesystem::remove(dir_ / "test.point.armed");
  thread.join();
  EXPECT_TRUE(passed);
}

TEST_F(FollowTest, PerformsWrittenActionOnce) {
  Touch("test.point.armed", "corrupt");
  EXPECT_EQ(Hit("test.point"), Action::kCorrupt);
  EXPECT_TRUE(std::filesystem::exists(dir_ / "test.point.hit"));
  EXPECT_EQ(Hit("test.point"), Action::kNone);
}

TEST_F(FollowTest, PerformsActionWrittenWhileBlocked) {
  Touch("test.point.armed");
  std::atomic<Action> did{Action::kNone};
  std::thread thread([&] { did = Hit("test.point"); });
  EXPECT_TRUE(
      testing::Eventually([&] { return std::filesystem::exists(dir_ / "test.point.hit"); }));
  Touch("test.point.armed", "error");
  thread.join();
  EXPECT_EQ(did, Action::kError);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "test.point.armed")) << "it says so";
}

TEST_F(FollowTest, RepeatsActionUntilFileRemoved) {
  Touch("test.point.always", "error");
  EXPECT_EQ(Hit("test.point"), Action::kError);
  EXPECT_EQ(Hit("test.point"), Action::kError);
  std::filesystem::remove(dir_ / "test.point.always");
  EXPECT_EQ(Hit("test.point"), Action::kNone);
}

TEST_F(FollowTest, CutsLinksByName) {
  EXPECT_FALSE(Cut("a/0/1"));
  Touch("cut", "b/0/1\na/0/1\n");
  EXPECT_TRUE(Cut("a/0/1"));
  EXPECT_FALSE(Cut("a/0"));
}

}  // namespace
}  // namespace tangram::fault
