// Moves in an engine's own format, compared with a copy of every single row.
#include "agent/kv/format.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace tangram::kv {
namespace {

using Rng = std::mt19937;

uint32_t Pick(Rng& rng, uint32_t low, uint32_t high) { return low + rng() % (high - low + 1); }

uint64_t SizeOf(Element element) {
  static const std::map<Element, uint64_t> sizes = {{Element::kF32, 4},
                                                    {Element::kF16, 2},
                                                    {Element::kBf16, 2},
                                                    {Element::kFp8E4m3, 1},
                                                    {Element::kFp8E5m2, 1}};
  return sizes.at(element);
}

// Properties that must be equal on two ranks.
struct Rows {
  uint32_t block_tokens = 0;
  Element element = Element::kF32;
  uint32_t key = 0, value = 0;
  bool whole = false;
};

// Strides for the dimensions in this order, the innermost first, with gaps between some.
Format Nested(Rng& rng, const Rows& rows, uint32_t layers, uint32_t blocks, uint32_t heads,
              bool gaps, uint64_t* region) {
  Format f;
  f.offset = gaps ? Pick(rng, 0, 3) * 8 : 0;
  f.layers = layers;
  f.blocks = blocks;
  f.heads = heads;
  f.block_tokens = rows.block_tokens;
  f.element = rows.element;
  f.key_width = rows.key;
  f.value_width = rows.value;
  const uint64_t size = SizeOf(rows.element);
  std::vector<std::string> order = {"head", "block", "layer"};
  uint64_t key = rows.key * size, value = rows.value * size;
  if (rows.whole) {
    key = f.whole_page_bytes = (key + value) * rows.block_tokens;
    value = 0;
  } else {
    order.insert(order.end(), {"token", "value"});
  }
  std::shuffle(order.begin(), order.end(), rng);
  for (const std::string& dimension : order) {
    const uint64_t gap = gaps && Pick(rng, 0, 2) == 0 ? Pick(rng, 1, 5) : 0;
    const uint64_t inner = std::max(key, value);
    const auto turns = [&](uint64_t count) {
      if (value > 0) value += (inner + gap) * (count - 1);
      key += (inner + gap) * (count - 1);
      return inner + gap;
    };
    if (dimension == "head") f.head_stride = turns(heads);
    if (dimension == "block") f.block_stride = turns(blocks);
    if (dimension == "layer") f.layer_stride = turns(layers);
    if (dimension == "token") f.token_stride = turns(rows.block_tokens);
    if (dimension == "value" && rows.value > 0) {
      f.value_offset = key + gap;
      key = key + gap + value;
      value = 0;
    }
  }
  *region = f.offset + key;
  return f;
}

using Bytes = std::vector<uint8_t>;

// Byte by byte, by the definition at the head of format.h.
void CopySlowly(const Format& from, const Bytes& source, const Format& to, const PageCopy& copy,
                Bytes* target) {
  const auto place = [](const Format& f, uint32_t page) {
    const uint32_t layer = page / (f.blocks * f.heads), block = page / f.heads % f.blocks;
    return f.offset + layer * f.layer_stride + block * f.block_stride +
           page % f.heads * f.head_stride;
  };
  for (uint32_t i = 0; i < copy.pages; ++i) {
    const uint64_t a = place(from, copy.source_page + i * copy.source_stride);
    const uint64_t b = place(to, copy.target_page + i * copy.target_stride);
    if (from.whole_page_bytes > 0 && copy.tokens > 0) {
      for (uint64_t at = 0; at < from.whole_page_bytes; ++at)
        target->at(b + at) = source.at(a + at);
    }
    if (from.whole_page_bytes > 0) continue;
    for (uint32_t n = 0; n < copy.tokens; ++n) {
      for (uint64_t at = 0; at < from.key_width * SizeOf(from.element); ++at) {
        target->at(b + n * to.token_stride + at) = source.at(a + n * from.token_stride + at);
      }
      for (uint64_t at = 0; at < from.value_width * SizeOf(from.element); ++at) {
        target->at(b + to.value_offset + n * to.token_stride + at) =
            source.at(a + from.value_offset + n * from.token_stride + at);
      }
    }
  }
}

std::vector<ByteMove> Told(const std::vector<Format>& sources, const Format& target,
                           const std::vector<PageCopy>& copies) {
  std::vector<ByteMove> out;
  const Status told = TellMoves([&](uint32_t rank) { return &sources.at(rank); }, target, copies,
                                [&](const ByteMove& move) {
                                  out.push_back(move);
                                  return OkStatus();
                                });
  EXPECT_TRUE(told.ok()) << told.message();
  return out;
}

// Blocks of some ranks into other blocks here: all heads and layers of each, as in plans.
std::vector<PageCopy> RandomCopies(Rng& rng, const std::vector<Format>& sources,
                                   const Format& target) {
  std::vector<uint32_t> free(target.blocks);
  std::iota(free.begin(), free.end(), 0);
  if (Pick(rng, 0, 1) == 0) std::shuffle(free.begin(), free.end(), rng);
  const uint32_t stride = target.blocks * target.heads;
  std::vector<PageCopy> out;
  uint32_t next = 0;
  for (const uint32_t block : free) {
    const uint32_t rank = Pick(rng, 0, static_cast<uint32_t>(sources.size()) - 1);
    const Format& from = sources[rank];
    const uint32_t taken =
        Pick(rng, 0, 1) == 0 ? next++ % from.blocks : Pick(rng, 0, from.blocks - 1);
    const uint32_t tokens =
        Pick(rng, 0, 2) == 0 ? Pick(rng, 0, from.block_tokens) : from.block_tokens;
    const uint32_t first = Pick(rng, 0, from.layers - 1);
    for (uint32_t head = 0; head < from.heads; ++head) {
      const auto from_page = static_cast<uint32_t>(from.page(first, taken, head));
      const auto to_page = static_cast<uint32_t>(target.page(first, block, head));
      out.push_back({rank, from_page, from.blocks * from.heads, to_page, stride,
                     from.layers - first, tokens});
    }
  }
  return out;
}

TEST(KvFormat, MovesExactRowsOfRandomFormats) {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    Rows alike;
    alike.block_tokens = Pick(rng, 1, 5);
    alike.element = static_cast<Element>(Pick(rng, 1, 5));
    alike.key = Pick(rng, 1, 3);
    alike.value = Pick(rng, 0, 2) == 0 ? Pick(rng, 0, 3) : alike.key;
    alike.whole = Pick(rng, 0, 5) == 0;
    const uint32_t layers = Pick(rng, 1, 3), heads = Pick(rng, 1, 3);
    const bool gaps = Pick(rng, 0, 1) == 0;
    std::vector<Format> sources;
    std::vector<Bytes> memory;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      uint64_t region = 0;
      sources.push_back(Nested(rng, alike, layers, Pick(rng, 1, 4), heads, gaps, &region));
      const Status valid = CheckFormat(sources.back(), region);
      ASSERT_TRUE(valid.ok()) << valid.message();
      EXPECT_FALSE(CheckFormat(sources.back(), region - 1).ok());
      Bytes& bytes = memory.emplace_back(region);
      for (uint8_t& b : bytes) b = static_cast<uint8_t>(rng());
    }
    uint64_t region = 0;
    const Format target = Nested(rng, alike, layers, Pick(rng, 1, 4), heads, gaps, &region);
    ASSERT_TRUE(CheckFormat(target, region).ok());
    const std::vector<PageCopy> copies = RandomCopies(rng, sources, target);
    Bytes wanted(region, 0xee), got = wanted;
    for (const PageCopy& copy : copies) {
      CopySlowly(sources[copy.source_rank], memory[copy.source_rank], target, copy, &wanted);
    }
    std::vector<bool> written(region);
    for (const ByteMove& move : Told(sources, target, copies)) {
      for (uint32_t i = 0; i < move.length; ++i) {
        ASSERT_FALSE(written.at(move.target + i)) << "byte " << move.target + i << " twice";
        written[move.target + i] = true;
        got[move.target + i] = memory[move.source_rank].at(move.source + i);
      }
    }
    ASSERT_EQ(got, wanted);
  }
}

