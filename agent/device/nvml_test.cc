#include "agent/device/nvml.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "agent/device/platform.h"
#include "agent/device/testing/fake_cuda.h"

namespace tangram::device {
namespace {

std::string Told(const char* by_nvml, const std::string& library = TANGRAM_FAKE_NVML) {
  testing::FakeCuda::Become({});
  if (by_nvml != nullptr) setenv("FAKE_NVML", by_nvml, 1);
  const auto platform = MakePlatform(
      {.name = "cuda", .map_bytes = 2 << 20, .driver = TANGRAM_FAKE_CUDA, .management = library});
  const std::string out = platform.ok() ? (*platform)->fabric() : platform.status().message();
  unsetenv("FAKE_NVML");
  return out;
}

TEST(Nvml, NamesDomainByUuidAndClique) {
  EXPECT_EQ(Told("3 7 0123456789abcdef0011223344556677"), "0123456789abcdef0011223344556677.7");
}

TEST(Nvml, ReturnsEmptyNameWhenDomainIsUnavailable) {
  EXPECT_EQ(Told("3 0 00000000000000000000000000000000"), "") << "NVLink of one node";
  EXPECT_EQ(Told("2 7 0123456789abcdef0011223344556677"), "") << "not joined yet";
  EXPECT_EQ(Told(nullptr), "") << "not supported";
  EXPECT_EQ(Told("3 7 0123456789abcdef0011223344556677", "libnvidia-ml-not-here.so.1"), "");
  EXPECT_EQ(Told("3 7 0123456789abcdef0011223344556677", TANGRAM_FAKE_CUDA), "")
      << "a library without its entry points";
}

}  // namespace
}  // namespace tangram::device
