#include "agent/device/runs.h"

#include <gtest/gtest.h>

#include <random>

#include "agent/device/device.h"
#include "agent/device/hash.h"

namespace tangram::device {
namespace {

// The offset of byte `at` of a unit in its slab, counted plane by plane, line by line.
uint64_t PlaceOf(const Shape& shape, uint64_t unit, uint64_t at) {
  uint64_t begin = 0;
  for (const Shape::Plane& plane : shape.planes) {
    const uint64_t mine = plane.lines * plane.bytes;
    if (at < mine) {
      const uint64_t line = at / plane.bytes;
      return begin + (line * shape.units + unit) * plane.bytes + at % plane.bytes;
    }
    at -= mine;
    begin += mine * shape.units;
  }
  ADD_FAILURE() << "outside";
  return 0;
}

std::vector<std::byte> Noise(uint64_t bytes, std::mt19937_64* random) {
  std::vector<std::byte> out(bytes);
  for (std::byte& b : out) b = std::byte((*random)());
  return out;
}

// Units of a slab in order, by the offsets above.
std::vector<std::byte> InOrder(const Memory& memory, const std::vector<std::byte>& slab) {
  std::vector<std::byte> out;
  const uint64_t unit = memory.shape->unit_bytes();
  for (uint64_t at = 0; at < memory.bytes; ++at) {
    out.push_back(slab[PlaceOf(*memory.shape, memory.unit + at / unit, at % unit)]);
  }
  return out;
}

struct Slab {
  Shape shape;
  std::vector<std::byte> bytes;
  // `count` units from `first` on.
  Memory Units(uint64_t first, uint64_t count) {
    Memory out = Memory::Own(bytes);
    out.shape = &shape;
    return out.Part(first * shape.unit_bytes(), count * shape.unit_bytes());
  }
};

Slab MakeSlab(std::vector<Shape::Plane> planes, uint64_t units, std::mt19937_64* random) {
  Slab out{{std::move(planes), units}, {}};
  out.bytes = Noise(units * out.shape.unit_bytes(), random);
  return out;
}

uint64_t Draw(std::mt19937_64* random, uint64_t least, uint64_t most) {
  return std::uniform_int_distribution<uint64_t>(least, most)(*random);
}

TEST(Runs, CopiesOnlyUnitBytesBetweenSlabsOfAnyWidth) {
  std::mt19937_64 random(1);
  for (int turn = 0; turn < 2000; ++turn) {
    std::vector<Shape::Plane> planes;
    for (uint64_t p = Draw(&random, 1, 5); p > 0; --p) {
      const uint64_t odd = Draw(&random, 1, 40), usual = uint64_t{16} << Draw(&random, 0, 4);
      planes.push_back({Draw(&random, 1, 9), turn % 2 == 0 ? usual : odd});
    }
    Slab from = MakeSlab(planes, Draw(&random, 1, 7), &random);
    Slab to = MakeSlab(planes, Draw(&random, 1, 7), &random);
    const uint64_t count = Draw(&random, 1, std::min(from.shape.units, to.shape.units));
    const Memory source = from.Units(Draw(&random, 0, from.shape.units - count), count);
    const Memory target = to.Units(Draw(&random, 0, to.shape.units - count), count);
    const std::vector<std::byte> truth = InOrder(source, from.bytes);
    ASSERT_EQ(HashStrips(source), HashOf(truth)) << turn;

    std::vector<std::byte> range(source.bytes);
    Gather(source, range);
    ASSERT_EQ(range, truth) << turn;

    std::vector<std::byte> expected = to.bytes;
    const uint64_t unit = to.shape.unit_bytes();
    for (uint64_t at = 0; at < truth.size(); ++at) {
      expected[PlaceOf(to.shape, target.unit + at / unit, at % unit)] = truth[at];
    }
    const std::vector<std::byte> before = to.bytes;
    uint64_t hash = 0;
    ASSERT_TRUE(CopyStrips(target, source, &hash));
    ASSERT_EQ(to.bytes, expected) << turn;
    ASSERT_EQ(hash, HashOf(truth)) << turn;
    ASSERT_TRUE(CopyStrips(Memory::Own(range), source, &hash));
    ASSERT_EQ(range, truth) << turn;
    ASSERT_EQ(hash, HashOf(truth)) << turn;
    to.bytes = before;
    ASSERT_TRUE(CopyStrips(target, Memory::Own(range)));
    ASSERT_EQ(to.bytes, expected) << turn;
  }
}

// Lines and units that are longer than a block, and blocks that end within a plane.
TEST(Runs, CopiesAndHashesLongOrManyLines) {
  std::mt19937_64 random(4);
  for (const auto& plane : std::vector<Shape::Plane>{
           {1, 200'001}, {3, 70'000}, {1000, 192}, {5000, 33}, {2, 64 << 10}, {1025, 64}}) {
    Slab from = MakeSlab({plane, {7, 16}}, 3, &random), to = MakeSlab({plane, {7, 16}}, 2, &random);
    const Memory source = from.Units(1, 2), target = to.Units(0, 2);
    const std::vector<std::byte> truth = InOrder(source, from.bytes);
    uint64_t hash = 0;
    ASSERT_TRUE(CopyStrips(target, source, &hash));
    EXPECT_EQ(InOrder(target, to.bytes), truth) << plane.lines;
    EXPECT_EQ(hash, HashOf(truth)) << plane.lines;
    EXPECT_EQ(HashStrips(target), HashOf(truth)) << plane.lines;
  }
}

TEST(Runs, RejectsUnitsOfDifferentPlanes) {
  std::mt19937_64 random(2);
  Slab one = MakeSlab({{2, 8}, {1, 16}}, 2, &random),
       other = MakeSlab({{1, 16}, {2, 8}}, 2, &random);
  EXPECT_FALSE(CopyStrips(one.Units(0, 1), other.Units(0, 1)));
}

TEST(Runs, PartSelectsUnits) {
  std::mt19937_64 random(3);
  Slab slab = MakeSlab({{3, 5}, {1, 7}}, 6, &random);
  const Memory some = slab.Units(1, 4).Part(2 * 22, 2 * 22);
  EXPECT_EQ(some.unit, 3u);
  EXPECT_EQ(InOrder(some, slab.bytes), InOrder(slab.Units(3, 2), slab.bytes));
  EXPECT_TRUE(View(some).empty());
}

}  // namespace
}  // namespace tangram::device
