// Requirements of every device. A backend's test instantiates the suite with a type that has
// `kUnit`, `kBytes` (false: only sizes), `kReadOnlyExports` (receivers of its descriptors cannot
// write with them; false, with the reason), `static std::unique_ptr<Device> Make(uint64_t bytes)`
// (a device with this much memory) and `static std::unique_ptr<Device> Importer()` (that of another
// process, without memory).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "agent/device/device.h"
#include "agent/device/hash.h"

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
  SpacePtr Reserve(Device& device, uint64_t units) {
    auto space = device.Reserve(units * unit_);
    EXPECT_TRUE(space.ok()) << space.status().message();
    return std::move(space).value();
  }
  SpacePtr Reserve(uint64_t units) { return Reserve(*device_, units); }
  BlockPtr Create(uint64_t units) {
    auto block = device_->Create(units * unit_);
    EXPECT_TRUE(block.ok()) << block.status().message();
    return std::move(block).value();
  }
  Placement Whole(uint64_t unit, const BlockPtr& block) const {
    return {unit * unit_, block, {0, block->bytes()}};
  }
  Mapping Map(const SpacePtr& space, uint64_t unit, const BlockPtr& block) {
    const Placement placement = Whole(unit, block);
    auto mapped = device_->Map(space, {&placement, 1}, Access::kReadWrite);
    EXPECT_TRUE(mapped.ok()) << mapped.status().message();
    return std::move(mapped->front());
  }
  Code MapCode(const SpacePtr& space, const Placement& placement) {
    return device_->Map(space, {&placement, 1}, Access::kReadWrite).status().code();
  }
  Memory At(Device& device, const SpacePtr& space, uint64_t unit, uint64_t units) const {
    return {&device, space->address() + unit * unit_, units * unit_};
  }
  // By copies alone: the CPU does not reach every device's memory.
  void Write(const Memory& to, std::vector<std::byte> bytes) {
    const CopyOp op{to, Memory::Own(bytes)};
    EXPECT_TRUE(to.device->Copy({&op, 1}).Wait().ok());
  }
  std::vector<std::byte> Read(const Memory& from) {
    std::vector<std::byte> bytes(from.bytes);
    const CopyOp op{Memory::Own(bytes), from};
    EXPECT_TRUE(from.device->Copy({&op, 1}).Wait().ok());
    return bytes;
  }
  void Fill(const SpacePtr& space, uint64_t unit, uint64_t units, int value) {
    Write(At(*device_, space, unit, units),
          std::vector<std::byte>(units * unit_, std::byte(value)));
  }
  void ExpectFilled(Device& device, const SpacePtr& space, uint64_t unit, uint64_t units,
                    int value) {
    const std::vector<std::byte> bytes = Read(At(device, space, unit, units));
    if (Backend::kBytes) {
      // Not EXPECT_EQ: it would print all of the megabytes.
      EXPECT_TRUE(bytes == std::vector<std::byte>(bytes.size(), std::byte(value)))
          << "units from " << unit << " on are not all " << value;
    }
  }
  void ExpectFilled(const SpacePtr& space, uint64_t unit, uint64_t units, int value) {
    ExpectFilled(*device_, space, unit, units, value);
  }

  // The placements by which an importer maps an export, from the start of a space on.
  static std::vector<Placement> Imported(Device* importer, const Export& exported) {
    std::vector<Placement> out;
    uint64_t at = 0;
    for (const Extent& extent : exported.extents) {
      EXPECT_LT(extent.descriptor, exported.descriptors.size());
      auto block = importer->Import(exported.descriptors[extent.descriptor]->get(), {&extent, 1});
      EXPECT_TRUE(block.ok()) << block.status().message();
      out.push_back({at, std::move(block).value(), {0, extent.length}});
      at += extent.length;
    }
    return out;
  }

  std::unique_ptr<Device> device_;
  uint64_t unit_ = 0;
};

TYPED_TEST_SUITE_P(DeviceConformance);

TYPED_TEST_P(DeviceConformance, KeepsBytesOfBlockWhenRemapped) {
  const SpacePtr space = this->Reserve(8);
  const BlockPtr a = this->Create(2);
  Mapping first = this->Map(space, 0, a);
  const Mapping other = this->Map(space, 2, this->Create(1));
  this->Fill(space, 0, 2, 0x5a);
  this->Fill(space, 2, 1, 0x33);
  first = Mapping();
  const Mapping moved = this->Map(space, 5, a);
  this->ExpectFilled(space, 5, 2, 0x5a);
  this->ExpectFilled(space, 2, 1, 0x33);
}

