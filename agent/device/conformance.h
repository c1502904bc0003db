// What every device must do. A backend's test instantiates the suite with a type that has
// `static std::unique_ptr<Device> Make(uint64_t bytes)` (a device with so much memory) and
// `static std::unique_ptr<Device> Importer()` (another process's, which has none).
#pragma once

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "agent/device/device.h"

namespace tangram::device {

template <typename Backend>
class DeviceConformance : public ::testing::Test {
 protected:
  static constexpr uint64_t kUnits = 16;

  void SetUp() override {
    device_ = Backend::Make(kUnits * Backend::kUnit);
    ASSERT_NE(device_, nullptr);
    unit_ = device_->granularity();
  }
  std::unique_ptr<Range> Reserve(uint64_t units) {
    auto range = device_->Reserve(units * unit_);
    EXPECT_TRUE(range.ok()) << range.status().message();
    return std::move(range).value();
  }
  HandlePtr Create(uint64_t units) {
    auto handle = device_->Create(units * unit_);
    EXPECT_TRUE(handle.ok()) << handle.status().message();
    return std::move(handle).value();
  }
  void MapRw(Range& range, uint64_t unit, const HandlePtr& handle) {
    const Status mapped = device_->Map(range, unit * unit_, handle);
    ASSERT_TRUE(mapped.ok()) << mapped.message();
    const Status access =
        device_->SetAccess(range, unit * unit_, handle->bytes(), Access::kReadWrite);
    ASSERT_TRUE(access.ok()) << access.message();
  }
  void Fill(Range& range, uint64_t unit, uint64_t units, int value) {
    const std::vector<std::byte> bytes(units * unit_, std::byte(value));
    device_->Copy(range.base() + unit * unit_, bytes.data(), bytes.size());
  }
  void ExpectFilled(Range& range, uint64_t unit, uint64_t units, int value) {
    std::vector<std::byte> bytes(units * unit_);
    device_->Copy(bytes.data(), range.base() + unit * unit_, bytes.size());
    EXPECT_EQ(bytes, std::vector<std::byte>(bytes.size(), std::byte(value)));
  }

