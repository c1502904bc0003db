#include "agent/base/fault.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tangram::fault {
namespace {

const Point kPoint("test.point");

TEST(Fault, FiresOnceAtTheNamedPass) {
  ASSERT_TRUE(Arm("test.point=error@2").ok());
  EXPECT_TRUE(Check("test.point").ok());
  EXPECT_EQ(Check("test.point").code(), Code::kInternal);
  EXPECT_TRUE(Check("test.point").ok());
}

TEST(Fault, CorruptIsLeftToTheCaller) {
  ASSERT_TRUE(Arm("test.point=corrupt").ok());
  EXPECT_EQ(Hit("test.point"), Action::kCorrupt);
}

TEST(Fault, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(Arm("no.such=error").code(), Code::kInvalid);
  EXPECT_EQ(Arm("test.point=explode").code(), Code::kInvalid);
  EXPECT_EQ(Arm("test.point=error@0").code(), Code::kInvalid);
  EXPECT_EQ(Arm("test.point").code(), Code::kInvalid);
}

TEST(Fault, ListNamesEveryPoint) {
  const auto names = List();
  EXPECT_NE(std::find(names.begin(), names.end(), "test.point"), names.end());
}

}  // namespace
}  // namespace tangram::fault
