// tg_kv_byte_moves_of against kv::TellMoves: the same formats and copies in C structs give the same
// moves, and contradictory ones are rejected.
#include "tangram/kv_format.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "agent/kv/format.h"

namespace tangram {
namespace {

// [layer][K, V][block][head][position][width].
tg_kv_format ByHead(uint32_t blocks) {
  tg_kv_format f = TG_INIT(tg_kv_format);
  f.offset = 4096;
  f.layers = 3;
  f.blocks = blocks;
  f.heads = 2;
  f.block_tokens = 16;
  f.element = TG_KV_FP8_E4M3;
  f.key_width = f.value_width = 64;
  f.token_stride = 64;
  f.head_stride = 16 * f.token_stride;
  f.block_stride = 2 * f.head_stride;
  f.value_offset = blocks * f.block_stride;
  f.layer_stride = 2 * f.value_offset;
  return f;
}

kv::Format Same(const tg_kv_format& f) {
  return {f.offset,       f.layers,          f.blocks,
          f.heads,        f.block_tokens,    static_cast<kv::Element>(f.element),
          f.key_width,    f.value_width,     f.layer_stride,
          f.block_stride, f.head_stride,     f.token_stride,
          f.value_offset, f.whole_page_bytes};
}

// Both heads of three blocks of rank 1, in elements that are longer than this library knows.
struct Longer {
  tg_kv_page_copy known;
  uint32_t more;
};

std::vector<Longer> Copies(const tg_kv_format& from, const tg_kv_format& to) {
  std::vector<Longer> out;
  for (const uint32_t block : {4u, 5u, 2u}) {
    for (uint32_t head = 0; head < 2; ++head) {
      out.push_back({{1, tg_kv_page(&from, 0, block, head), from.blocks * 2,
                      tg_kv_page(&to, 0, block + 1, head), to.blocks * 2, 3, block == 2 ? 7u : 16u},
                     0xeeeeeeee});
    }
  }
  return out;
}

TEST(KvFormatAbi, MatchesByteMovesOfInternalCode) {
  const tg_kv_format from = ByHead(6), to = ByHead(9);
  const tg_kv_format* sources[] = {nullptr, &from};
  const std::vector<Longer> copies = Copies(from, to);
  tg_error error = TG_INIT(tg_error);
  const tg_kv_byte_moves* moves = nullptr;
  ASSERT_EQ(tg_kv_byte_moves_of(sources, 2, &to, &copies[0].known, copies.size(), sizeof(Longer),
                                &moves, &error),
            TG_OK)
      << error.message;
  std::vector<kv::PageCopy> pages;
  for (const Longer& c : copies) {
    pages.push_back({c.known.source_rank, c.known.source_page, c.known.source_stride,
                     c.known.target_page, c.known.target_stride, c.known.pages, c.known.tokens});
  }
  const kv::Format theirs = Same(from);
  std::vector<kv::ByteMove> wanted, got;
  uint64_t bytes = 0;
  const Status told =
      kv::TellMoves([&](uint32_t rank) { return rank == 1 ? &theirs : nullptr; }, Same(to), pages,
                    [&](const kv::ByteMove& move) {
                      wanted.push_back(move);
                      bytes += move.length;
                      return OkStatus();
                    });
  ASSERT_TRUE(told.ok()) << told.message();
  for (size_t i = 0; i < moves->moves; ++i) {
    const tg_kv_move& m = *TG_AT(tg_kv_move, moves->move, moves->move_size, i);
    got.push_back({m.source_rank, m.source_offset, m.target_offset, m.length});
  }
  EXPECT_EQ(got, wanted);
  EXPECT_EQ(moves->bytes, bytes);
  EXPECT_EQ(bytes, 3u * 2 * 2 * 64 * (16 + 16 + 7));
  tg_kv_byte_moves_free(moves);
}

TEST(KvFormatAbi, NamesEachInvalidArgument) {
  const tg_kv_format good = ByHead(6);
  const tg_kv_page_copy copy = {0, 0, 12, 0, 12, 3, 16};
  const auto said = [&](const tg_kv_format* const* sources, size_t count, const tg_kv_format* to,
                        const tg_kv_page_copy* copies, size_t size) -> std::string {
    tg_error error = TG_INIT(tg_error);
    const tg_kv_byte_moves* moves = nullptr;
    const tg_code code = tg_kv_byte_moves_of(sources, count, to, copies, 1, size, &moves, &error);
    EXPECT_EQ(moves == nullptr, code != TG_OK);
    tg_kv_byte_moves_free(moves);
    return error.message;
  };
  const auto has = [](const std::string& text, const char* part) {
    return testing::AssertionResult(text.find(part) != std::string::npos) << text;
  };
  const tg_kv_format* sources[] = {&good};
  EXPECT_EQ(said(sources, 1, &good, &copy, sizeof copy), "");
  EXPECT_TRUE(has(said(nullptr, 1, &good, &copy, sizeof copy), "sources is null"));
  EXPECT_TRUE(has(said(sources, 0, &good, &copy, sizeof copy), "rank 0 has none"));
  EXPECT_TRUE(has(said(sources, 1, nullptr, &copy, sizeof copy), "tg_kv_format is null"));
  EXPECT_TRUE(has(said(sources, 1, &good, nullptr, sizeof copy), "copies is null"));
  EXPECT_TRUE(has(said(sources, 1, &good, &copy, sizeof copy - 1), "27 bytes apart"));
  tg_kv_format bad = good;
  bad.reserved = 1;
  EXPECT_TRUE(has(said(sources, 1, &bad, &copy, sizeof copy), "reserved is 1"));
  bad = good;
  bad.head_stride -= 1;
  const tg_kv_format* overlapping[] = {&bad};
  EXPECT_TRUE(has(said(overlapping, 1, &good, &copy, sizeof copy), "head_stride"));
  bad = good;
  bad.element = TG_KV_FP8_E5M2;
  EXPECT_TRUE(has(said(sources, 1, &bad, &copy, sizeof copy), "element 5"));
}

}  // namespace
}  // namespace tangram