TYPED_TEST_P(DeviceConformance, SharesMemoryWhenBlockIsMappedTwice) {
  const SpacePtr space = this->Reserve(2);
  const BlockPtr a = this->Create(1);
  const Mapping one = this->Map(space, 0, a), two = this->Map(space, 1, a);
  this->Fill(space, 0, 1, 7);
  this->ExpectFilled(space, 1, 1, 7);
}

TYPED_TEST_P(DeviceConformance, RejectsOverlappingMapping) {
  const SpacePtr space = this->Reserve(4);
  const BlockPtr one = this->Create(1), two = this->Create(2);
  const Mapping middle = this->Map(space, 1, two);
  for (const uint64_t unit : {1U, 2U}) {
    EXPECT_EQ(this->MapCode(space, this->Whole(unit, one)), Code::kInvalid);
  }
  EXPECT_EQ(this->MapCode(space, this->Whole(0, two)), Code::kInvalid);
  // The rejected calls changed nothing, and there is room next to the mapping.
  this->Fill(space, 1, 2, 9);
  this->ExpectFilled(space, 1, 2, 9);
  const Mapping before = this->Map(space, 0, one), after = this->Map(space, 3, this->Create(1));
}

TYPED_TEST_P(DeviceConformance, MapsWholeListOrNothing) {
  const SpacePtr space = this->Reserve(8);
  const BlockPtr a = this->Create(1), b = this->Create(2);
  const Mapping there = this->Map(space, 6, this->Create(1));
  const std::vector<Placement> clash{this->Whole(0, a), this->Whole(2, b), this->Whole(6, a)};
  EXPECT_EQ(this->device_->Map(space, clash, Access::kReadWrite).status().code(), Code::kInvalid);
  const std::vector<Placement> good{this->Whole(1, b), this->Whole(0, a), this->Whole(3, a)};
  auto mapped = this->device_->Map(space, good, Access::kReadWrite);
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  ASSERT_EQ(mapped->size(), 3U);
  for (size_t i = 0; i < good.size(); ++i) {
    EXPECT_EQ((*mapped)[i].at(), good[i].at);
    EXPECT_EQ((*mapped)[i].block(), good[i].block);
  }
  this->Fill(space, 0, 3, 4);
  this->ExpectFilled(space, 3, 1, 4);
}

TYPED_TEST_P(DeviceConformance, RejectsPartialUnitsAndOutOfRangePlacements) {
  const SpacePtr space = this->Reserve(2);
  const BlockPtr one = this->Create(1), two = this->Create(2);
  const uint64_t unit = this->unit_;
  EXPECT_EQ(this->MapCode(space, this->Whole(1, two)), Code::kInvalid);
  EXPECT_EQ(this->MapCode(space, {unit / 2, one, {0, unit}}), Code::kInvalid);
  EXPECT_EQ(this->MapCode(space, this->Whole(64, two)), Code::kInvalid);
  EXPECT_EQ(this->MapCode(space, {UINT64_MAX - unit + 1, two, {0, 2 * unit}}), Code::kInvalid);
  EXPECT_EQ(this->MapCode(space, {0, one, {0, 0}}), Code::kInvalid);
  EXPECT_EQ(this->MapCode(space, {0, one, {0, 2 * unit}}), Code::kInvalid);
  EXPECT_EQ(this->MapCode(space, {0, two, {unit, 2 * unit}}), Code::kInvalid);
  EXPECT_EQ(this->MapCode(space, {0, two, {unit / 2, unit}}), Code::kInvalid);
  EXPECT_EQ(this->MapCode(space, {0, nullptr, {0, unit}}), Code::kInvalid);
  EXPECT_EQ(this->device_->Create(0).status().code(), Code::kInvalid);
  EXPECT_EQ(this->device_->Create(unit + 1).status().code(), Code::kInvalid);
}

TYPED_TEST_P(DeviceConformance, MapsSliceOfBlock) {
  const SpacePtr space = this->Reserve(6);
  const BlockPtr block = this->Create(3);
  const Mapping whole = this->Map(space, 0, block);
  for (int i = 0; i < 3; ++i) this->Fill(space, static_cast<uint64_t>(i), 1, i + 1);
  const Placement tail{4 * this->unit_, block, {this->unit_, 2 * this->unit_}};
  auto mapped = this->device_->Map(space, {&tail, 1}, Access::kReadWrite);
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  this->ExpectFilled(space, 4, 1, 2);
  this->ExpectFilled(space, 5, 1, 3);
}

