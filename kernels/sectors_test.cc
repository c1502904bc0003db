// Counts how well kernels coalesce, for the shapes of the largest moves.
#include "kernels/sectors.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/kernels.h"
#include "kernels/slab.h"
#include "kernels/testing/launch.h"

namespace tangram::kernels {
namespace {

using testing::AddressOf;

constexpr double kGoal = 0.9;  // share of transferred sectors that are full

// Memory that begins at a multiple of 256, as slabs and pages do.
class Slabs {
 public:
  explicit Slabs(uint64_t bytes) : bytes_(bytes + 256) {}
  uint64_t at() const { return (AddressOf(bytes_) + 255) / 256 * 256; }

 private:
  std::vector<std::byte> bytes_;
};

template <typename Parameters>
Traffics Count(std::string_view name, Launch launch, const Parameters& parameters) {
  return Find(name)->count(launch.blocks, launch.threads, &parameters);
}

// Threads of a warp that load from addresses by their numbers.
TEST(Sectors, AreCountedPerWarpRequest) {
  const Slabs slabs(64 << 10);
  const auto count = [&](uint32_t threads, uint64_t stride, uint64_t offset) {
    CountingMemory memory;
    for (uint32_t t = 0; t < threads; ++t) {
      memory.Begin({0, 1, t, threads});
      for (uint32_t r = 0; r < 2; ++r) {
        memory.Round();
        memory.Load<uint32_t>(slabs.at() + offset + t * stride);
        memory.Store<uint32_t>(slabs.at() + (32 << 10) + t * 4, 5);
      }
    }
    return memory.Total();
  };
  const Traffics dense = count(64, 4, 0);
  EXPECT_EQ(dense.loads.requests, 4u) << "two warps, two rounds";
  EXPECT_EQ(dense.loads.bytes, 4u * 128);
  EXPECT_EQ(dense.loads.sectors, 4u * 4);
  EXPECT_EQ(dense.loads.full, 4u * 4);
  EXPECT_EQ(dense.stores.sectors, 4u * 4);
  const Traffics shifted = count(32, 4, 16);
  EXPECT_EQ(shifted.loads.sectors, 2u * 5) << "cut at both ends";
  EXPECT_EQ(shifted.loads.full, 2u * 3);
  const Traffics sparse = count(32, 64, 0);
  EXPECT_EQ(sparse.loads.sectors, 2u * 32);
  EXPECT_EQ(sparse.loads.full, 0u);
  EXPECT_EQ(sparse.loads.bytes, 2u * 128);
  const Traffics one = count(32, 0, 0);
  EXPECT_EQ(one.loads.sectors, 2u);
  EXPECT_EQ(one.loads.bytes, 2u * 4) << "each byte once";
}

struct Expert {
  const char* name;
  uint64_t hidden, inner, granule_rows, element;
};

// One expert of this size, whole, from the shards of 8 ranks, all row-major: every matrix and, for
// FP8, the scales. It has fewer lines than the model, because all lines are alike.
Traffics Gathered(const Expert& expert, bool columns_alone, uint64_t* bytes) {
  const uint64_t granules = expert.inner / expert.granule_rows;
  const uint64_t lines = expert.hidden / 16;
  const uint64_t cut = expert.granule_rows * expert.element;
  std::vector<Section> sections{{lines, cut}};
  if (!columns_alone) {
    sections = {{1, cut * lines}, {1, cut * lines}, {lines, cut}};
    if (expert.element == 1) {
      const uint64_t blocks = (expert.hidden + 127) / 128;
      sections.insert(sections.end(), {{1, blocks * 4}, {1, blocks * 4}, {blocks, 4}});
    }
  }
  uint64_t granule_bytes = 0;
  for (const Section& section : sections) granule_bytes += section.lines * section.bytes;
  *bytes = granules * granule_bytes;
  const Slabs whole(*bytes), shards(granules * granule_bytes + 8 * 256);
  std::vector<CopyStrip> strips;
  uint64_t at = shards.at();
  for (uint64_t p = 0, first = 0; p < 8; ++p) {
    const uint64_t count = granules / 8 + (p < granules % 8 ? 1 : 0);
    AppendStrips({whole.at(), granules, true}, first, {at, count, true}, 0, count, sections,
                 &strips);
    first += count;
    at = (at + count * granule_bytes + 255) / 256 * 256;
  }
  const uint64_t units = NumberStrips(strips);
  const CopyStripsParameters parameters{AddressOf(strips), strips.size(), units, 0};
  return Count("copy_strips", CopyStripsLaunch(parameters, 16), parameters);
}

TEST(Sectors, AreFullForRowMajorShardsOf8Ranks) {
  for (const Expert& expert :
       {Expert{"Qwen3-235B", 4096, 1536, 64, 2}, Expert{"Qwen3-30B", 2048, 768, 32, 2},
        Expert{"Qwen3-235B FP8", 4096, 1536, 128, 1},
        Expert{"DeepSeek-V3 FP8", 7168, 2048, 128, 1}}) {
    for (const bool columns_alone : {true, false}) {
      uint64_t bytes = 0;
      const Traffics found = Gathered(expert, columns_alone, &bytes);
      EXPECT_GE(found.loads.full_share(), kGoal) << expert.name;
      EXPECT_GE(found.stores.full_share(), kGoal) << expert.name;
      EXPECT_EQ(found.loads.bytes, bytes);
      EXPECT_EQ(found.stores.bytes, bytes);
    }
  }
}

// Pages by position, as fused kernels have them, of all heads, become pages of one head each: BF16,
// 128 numbers per row.
TEST(Sectors, AreFullForKvByHead) {
  constexpr uint64_t kRow = 256, kTokens = 16, kHeads = 4, kLayers = 8;
  constexpr uint64_t kPart = kTokens * kHeads * kRow, kTarget = kTokens * kRow;
  const Slabs from(kLayers * 2 * kPart), to(kLayers * 2 * kTarget * kHeads);
  std::vector<KvMove> moves;
  for (uint64_t h = 0; h < kHeads; ++h) {
    moves.push_back({to.at() + h * kLayers * 2 * kTarget, 2 * kTarget, kTarget, kRow,
                     from.at() + h * kRow, 2 * kPart, kPart, kHeads * kRow, kLayers, 2, kTokens,
                     kRow, 0});
  }
  const uint64_t units = NumberKvMoves(moves);
  const KvByHeadParameters parameters{AddressOf(moves), moves.size(), units};
  const Traffics found = Count("kv_by_head", KvByHeadLaunch(parameters, 16), parameters);
  EXPECT_EQ(found.loads.bytes, kLayers * 2 * kPart);
  EXPECT_GE(found.loads.full_share(), kGoal);
  EXPECT_GE(found.stores.full_share(), kGoal);
}

TEST(Sectors, AreFullForHashedAndCopiedRanges) {
  const Slabs from(300'000), to(300'000), hash(8), scratch(HashScratchBytes(300, 1));
  std::vector<HashRange> list{{from.at(), 290'000, to.at(), hash.at(), 0}};
  const uint64_t units = NumberRanges(list);
  const HashParameters parameters{AddressOf(list), 1, units, scratch.at()};
  const Traffics found = Count("copy_hash", HashSumsLaunch(parameters, 16), parameters);
  EXPECT_EQ(found.loads.bytes, 290'000u);
  EXPECT_GE(found.loads.full_share(), 0.99);
  EXPECT_GE(found.stores.full_share(), 0.99);
  const Traffics chain = Count("hash_chain", HashChainLaunch(parameters, 16), parameters);
  EXPECT_GE(chain.loads.full_share(), kGoal);
}

}  // namespace
}  // namespace tangram::kernels