// [layer][K, V][block][position][head][width]: NHD of many engines, with K and V separate.
Format ByPosition(uint32_t layers, uint32_t blocks, uint32_t heads) {
  Format f;
  f.layers = layers;
  f.blocks = blocks;
  f.heads = heads;
  f.block_tokens = 16;
  f.element = Element::kBf16;
  f.key_width = f.value_width = 64;
  f.head_stride = 128;
  f.token_stride = heads * f.head_stride;
  f.block_stride = 16 * f.token_stride;
  f.value_offset = blocks * f.block_stride;
  f.layer_stride = 2 * f.value_offset;
  return f;
}

// All heads and layers of block `from` of rank 0 into `to`.
std::vector<PageCopy> Block(const Format& f, uint32_t from, uint32_t to, uint32_t tokens) {
  std::vector<PageCopy> out;
  const uint32_t stride = f.blocks * f.heads;
  for (uint32_t head = 0; head < f.heads; ++head) {
    out.push_back({0, static_cast<uint32_t>(f.page(0, from, head)), stride,
                   static_cast<uint32_t>(f.page(0, to, head)), stride, f.layers, tokens});
  }
  return out;
}

TEST(KvFormat, MergesAdjacentRanges) {
  const Format f = ByPosition(3, 10, 8);
  ASSERT_TRUE(CheckFormat(f, uint64_t{3} * 10 * 8 * 16 * 2 * 128).ok());
  // A block is one run per layer of K and of V, whether full or partly filled.
  auto moves = Told({f}, f, Block(f, 4, 7, 16));
  ASSERT_EQ(moves.size(), 6u);
  EXPECT_EQ(moves[0], (ByteMove{0, 4 * f.block_stride, 7 * f.block_stride, 8 * 16 * 128}));
  moves = Told({f}, f, Block(f, 4, 7, 3));
  ASSERT_EQ(moves.size(), 6u);
  EXPECT_EQ(moves[5].source, 2 * f.layer_stride + f.value_offset + 4 * f.block_stride);
  EXPECT_EQ(moves[5].length, 8u * 3 * 128);
  // Blocks that are adjacent on both sides are one run, too.
  std::vector<PageCopy> copies = Block(f, 4, 7, 16);
  for (const PageCopy& copy : Block(f, 5, 8, 16)) copies.push_back(copy);
  moves = Told({f}, f, copies);
  ASSERT_EQ(moves.size(), 6u);
  EXPECT_EQ(moves[0].length, 2u * 8 * 16 * 128);
  // The other rank has another number of blocks: other strides of layers.
  const Format more = ByPosition(3, 12, 8);
  copies = Block(f, 4, 7, 16);
  for (PageCopy& copy : copies) {
    const uint32_t head = copy.target_page % 8;
    copy.target_page = static_cast<uint32_t>(more.page(0, 11, head));
    copy.target_stride = 12 * 8;
  }
  moves = Told({f}, more, copies);
  ASSERT_EQ(moves.size(), 6u);
  EXPECT_EQ(moves[2].source, f.layer_stride + 4 * f.block_stride);
  EXPECT_EQ(moves[2].target, more.layer_stride + 11 * more.block_stride);
}

