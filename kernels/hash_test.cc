// Hashes by many threads equal the library's, for every length and alignment.
#include "kernels/hash.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/testing/launch.h"

namespace tangram::kernels {
namespace {

using testing::AddressOf;
using testing::Order;

constexpr size_t kAround = 32;  // bytes before and after each range

uint64_t Expected(const std::byte* bytes, size_t size) {
  return std::max<uint64_t>(XXH3_64bits(bytes, size), 1);
}

// Ranges of random bytes at different alignments, hashed or copied in one launch.
class Ranges {
 public:
  explicit Ranges(uint32_t seed) : random_(seed) {}

  // `from` and `to`: bytes after a multiple of 16.
  void Add(size_t bytes, size_t from, size_t to) {
    Range range{std::vector<std::byte>(bytes + 2 * kAround), {}, 0, 0, bytes};
    for (std::byte& byte : range.from) byte = std::byte(random_());
    range.to.assign(range.from.size(), std::byte(0xcd));
    range.from_at = Aligned(range.from) + from;
    range.to_at = Aligned(range.to) + to;
    ranges_.push_back(std::move(range));
  }

  // Launches `sums`, then hash_chain, and compares all hashes and, after copy_hash, all bytes.
  void Check(std::string_view sums, uint32_t most_blocks, Order order = Order::kForwards) {
    const bool copies = sums == "copy_hash";
    std::vector<uint64_t> hashes(ranges_.size(), 0);
    std::vector<HashRange> list;
    for (size_t i = 0; i < ranges_.size(); ++i) {
      Range& range = ranges_[i];
      list.push_back({AddressOf(range.from) + range.from_at, range.bytes,
                      copies ? AddressOf(range.to) + range.to_at : 0, AddressOf(hashes) + i * 8,
                      0});
    }
    const uint64_t units = NumberRanges(list);
    std::vector<Word16> scratch(HashScratchBytes(units, list.size()) / sizeof(Word16),
                                Word16{7, 9});
    const HashParameters parameters{AddressOf(list), list.size(), units, AddressOf(scratch)};
    testing::Run(sums, HashSumsLaunch(parameters, most_blocks), parameters, order);
    testing::Run("hash_chain", HashChainLaunch(parameters, most_blocks), parameters, order);
    for (size_t i = 0; i < ranges_.size(); ++i) {
      const Range& range = ranges_[i];
      ASSERT_EQ(hashes[i], Expected(range.from.data() + range.from_at, range.bytes))
          << range.bytes << " bytes, number " << i << " of " << ranges_.size();
      if (!copies) continue;
      std::vector<std::byte> expected(range.to.size(), std::byte(0xcd));
      std::copy_n(range.from.data() + range.from_at, range.bytes, expected.data() + range.to_at);
      ASSERT_EQ(range.to, expected) << range.bytes << " bytes, number " << i;
    }
  }

 private:
  struct Range {
    std::vector<std::byte> from, to;
    size_t from_at, to_at, bytes;
  };
  static size_t Aligned(const std::vector<std::byte>& bytes) {
    return 16 - reinterpret_cast<uintptr_t>(bytes.data()) % 16;
  }

  std::mt19937 random_;
  std::vector<Range> ranges_;
};

TEST(Hash, MatchesXxh3ForEveryLengthWithAndWithoutCopy) {
  for (const size_t from : {0, 1}) {
    Ranges ranges(static_cast<uint32_t>(from));
    for (size_t bytes = 0; bytes <= 5000; ++bytes) ranges.Add(bytes, from * (bytes % 16), 0);
    ranges.Check("hash_sums", 40);
    ranges.Check("copy_hash", 40);
  }
}

TEST(Hash, MatchesXxh3ForEveryAlignment) {
  Ranges ranges(2);
  for (size_t from = 0; from < 16; ++from) {
    for (size_t to = 0; to < 16; ++to) ranges.Add(3000 + from * 16 + to, from, to);
  }
  ranges.Check("copy_hash", 3);
  ranges.Check("copy_hash", 2, Order::kBackwards);
}

// 8 bytes whose hash by the library is 0: for this length its last step can be inverted.
TEST(Hash, IsNeverZero) {
  const std::vector<uint64_t> bytes{0xff27d738e168d542};
  ASSERT_EQ(XXH3_64bits(bytes.data(), 8), 0u);
  std::vector<uint64_t> hash(1, 5);
  std::vector<HashRange> list{{AddressOf(bytes), 8, 0, AddressOf(hash), 0}};
  std::vector<Word16> scratch(10);
  const HashParameters parameters{AddressOf(list), 1, NumberRanges(list), AddressOf(scratch)};
  testing::Run("hash_sums", HashSumsLaunch(parameters, 1), parameters);
  testing::Run("hash_chain", HashChainLaunch(parameters, 1), parameters);
  EXPECT_EQ(hash[0], 1u);
}

TEST(Hash, MatchesXxh3ForLargeRanges) {
  std::mt19937 random(3);
  for (int turn = 0; turn < 6; ++turn) {
    Ranges ranges(random());
    for (int i = 0; i < 4; ++i)
      ranges.Add(random() % (1 << 20), turn % 2 == 0 ? 0 : random() % 16, 0);
    ranges.Add((1 << 20) + turn - 2, 0, turn % 3);
    ranges.Check("hash_sums", 1 + random() % 20);
    ranges.Check("copy_hash", 1 + random() % 20);
  }
}

TEST(Hash, HashesOneOrNoRangeWithAnyGrid) {
  for (const uint32_t blocks : {1, 2, 5, 64}) {
    Ranges one(5);
    one.Add(70'000, 0, 0);
    one.Check("hash_sums", blocks);
    Ranges none(6);
    none.Check("hash_sums", blocks);
  }
}

}  // namespace
}  // namespace tangram::kernels
