// Wires of UCX over a recording UCX: what becomes of them when the node's interfaces change.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "agent/device/platform.h"
#include "agent/device/testing/fake_ucp.h"

namespace tangram::device {
namespace {

using testing::FakeUcp;

class UcxTest : public ::testing::Test {
 protected:
  void SetUp() override {
    FakeUcp::Reset();
    platform_ = MakePlatform({}).value();
    wires_ =
        platform_->OpenWires({.name = "ucx", .library = TANGRAM_FAKE_UCP, .buffer_bytes = 4096})
            .value();
  }
  void TearDown() override {
    wires_.reset();
    EXPECT_EQ(FakeUcp::workers(), 0U);
    EXPECT_EQ(FakeUcp::contexts(), 0U);
  }
  Result<std::unique_ptr<Wire>> Offer() {
    std::string hello;
    return wires_->Offer(&hello);
  }

  std::unique_ptr<Platform> platform_;
  std::unique_ptr<Wires> wires_;
};

TEST_F(UcxTest, SharesContextWhileInterfacesAreUnchanged) {
  const auto one = Offer(), other = Offer();
  EXPECT_TRUE(one.ok() && other.ok());
  EXPECT_EQ(FakeUcp::contexts_made(), 1U);
}

TEST_F(UcxTest, CreatesNewContextWhenInterfaceDisappears) {
  auto before = Offer();
  ASSERT_TRUE(before.ok()) << before.status().message();
  FakeUcp::ChangeInterfaces();
  auto after = Offer(), last = Offer();
  EXPECT_TRUE(after.ok()) << after.status().message();
  EXPECT_TRUE(last.ok()) << last.status().message();
  EXPECT_EQ(FakeUcp::contexts_made(), 2U) << "the new one stays";
  EXPECT_EQ(FakeUcp::contexts(), 2U) << "the first wire's worker is of the old one";
  before->reset();
  EXPECT_EQ(FakeUcp::contexts(), 1U);
}

TEST_F(UcxTest, FailsWhenInterfacesKeepChanging) {
  FakeUcp::ChangeInterfacesForEver();
  const Status status = Offer().status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.message(), "ucx: a worker: No such device");
  EXPECT_EQ(FakeUcp::contexts_made(), 5U);
}

TEST_F(UcxTest, CreatesNoNewContextOnOtherErrors) {
  FakeUcp::FailNextWorker();
  EXPECT_EQ(Offer().status().message(), "ucx: a worker: Out of memory");
  EXPECT_EQ(FakeUcp::contexts_made(), 1U);
}

}  // namespace
}  // namespace tangram::device
