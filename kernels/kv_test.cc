// KV moves from ranks that have all heads of their requests to ranks that have some heads of all
// requests, and back. Latents go to every rank.
#include "kernels/kv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/testing/launch.h"

namespace tangram::kernels {
namespace {

using testing::AddressOf;
using testing::Order;

// A rank's KV of `heads` heads: the numbers, and their places.
struct Region {
  bool by_head = false;  // within a page: by head, else by position
  uint64_t layers = 0, blocks = 0, heads = 0, tokens = 0, row = 0;  // row: bytes of a row of K
  bool split = false;  // V of all layers after K of all layers, else in each page
  std::vector<std::byte> bytes = {};

  uint64_t part_bytes() const { return heads * tokens * row; }
  uint64_t part_stride() const { return split ? layers * blocks * part_bytes() : part_bytes(); }
  uint64_t block_stride() const { return (split ? 1 : 2) * part_bytes(); }
  uint64_t token_stride() const { return by_head ? row : heads * row; }
  uint64_t head_stride() const { return by_head ? tokens * row : row; }
  uint64_t Place(uint64_t layer, uint64_t block, uint64_t head, uint64_t part,
                 uint64_t token) const {
    return (layer * blocks + block) * block_stride() + part * part_stride() + head * head_stride() +
           token * token_stride();
  }
  void Resize() { bytes.assign(2 * layers * blocks * part_bytes(), std::byte(0)); }
};

// The byte of KV with these coordinates. Never 0.
std::byte Value(uint64_t layer, uint64_t block, uint64_t head, uint64_t part, uint64_t token,
                uint64_t at) {
  uint64_t h = layer;
  for (const uint64_t next : {block, head, part, token, at}) h = h * 1'000'003 + next;
  return std::byte(1 + h % 255);
}

// Calls each(layer, block, head, part, token, byte of the row).
template <typename Each>
void ForAll(const Region& region, Each&& each) {
  for (uint64_t l = 0; l < region.layers; ++l)
    for (uint64_t b = 0; b < region.blocks; ++b)
      for (uint64_t h = 0; h < region.heads; ++h)
        for (uint64_t p = 0; p < 2; ++p)
          for (uint64_t t = 0; t < region.tokens; ++t)
            for (uint64_t i = 0; i < region.row; ++i) each(l, b, h, p, t, i);
}

// All layers of a head of a block, with its first `tokens` positions.
KvMove MoveOf(const Region& to, uint64_t to_block, uint64_t to_head, const Region& from,
              uint64_t from_block, uint64_t from_head, uint64_t tokens) {
  return {AddressOf(to.bytes) + to.Place(0, to_block, to_head, 0, 0),
          to.blocks * to.block_stride(),
          to.part_stride(),
          to.token_stride(),
          AddressOf(from.bytes) + from.Place(0, from_block, from_head, 0, 0),
          from.blocks * from.block_stride(),
          from.part_stride(),
          from.token_stride(),
          from.layers,
          2,
          tokens,
          from.row,
          0};
}

void Launch(std::vector<KvMove> moves, uint32_t most_blocks) {
  const uint64_t units = NumberKvMoves(moves);
  const KvByHeadParameters parameters{AddressOf(moves), moves.size(), units};
  testing::Run("kv_by_head", KvByHeadLaunch(parameters, most_blocks), parameters,
               Order::kBackwards);
}

// Copies every block to each rank, which has a part of the heads; blocks get other numbers, and the
// last one has fewer positions. Then copies everything back.
void ThereAndBack(Region whole, uint64_t ranks, bool part_by_head, bool part_split) {
  whole.Resize();
  ForAll(whole, [&](auto l, auto b, auto h, auto p, auto t, auto i) {
    whole.bytes[whole.Place(l, b, h, p, t) + i] = Value(l, b, h, p, t, i);
  });
  const auto tokens_of = [&](uint64_t block) {
    return block + 1 == whole.blocks ? whole.tokens / 2 + 1 : whole.tokens;
  };
  const auto renamed = [&](uint64_t block) { return (block * 3 + 1) % whole.blocks; };
  Region back = whole;
  back.Resize();
  std::vector<KvMove> home;
  std::vector<Region> parts(ranks, whole);
  for (uint64_t r = 0; r < ranks; ++r) {
    Region& part = parts[r];
    part.by_head = part_by_head;
    part.split = part_split;
    part.heads = whole.heads / ranks;
    part.Resize();
    std::vector<KvMove> moves;
    for (uint64_t b = 0; b < whole.blocks; ++b) {
      for (uint64_t h = 0; h < part.heads; ++h) {
        const uint64_t head = r * part.heads + h;
        moves.push_back(MoveOf(part, renamed(b), h, whole, b, head, tokens_of(b)));
        home.push_back(MoveOf(back, b, head, part, renamed(b), h, tokens_of(b)));
      }
    }
    Launch(moves, 7);
    ForAll(part, [&](auto l, auto b, auto h, auto p, auto t, auto i) {
      uint64_t old = 0;
      while (renamed(old) != b) ++old;
      const std::byte expected =
          t < tokens_of(old) ? Value(l, old, r * part.heads + h, p, t, i) : std::byte(0);
      ASSERT_EQ(part.bytes[part.Place(l, b, h, p, t) + i], expected);
    });
  }
  Launch(home, 3);
  ForAll(back, [&](auto l, auto b, auto h, auto p, auto t, auto i) {
    const std::byte expected = t < tokens_of(b) ? Value(l, b, h, p, t, i) : std::byte(0);
    ASSERT_EQ(back.bytes[back.Place(l, b, h, p, t) + i], expected);
  });
}

TEST(KvByHead, SplitsBlocksByHeadAndRejoinsThem) {
  for (int formats = 0; formats < 16; ++formats) {
    const Region whole{(formats & 1) != 0, 3, 4, 4, 8, 32, (formats & 2) != 0};
    ThereAndBack(whole, 2, (formats & 4) != 0, (formats & 8) != 0);
  }
  ThereAndBack({false, 2, 5, 8, 16, 64, false}, 8, true, false);
  // Rows whose size is not a multiple of an access.
  ThereAndBack({false, 2, 4, 4, 5, 7, false}, 4, false, true);
  ThereAndBack({true, 2, 4, 4, 3, 12, true}, 2, false, false);
}

TEST(KvByHead, MovesKAndVRowsOfDifferentSizes) {
  constexpr uint64_t kKey = 48, kValue = 16, kTokens = 4, kPage = kTokens * (kKey + kValue);
  std::vector<std::byte> from(6 * kPage), to(6 * kPage, std::byte(9));
  std::mt19937 random(1);
  for (std::byte& byte : from) byte = std::byte(random());
  std::vector<std::byte> expected = to;
  std::copy_n(from.begin() + kPage, 2 * kPage, expected.begin() + 3 * kPage);
  const uint64_t at = AddressOf(to) + 3 * kPage, of = AddressOf(from) + kPage;
  Launch({{at, kPage, 0, kKey, of, kPage, 0, kKey, 2, 1, kTokens, kKey, 0},
          {at + kTokens * kKey, kPage, 0, kValue, of + kTokens * kKey, kPage, 0, kValue, 2, 1,
           kTokens, kValue, 0}},
         2);
  EXPECT_EQ(to, expected);
}

TEST(KvByHead, SupportsAnyGapBetweenPartsAndPages) {
  constexpr uint64_t kRow = 32, kTokens = 3, kPart = kRow * kTokens;
  for (const uint64_t part_gap : {0, 1, 4, 8, 16}) {
    for (const uint64_t page_gap : {0, 1, 4, 8, 16}) {
      const uint64_t parts = kPart + part_gap, pages = 2 * kPart + part_gap + page_gap;
      std::vector<std::byte> from(12 * kPart), to(4 * kPart, std::byte(0)), expected = to;
      for (size_t i = 0; i < from.size(); ++i) from[i] = std::byte(i % 251);
      for (uint64_t i = 0; i < 4; ++i) {
        const uint64_t place = i / 2 * pages + i % 2 * parts;
        std::copy_n(from.begin() + static_cast<int64_t>(place), kPart,
                    expected.begin() + static_cast<int64_t>(i * kPart));
      }
      Launch({{AddressOf(to), 2 * kPart, kPart, kRow, AddressOf(from), pages, parts, kRow, 2, 2,
               kTokens, kRow, 0}},
             1);
      ASSERT_EQ(to, expected) << part_gap << " " << page_gap;
    }
  }
}

// Blocks of a home, in different pages at every rank.
TEST(KvLatent, CopiesAllLatentsToEveryRank) {
  std::mt19937 random(2);
  for (const uint64_t row : {1152, 656, 36, 7}) {
    for (const uint64_t ranks : {1, 3, 8}) {
      constexpr uint64_t kTokens = 16, kBlocks = 5;
      const uint64_t page = kTokens * row;
      // Either side may begin at any address.
      const uint64_t from = ranks == 8 ? 1 : 0, to = ranks == 3 ? 4 : 0;
      std::vector<std::byte> home(from + kBlocks * page);
      for (std::byte& byte : home) byte = std::byte(random());
      std::vector<std::vector<std::byte>> at(ranks, std::vector<std::byte>(to + kBlocks * page)),
          expected = at;
      std::vector<LatentMove> moves;
      std::vector<uint64_t> targets;
      for (uint64_t b = 0; b < kBlocks; ++b) {
        const uint64_t tokens = b == 2 ? 5 : kTokens;
        moves.push_back({AddressOf(home) + from + b * page, tokens, 0});
        for (uint64_t r = 0; r < ranks; ++r) {
          const uint64_t place = to + (b + r) % kBlocks * page;
          targets.push_back(AddressOf(at[r]) + place);
          std::copy_n(home.begin() + static_cast<int64_t>(from + b * page), tokens * row,
                      expected[r].begin() + static_cast<int64_t>(place));
        }
      }
      KvLatentParameters parameters{
          AddressOf(moves), moves.size(), AddressOf(targets), ranks, row, row, row, 0, 0};
      NumberLatentMoves(moves, targets, &parameters);
      testing::Run("kv_latent", KvLatentLaunch(parameters, 4), parameters,
                   ranks == 3 ? Order::kBackwards : Order::kForwards);
      ASSERT_EQ(at, expected) << row << " bytes to " << ranks;
    }
  }
}

}  // namespace
}  // namespace tangram::kernels