// K of all layers, then V of all: still from the start to the end of the source.
TEST(KvFormat, OrdersMovesBySource) {
  Format f = ByPosition(3, 10, 8);
  f.layer_stride = 10 * f.block_stride;
  f.value_offset = 3 * f.layer_stride;
  ASSERT_TRUE(CheckFormat(f, 2 * f.value_offset).ok());
  const auto moves = Told({f}, f, Block(f, 4, 7, 16));
  ASSERT_EQ(moves.size(), 6u);
  for (size_t i = 1; i < moves.size(); ++i) EXPECT_GT(moves[i].source, moves[i - 1].source);
}

// More copies than are folded together; in falling order none are adjacent.
TEST(KvFormat, MergesManyAdjacentCopies) {
  const uint32_t pages = 10000;
  const Format f = PoolOf({1, 1, 16, 64}, Element::kF32, 2 * pages);
  std::vector<PageCopy> up, down;
  for (uint32_t i = 0; i < pages; ++i) {
    up.push_back({0, i, 1, pages + i, 1, 1, 16});
    down.push_back({0, pages - 1 - i, 1, pages + i, 1, 1, 16});
  }
  EXPECT_EQ(Told({f}, f, up), (std::vector<ByteMove>{{0, 0, pages * 1024, pages * 1024}}));
  const auto moves = Told({f}, f, down);
  ASSERT_EQ(moves.size(), pages);
  for (uint32_t i = 0; i < pages; ++i) {
    ASSERT_EQ(moves[i], (ByteMove{0, (pages - 1 - i) * 1024, (pages + i) * 1024, 1024}));
  }
}