TYPED_TEST_P(DeviceConformance, TracksFreeBytesAndRejectsOverallocation) {
  Device& device = *this->device_;
  const uint64_t total = device.total_bytes();
  EXPECT_EQ(total, TestFixture::kUnits * this->unit_);
  EXPECT_EQ(device.free_bytes(), total);
  const SpacePtr space = this->Reserve(4);
  {
    BlockPtr block = this->Create(3);
    EXPECT_EQ(device.free_bytes(), total - 3 * this->unit_);
    const Mapping mapping = this->Map(space, 0, block);
    block.reset();
    EXPECT_EQ(device.free_bytes(), total - 3 * this->unit_) << "the mapping holds the memory";
  }
  EXPECT_EQ(device.free_bytes(), total);
  const auto more = device.Create(total + this->unit_);
  EXPECT_EQ(more.status().code(), Code::kNoMemory);
  EXPECT_NE(more.status().message().find(std::to_string(total)), std::string::npos)
      << "the message names the numbers: " << more.status().message();
  EXPECT_EQ(device.free_bytes(), total);
}

TYPED_TEST_P(DeviceConformance, ReleasesOnlyGivenMappings) {
  const SpacePtr space = this->Reserve(6);
  std::vector<Mapping> gone;
  gone.push_back(this->Map(space, 4, this->Create(1)));
  gone.push_back(this->Map(space, 0, this->Create(2)));
  gone.push_back(this->Map(space, 2, this->Create(1)));
  const Mapping stays = this->Map(space, 3, this->Create(1));
  this->Fill(space, 3, 1, 5);
  this->device_->Release(std::move(gone), Event::Finished(OkStatus()));
  EXPECT_EQ(this->device_->free_bytes(), (TestFixture::kUnits - 1) * this->unit_);
  this->ExpectFilled(space, 3, 1, 5);
  const Mapping again = this->Map(space, 0, this->Create(3)),
                last = this->Map(space, 4, this->Create(2));
}

// Holes of one unit: a larger block must consist of several extents, in its own order, and no byte
// may be behind two blocks.
TYPED_TEST_P(DeviceConformance, CreatesBlockFromFragmentedMemory) {
  std::vector<BlockPtr> blocks;
  for (uint64_t i = 0; i < TestFixture::kUnits; ++i) blocks.push_back(this->Create(1));
  for (uint64_t i = 0; i < TestFixture::kUnits; i += 2) blocks[i].reset();
  const BlockPtr scattered = this->Create(TestFixture::kUnits / 2);
  EXPECT_EQ(this->device_->free_bytes(), 0U);
  const SpacePtr space = this->Reserve(2 * TestFixture::kUnits);
  std::vector<Mapping> mapped;
  mapped.push_back(this->Map(space, 0, scattered));
  for (uint64_t i = 0; i < TestFixture::kUnits / 2; ++i) {
    this->Fill(space, i, 1, static_cast<int>(i) + 1);
  }
  for (uint64_t i = 1; i < TestFixture::kUnits; i += 2) {
    mapped.push_back(this->Map(space, TestFixture::kUnits + i, blocks[i]));
    this->Fill(space, TestFixture::kUnits + i, 1, 0xee);
  }
  for (uint64_t i = 0; i < TestFixture::kUnits / 2; ++i) {
    this->ExpectFilled(space, i, 1, static_cast<int>(i) + 1);
  }
}

TYPED_TEST_P(DeviceConformance, ImporterReadsBytesInOrder) {
  // Scattered on purpose: the order of the extents matters.
  BlockPtr hole = this->Create(1);
  const BlockPtr between = this->Create(1);
  BlockPtr rest = this->Create(TestFixture::kUnits - 2);
  hole.reset();
  rest.reset();
  const BlockPtr block = this->Create(TestFixture::kUnits - 1);
  const SpacePtr mine = this->Reserve(TestFixture::kUnits);
  const Mapping mapping = this->Map(mine, 0, block);
  for (uint64_t i = 0; i < TestFixture::kUnits - 1; ++i) {
    this->Fill(mine, i, 1, static_cast<int>(i) + 1);
  }
  const auto exported = this->device_->ExportOf(block);
  ASSERT_TRUE(exported.ok()) << exported.status().message();
  auto other = TypeParam::Importer();
  const std::vector<Placement> imported = this->Imported(other.get(), *exported);
  EXPECT_EQ(imported.back().at + imported.back().slice.bytes, block->bytes());
  const SpacePtr theirs = this->Reserve(*other, TestFixture::kUnits - 1);
  if (TypeParam::kReadOnlyExports) {
    EXPECT_FALSE(other->Map(theirs, imported, Access::kReadWrite).ok());
  }
  auto mapped = other->Map(theirs, imported, Access::kRead);
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  for (uint64_t i = 0; i < TestFixture::kUnits - 1; ++i) {
    this->ExpectFilled(*other, theirs, i, 1, static_cast<int>(i) + 1);
  }
}

