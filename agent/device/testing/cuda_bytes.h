// Memory of a GPU by the recording driver, mapped and filled with known bytes.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <tuple>
#include <vector>

#include "agent/device/cuda.h"
#include "agent/device/hash.h"
#include "agent/device/testing/fake_cuda.h"

namespace tangram::device::testing {

class CudaBytes : public ::testing::Test {
 protected:
  static constexpr uint64_t kUnit = 2 << 20, kUnits = 8;

  void SetUp() override {
    auto context = CudaContext::Open(TANGRAM_FAKE_CUDA, 0);
    ASSERT_TRUE(context.ok()) << context.status().message();
    device_ = CudaDevice::Make(*context, {kUnits * kUnit, kUnit}).value();
    std::tie(space_, mapped_) = MapWhole(*device_).value();
    bytes_.resize(kUnits * kUnit);
    std::mt19937_64 random(7);
    for (size_t i = 0; i < bytes_.size(); i += 8) {
      const uint64_t word = random();
      std::memcpy(&bytes_[i], &word, 8);
    }
    const CopyOp op{At(0, bytes_.size()), Memory::Own(bytes_)};
    ASSERT_TRUE(device_->Copy({&op, 1}).Wait().ok());
  }
  Memory At(uint64_t offset, uint64_t bytes) const {
    return {device_.get(), space_->address() + offset, bytes};
  }
  // The expected hash of bytes written in SetUp.
  uint64_t HashHere(uint64_t offset, uint64_t bytes) const {
    return HashOf(std::span(bytes_).subspan(offset, bytes));
  }
  std::vector<std::byte> Read(const Memory& from) {
    std::vector<std::byte> out(from.bytes);
    const CopyOp op{Memory::Own(out), from};
    EXPECT_TRUE(device_->Copy({&op, 1}).Wait().ok());
    return out;
  }

  std::unique_ptr<CudaDevice> device_;
  SpacePtr space_;
  Mapping mapped_;
  std::vector<std::byte> bytes_;
};

}  // namespace tangram::device::testing