TEST(KvFormat, MovesLatentsAndWholePages) {
  Format latent;  // [layer][block][position][width]
  latent.layers = 2;
  latent.blocks = 6;
  latent.block_tokens = 4;
  latent.element = Element::kBf16;
  latent.key_width = 576;
  latent.token_stride = 1152;
  latent.block_stride = 4 * 1152;
  latent.layer_stride = 6 * latent.block_stride;
  ASSERT_TRUE(CheckFormat(latent, 2 * latent.layer_stride).ok());
  auto moves = Told({latent}, latent, Block(latent, 1, 2, 3));
  ASSERT_EQ(moves.size(), 2u);
  EXPECT_EQ(moves[1], (ByteMove{0, latent.layer_stride + latent.block_stride,
                                latent.layer_stride + 2 * latent.block_stride, 3 * 1152}));
  // K and V packed for the kernel, a head of a block at a time.
  Format packed;
  packed.layers = 1;
  packed.blocks = 5;
  packed.heads = 2;
  packed.block_tokens = 32;
  packed.key_width = packed.value_width = 8;
  packed.whole_page_bytes = 2 * 32 * 8 * 4;
  packed.head_stride = packed.whole_page_bytes;
  packed.block_stride = 2 * packed.head_stride;
  ASSERT_TRUE(CheckFormat(packed, 5 * packed.block_stride).ok());
  moves = Told({packed}, packed, Block(packed, 0, 3, 1));
  ASSERT_EQ(moves.size(), 1u);
  EXPECT_EQ(moves[0].length, 2 * packed.whole_page_bytes) << "though one position is filled";
  EXPECT_TRUE(Told({packed}, packed, Block(packed, 0, 3, 0)).empty());
}

TEST(KvFormat, PoolPagesHoldKThenV) {
  const Shape shape = {4, 2, 4, 64};
  const Format f = PoolOf(shape, Element::kF32, 10);
  ASSERT_TRUE(CheckFormat(f, 10 * 256).ok());
  EXPECT_FALSE(CheckFormat(f, 10 * 256 - 1).ok());
  using Moves = std::vector<ByteMove>;
  EXPECT_EQ(Told({f}, f, {{0, 3, 1, 5, 1, 1, 3}}), (Moves{{0, 768, 1280, 96}, {0, 896, 1408, 96}}));
  EXPECT_EQ(Told({f}, f, {{0, 3, 1, 5, 1, 2, 4}}), (Moves{{0, 768, 1280, 512}}));
  EXPECT_EQ(Told({f}, f, {{0, 3, 2, 5, 1, 2, 4}}),
            (Moves{{0, 768, 1280, 256}, {0, 1280, 1536, 256}}));
  EXPECT_TRUE(Told({f}, f, {{0, 3, 1, 5, 1, 1, 0}}).empty());
  const Format largest = PoolOf(shape, Element::kF32, UINT32_MAX);
  EXPECT_TRUE(CheckFormat(largest, uint64_t{UINT32_MAX} * 256).ok());
}

TEST(KvFormat, PoolPagesOfLatentsHoldOneRowForEachPosition) {
  const Format f = LatentPoolOf({4, 1, 4, 36}, Element::kF32, 10);
  EXPECT_EQ(f.key_width, 9u);
  EXPECT_EQ(f.value_width, 0u);
  ASSERT_TRUE(CheckFormat(f, 10 * 144).ok());
  EXPECT_FALSE(CheckFormat(f, 10 * 144 - 1).ok());
  using Moves = std::vector<ByteMove>;
  EXPECT_EQ(Told({f}, f, {{0, 3, 1, 5, 1, 1, 3}}), (Moves{{0, 432, 720, 108}})) << "one run";
  EXPECT_EQ(Told({f}, f, {{0, 3, 1, 5, 1, 2, 4}}), (Moves{{0, 432, 720, 288}}));
}

TEST(KvFormat, SplitsLongRange) {
  Format f = PoolOf({1, 1, 1 << 10, 1 << 11}, Element::kFp8E4m3, 3000);
  ASSERT_TRUE(CheckFormat(f, uint64_t{3000} << 21).ok());
  const auto moves = Told({f}, f, {{0, 0, 1, 1500, 1, 1500, 1 << 10}});
  ASSERT_EQ(moves.size(), 3u);
  uint64_t at = 0;
  for (const ByteMove& move : moves) {
    EXPECT_EQ(move.source, at);
    EXPECT_EQ(move.target, at + (uint64_t{1500} << 21));
    at += move.length;
  }
  EXPECT_EQ(at, uint64_t{1500} << 21);
}