// An engine maps neighbouring bytes together and unmaps some of them later. A device with one
// descriptor for all memory reports one extent, which is cut; another device reports an extent per
// unit.
TYPED_TEST_P(DeviceConformance, SplitsImportedMapping) {
  const BlockPtr block = this->Create(3);
  const auto exported = this->device_->ExportOf(block);
  ASSERT_TRUE(exported.ok());
  auto other = TypeParam::Importer();
  const std::vector<Placement> imported = this->Imported(other.get(), *exported);
  const SpacePtr space = this->Reserve(*other, 3);
  auto mapped = other->Map(space, imported, Access::kRead);
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  std::vector<Mapping> units;  // one mapping per unit
  for (Mapping& mapping : *mapped) {
    while (mapping.bytes() > this->unit_) {
      Mapping rest = mapping.Split(this->unit_);
      EXPECT_EQ(rest.at(), mapping.at() + this->unit_);
      EXPECT_EQ(rest.slice().offset, mapping.slice().offset + this->unit_);
      units.push_back(std::move(mapping));
      mapping = std::move(rest);
    }
    units.push_back(std::move(mapping));
  }
  ASSERT_EQ(units.size(), 3U);
  const auto map = [&](uint64_t unit) {
    const Mapping& was = units[unit];
    const Placement again{unit * this->unit_, was.block(), was.slice()};
    return other->Map(space, {&again, 1}, Access::kRead);
  };
  const Placement middle{this->unit_, units[1].block(), units[1].slice()};
  units[1] = Mapping();
  EXPECT_TRUE(other->Map(space, {&middle, 1}, Access::kRead).ok());
  EXPECT_EQ(map(0).status().code(), Code::kInvalid) << "the first unit is still mapped";
  EXPECT_EQ(map(2).status().code(), Code::kInvalid) << "so is the last";
  units.clear();
  EXPECT_TRUE(other->Map(space, imported, Access::kRead).ok());
}

TYPED_TEST_P(DeviceConformance, ImportRejectsPartialUnits) {
  const auto exported = this->device_->ExportOf(this->Create(1));
  ASSERT_TRUE(exported.ok());
  const int fd = exported->descriptors.at(0)->get();
  auto other = TypeParam::Importer();
  for (const Extent& bad : {Extent{1, this->unit_}, Extent{0, this->unit_ / 2}, Extent{0, 0}}) {
    EXPECT_EQ(other->Import(fd, std::span(&bad, 1)).status().code(), Code::kInvalid);
  }
}

TYPED_TEST_P(DeviceConformance, CopiesAndHashesInBatches) {
  const SpacePtr space = this->Reserve(4);
  const Mapping mapping = this->Map(space, 0, this->Create(4));
  this->Fill(space, 0, 1, 1);
  this->Fill(space, 1, 1, 2);
  uint64_t copied[2] = {}, hashed[2] = {};
  Device& device = *this->device_;
  const std::vector<CopyOp> copies{
      {this->At(device, space, 2, 1), this->At(device, space, 1, 1), &copied[0]},
      {this->At(device, space, 3, 1), this->At(device, space, 0, 1), &copied[1]}};
  const Event event = device.Copy(copies);
  ASSERT_TRUE(event.Wait().ok());
  EXPECT_TRUE(event.Done());
  this->ExpectFilled(space, 2, 1, 2);
  this->ExpectFilled(space, 3, 1, 1);
  const std::vector<HashOp> hashes{{this->At(device, space, 1, 1), &hashed[0]},
                                   {this->At(device, space, 0, 1), &hashed[1]}};
  ASSERT_TRUE(device.Hash(hashes).Wait().ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(copied[i], hashed[i]);
    EXPECT_NE(hashed[i], 0U);
    if (TypeParam::kBytes) {
      EXPECT_EQ(hashed[i], HashOf(std::vector<std::byte>(this->unit_, std::byte(2 - i))));
    }
  }
  const CopyOp uneven{this->At(device, space, 0, 1), this->At(device, space, 1, 2)};
  EXPECT_EQ(device.Copy({&uneven, 1}).Wait().code(), Code::kInvalid);
}