  std::unique_ptr<Device> device_;
  uint64_t unit_ = 0;
};

TYPED_TEST_SUITE_P(DeviceConformance);

TYPED_TEST_P(DeviceConformance, BytesBelongToTheHandleNotToTheAddress) {
  auto range = this->Reserve(8);
  const HandlePtr a = this->Create(2);
  const HandlePtr b = this->Create(1);
  this->MapRw(*range, 0, a);
  this->MapRw(*range, 2, b);
  this->Fill(*range, 0, 2, 0x5a);
  this->Fill(*range, 2, 1, 0x33);
  ASSERT_TRUE(this->device_->Unmap(*range, 0).ok());
  this->MapRw(*range, 5, a);
  this->ExpectFilled(*range, 5, 2, 0x5a);
  this->ExpectFilled(*range, 2, 1, 0x33);
}

TYPED_TEST_P(DeviceConformance, OneHandleAtTwoAddressesIsOneMemory) {
  auto range = this->Reserve(2);
  const HandlePtr a = this->Create(1);
  this->MapRw(*range, 0, a);
  this->MapRw(*range, 1, a);
  this->Fill(*range, 0, 1, 7);
  this->ExpectFilled(*range, 1, 1, 7);
}

TYPED_TEST_P(DeviceConformance, NoMappingOverAMapping) {
  auto range = this->Reserve(4);
  const HandlePtr one = this->Create(1);
  const HandlePtr two = this->Create(2);
  this->MapRw(*range, 1, two);
  for (const uint64_t unit : {1U, 2U}) {
    EXPECT_EQ(this->device_->Map(*range, unit * this->unit_, one).code(), Code::kInvalid);
  }
  EXPECT_EQ(this->device_->Map(*range, 0, two).code(), Code::kInvalid);
  // The refusals changed nothing, and beside it there is room.
  this->Fill(*range, 1, 2, 9);
  this->ExpectFilled(*range, 1, 2, 9);
  this->MapRw(*range, 0, one);
  this->MapRw(*range, 3, this->Create(1));
}

TYPED_TEST_P(DeviceConformance, RefusesWhatIsNoWholeUnitOrOutside) {
  auto range = this->Reserve(2);
  const HandlePtr two = this->Create(2);
  EXPECT_EQ(this->device_->Map(*range, this->unit_, two).code(), Code::kInvalid);
  EXPECT_EQ(this->device_->Map(*range, this->unit_ / 2, this->Create(1)).code(), Code::kInvalid);
  EXPECT_EQ(this->device_->Map(*range, 64 * this->unit_, two).code(), Code::kInvalid);
  EXPECT_EQ(this->device_->Create(0).status().code(), Code::kInvalid);
  EXPECT_EQ(this->device_->Create(this->unit_ + 1).status().code(), Code::kInvalid);
}

TYPED_TEST_P(DeviceConformance, UnmapTakesWhatMapGave) {
  auto range = this->Reserve(4);
  this->MapRw(*range, 0, this->Create(2));
  EXPECT_EQ(this->device_->Unmap(*range, this->unit_).code(), Code::kInvalid);
  EXPECT_TRUE(this->device_->Unmap(*range, 0).ok());
  EXPECT_EQ(this->device_->Unmap(*range, 0).code(), Code::kInvalid);
  EXPECT_EQ(this->device_->Unmap(*range, 3 * this->unit_).code(), Code::kInvalid);
}

TYPED_TEST_P(DeviceConformance, MemoryIsCountedAndComesBack) {
  Device& device = *this->device_;
  const uint64_t total = device.total_bytes();
  EXPECT_EQ(total, TestFixture::kUnits * this->unit_);
  EXPECT_EQ(device.free_bytes(), total);
  auto range = this->Reserve(4);
  {
    const HandlePtr handle = this->Create(3);
    EXPECT_EQ(device.free_bytes(), total - 3 * this->unit_);
    this->MapRw(*range, 0, handle);
  }
  // The mapping holds the memory when nobody else does.
  EXPECT_EQ(device.free_bytes(), total - 3 * this->unit_);
  ASSERT_TRUE(device.Unmap(*range, 0).ok());
  EXPECT_EQ(device.free_bytes(), total);
  const auto more = device.Create(total + this->unit_);
  EXPECT_EQ(more.status().code(), Code::kNoMemory);
  EXPECT_NE(more.status().message().find(std::to_string(total)), std::string::npos)
      << "the message names the numbers: " << more.status().message();
  EXPECT_EQ(device.free_bytes(), total);
}

// Holes of one unit: a handle of several must be made of pieces, in its own order, and no
// byte may be behind two handles.
TYPED_TEST_P(DeviceConformance, FragmentedMemoryIsStillMemory) {
  std::vector<HandlePtr> handles;
  for (uint64_t i = 0; i < TestFixture::kUnits; ++i) handles.push_back(this->Create(1));
  for (uint64_t i = 0; i < TestFixture::kUnits; i += 2) handles[i].reset();
  const HandlePtr scattered = this->Create(TestFixture::kUnits / 2);
  EXPECT_EQ(this->device_->free_bytes(), 0U);
  auto range = this->Reserve(2 * TestFixture::kUnits);
  this->MapRw(*range, 0, scattered);
  for (uint64_t i = 0; i < TestFixture::kUnits / 2; ++i) {
    this->Fill(*range, i, 1, static_cast<int>(i) + 1);
  }
  for (uint64_t i = 1; i < TestFixture::kUnits; i += 2) {
    this->MapRw(*range, TestFixture::kUnits + i, handles[i]);
    this->Fill(*range, TestFixture::kUnits + i, 1, 0xee);
  }
  for (uint64_t i = 0; i < TestFixture::kUnits / 2; ++i) {
    this->ExpectFilled(*range, i, 1, static_cast<int>(i) + 1);
  }
}

TYPED_TEST_P(DeviceConformance, AnImporterSeesTheBytesInOrderAndCannotWrite) {
  // Scattered on purpose: the order of the extents is what carries the meaning.
  HandlePtr hole = this->Create(1);
  const HandlePtr between = this->Create(1);
  HandlePtr rest = this->Create(TestFixture::kUnits - 2);
  hole.reset();
  rest.reset();
  const HandlePtr handle = this->Create(TestFixture::kUnits - 1);
  auto mine = this->Reserve(TestFixture::kUnits);
  this->MapRw(*mine, 0, handle);
  for (uint64_t i = 0; i < TestFixture::kUnits - 1; ++i) {
    this->Fill(*mine, i, 1, static_cast<int>(i) + 1);
  }
  const auto exported = this->device_->ExportHandle(handle);
  ASSERT_TRUE(exported.ok()) << exported.status().message();
  auto other = TypeParam::Importer();
  const auto imported = other->Import(exported->fd, exported->extents);
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  EXPECT_EQ((*imported)->bytes(), handle->bytes());
  auto theirs = other->Reserve(handle->bytes());
  ASSERT_TRUE(theirs.ok());
  ASSERT_TRUE(other->Map(**theirs, 0, *imported).ok());
  EXPECT_FALSE(other->SetAccess(**theirs, 0, handle->bytes(), Access::kReadWrite).ok());
  ASSERT_TRUE(other->SetAccess(**theirs, 0, handle->bytes(), Access::kRead).ok());
  for (uint64_t i = 0; i < TestFixture::kUnits - 1; ++i) {
    this->ExpectFilled(**theirs, i, 1, static_cast<int>(i) + 1);
  }
}

TYPED_TEST_P(DeviceConformance, ImportRefusesWhatIsNoWholeUnit) {
  const auto exported = this->device_->ExportHandle(this->Create(1));
  ASSERT_TRUE(exported.ok());
  auto other = TypeParam::Importer();
  for (const Extent& bad : {Extent{1, this->unit_}, Extent{0, this->unit_ / 2}, Extent{0, 0}}) {
    EXPECT_EQ(other->Import(exported->fd, std::span(&bad, 1)).status().code(), Code::kInvalid);
  }
}

REGISTER_TYPED_TEST_SUITE_P(DeviceConformance, BytesBelongToTheHandleNotToTheAddress,
                            OneHandleAtTwoAddressesIsOneMemory, NoMappingOverAMapping,
                            RefusesWhatIsNoWholeUnitOrOutside, UnmapTakesWhatMapGave,
                            MemoryIsCountedAndComesBack, FragmentedMemoryIsStillMemory,
                            AnImporterSeesTheBytesInOrderAndCannotWrite,
                            ImportRefusesWhatIsNoWholeUnit);

}  // namespace tangram::device