TEST(KvFormat, NamesEachInvalidField) {
  const Format good = ByPosition(3, 10, 8);
  const uint64_t region = 3 * good.layer_stride;
  ASSERT_TRUE(CheckFormat(good, region).ok());
  struct Case {
    const char* want;
    void (*change)(Format&);
  };
  for (const Case& c : std::vector<Case>{
           {"3 layers, 0 blocks", [](Format& f) { f.blocks = 0; }},
           {"0 tokens a block", [](Format& f) { f.block_tokens = 0; }},
           {"more pages than 32 bits", [](Format& f) { f.blocks = 1 << 30; }},
           {"element 6 is unknown", [](Format& f) { f.element = static_cast<Element>(6); }},
           {"key_width is 0", [](Format& f) { f.key_width = 0; }},
           {"but value_width is 0", [](Format& f) { f.value_width = 0; }},
           {"want 0", [](Format& f) { f.whole_page_bytes = 1 << 20; }},
           {"want 0", [](Format& f) { f.whole_page_bytes = 1 << 20, f.value_offset = 0; }},
           {"want 0", [](Format& f) { f.whole_page_bytes = 1 << 20, f.token_stride = 0; }},
           {"K and V of a block take 4096",
            [](Format& f) { f.whole_page_bytes = 4095, f.token_stride = f.value_offset = 0; }},
           {"head_stride is 127, but 128 bytes", [](Format& f) { f.head_stride = 127; }},
           {"token_stride is 1023, but 1024", [](Format& f) { f.token_stride = 1023; }},
           {"would overlap", [](Format& f) { f.key_width = 65; }},
           {"would overlap", [](Format& f) { f.value_width = 65; }},
           {"would overlap", [](Format& f) { f.value_offset -= 1; }},
           {"(layer_stride) do not fit", [](Format& f) { f.layer_stride = ~uint64_t{0}; }},
           {"(layer_stride) do not fit", [](Format& f) { f.layer_stride = uint64_t{1} << 63; }},
           {"the region has", [](Format& f) { f.layer_stride += 1; }},
           {"from offset 1 on", [](Format& f) { f.offset = 1; }},
           {"from offset 18446744073709551615 on", [](Format& f) { f.offset = ~uint64_t{0}; }},
       }) {
    Format f = good;
    c.change(f);
    const Status status = CheckFormat(f, region);
    EXPECT_EQ(status.code(), Code::kInvalid) << c.want;
    EXPECT_NE(status.message().find(c.want), std::string::npos) << status.message();
  }
}

TEST(KvFormat, RejectsCopiesBeyondFormats) {
  const Format f = ByPosition(3, 10, 8);
  const PageCopy good = {0, 8, 80, 16, 80, 3, 16};
  Format other = f;
  other.element = Element::kF16;  // rows of as many bytes
  const auto said = [&](PageCopy copy, const Format& target) {
    const std::vector<PageCopy> copies = {copy};
    const Status status = TellMoves([&](uint32_t rank) { return rank == 0 ? &f : nullptr; }, target,
                                    copies, [](const ByteMove&) { return OkStatus(); });
    return status.ok() ? "" : status.message();
  };
  EXPECT_EQ(said(good, f), "");
  struct Case {
    const char* want;
    void (*change)(PageCopy&);
  };
  for (const Case& c : std::vector<Case>{
           {"17 tokens", [](PageCopy& p) { p.tokens = 17; }},
           {"source page 240", [](PageCopy& p) { p.source_page = 80; }},
           {"target page 240", [](PageCopy& p) { p.target_page = 80; }},
           {"source pages of a copy are 8 apart", [](PageCopy& p) { p.source_stride = 8; }},
           {"target pages of a copy are 0 apart", [](PageCopy& p) { p.target_stride = 0; }},
           {"rank 1 has none", [](PageCopy& p) { p.source_rank = 1; }},
       }) {
    PageCopy copy = good;
    c.change(copy);
    EXPECT_NE(said(copy, f).find(c.want), std::string::npos) << c.want << ": " << said(copy, f);
  }
  EXPECT_NE(said(good, other).find("element 3"), std::string::npos) << said(good, other);
  const Format pool = PoolOf({8, 8, 16, 256}, Element::kBf16, 240);
  const std::vector<PageCopy> still = {{0, 8, 0, 16, 1, 3, 16}};
  const Status refused = TellMoves([&](uint32_t) { return &pool; }, pool, still,
                                   [](const ByteMove&) { return OkStatus(); });
  EXPECT_NE(refused.message().find("source pages of a copy are 0 apart"), std::string::npos);
  // An error of the callback ends it.
  const std::vector<PageCopy> copies = {good};
  int told = 0;
  const Status status = TellMoves([&](uint32_t) { return &f; }, f, copies,
                                  [&](const ByteMove&) {
                                    ++told;
                                    return Status{Code::kUnavailable, "gone"};
                                  });
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace tangram::kv