// Two adjacent units, of a plane of one line and one of two: in the slab the lines of both
// alternate.
TYPED_TEST_P(DeviceConformance, CopiesAndHashesSlabUnitsInOrder) {
  const uint64_t quarter = this->unit_ / 4;
  const Shape shape{{{1, 2 * quarter}, {2, quarter}}, 2}, alone{shape.planes, 1};
  const SpacePtr space = this->Reserve(3);
  const Mapping mapping = this->Map(space, 0, this->Create(3));
  Device& device = *this->device_;
  Memory slab = this->At(device, space, 0, 2), second = this->At(device, space, 2, 1);
  const Memory whole = slab;
  std::vector<std::byte> bytes(whole.bytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i / quarter);
  this->Write(whole, bytes);
  // A quarter of a unit is one line.
  const auto expect = [&](const Memory& memory, const std::vector<int>& lines) {
    const std::vector<std::byte> is = this->Read(memory);
    for (size_t i = 0; TypeParam::kBytes && i < is.size(); ++i) {
      ASSERT_EQ(is[i], std::byte(lines[i / quarter])) << i;
    }
  };
  slab.shape = &shape;
  uint64_t copied = 0, hashed = 0;
  const CopyOp out{second, slab.Part(this->unit_, this->unit_), &copied};
  ASSERT_TRUE(device.Copy({&out, 1}).Wait().ok());
  const HashOp hash{slab.Part(this->unit_, this->unit_), &hashed};
  ASSERT_TRUE(device.Hash({&hash, 1}).Wait().ok());
  EXPECT_EQ(copied, hashed);
  expect(second, {2, 3, 5, 7});
  if (TypeParam::kBytes) {
    EXPECT_EQ(hashed, HashOf(this->Read(second)));
  }
  second.shape = &alone;  // a slab of one unit has plain order
  const CopyOp back{slab.Part(0, this->unit_), second};
  ASSERT_TRUE(device.Copy({&back, 1}).Wait().ok());
  expect(whole, {2, 3, 2, 3, 5, 5, 7, 7});
  const Shape other{{{1, this->unit_}}, 1};
  Memory wrong = second;
  wrong.shape = &other;
  if (TypeParam::kBytes) {
    const CopyOp bad{slab.Part(0, this->unit_), wrong};
    EXPECT_EQ(device.Copy({&bad, 1}).Wait().code(), Code::kInvalid);
  }
}

TYPED_TEST_P(DeviceConformance, CopiesThroughStagingBufferOutlivingDevice) {
  const SpacePtr space = this->Reserve(1);
  const Mapping mapping = this->Map(space, 0, this->Create(1));
  const auto made = this->device_->Staging(2 * this->unit_);
  ASSERT_TRUE(made.ok()) << made.status().message();
  std::byte* const staged = made->get();
  std::fill_n(staged, this->unit_, std::byte(7));
  const Memory there = this->At(*this->device_, space, 0, 1);
  for (const CopyOp& op : {CopyOp{there, Memory::Own({staged, this->unit_})},
                           CopyOp{Memory::Own({staged + this->unit_, this->unit_}), there}}) {
    ASSERT_TRUE(this->device_->Copy({&op, 1}).Wait().ok());
  }
  if (TypeParam::kBytes) EXPECT_EQ(staged[2 * this->unit_ - 1], std::byte(7));
  this->device_.reset();
  EXPECT_EQ(staged[0], std::byte(7));
}

TYPED_TEST_P(DeviceConformance, DestroysDeviceBeforeItsMappings) {
  const SpacePtr space = this->Reserve(2);
  const Mapping mapping = this->Map(space, 0, this->Create(2));
  this->device_.reset();
}

REGISTER_TYPED_TEST_SUITE_P(
    DeviceConformance, KeepsBytesOfBlockWhenRemapped, SharesMemoryWhenBlockIsMappedTwice,
    RejectsOverlappingMapping, MapsWholeListOrNothing, RejectsPartialUnitsAndOutOfRangePlacements,
    MapsSliceOfBlock, TracksFreeBytesAndRejectsOverallocation, ReleasesOnlyGivenMappings,
    CreatesBlockFromFragmentedMemory, ImporterReadsBytesInOrder, SplitsImportedMapping,
    ImportRejectsPartialUnits, CopiesAndHashesInBatches, CopiesAndHashesSlabUnitsInOrder,
    CopiesThroughStagingBufferOutlivingDevice, DestroysDeviceBeforeItsMappings);

}  // namespace tangram::device
