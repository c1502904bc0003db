#include "agent/dispatch/slot.h"

#include <gtest/gtest.h>

#include <string>

namespace tangram::dispatch {
namespace {

Format Small() {
  return {.hidden = 5,
          .top_k = 3,
          .experts = 6,
          .x = Element::kF32,
          .wire = Element::kF32,
          .sums = Element::kFixed,
          .most_tokens = 100};
}

TEST(Slots, CutMessageToAnyRoomInConsecutiveParts) {
  for (const Lane lane : {Lane::kDispatch, Lane::kCombine}) {
    const Format format = Small();
    for (const uint32_t total : {0u, 1u, 2u, 17u, 100u}) {
      for (size_t room = LeastSlot(format); room < LeastSlot(format) + 2000; room += 37) {
        Progress sent{.begun = false, .total = total, .metas = 0, .rows = 0}, came;
        int slots = 0;
        do {
          const Cut cut = CutFor(format, lane, sent, room);
          ASSERT_GT(cut.bytes, 0u) << "no way forward in " << room;
          ASSERT_LE(cut.bytes, room);
          SlotHead head;
          head.lane = static_cast<uint32_t>(lane);
          head.total = total;
          head.metas = cut.metas;
          head.rows = cut.rows;
          head.top_k = format.top_k;
          head.stride = static_cast<uint32_t>(format.stride(lane));
          const Status follows = Follows(format, head, cut.bytes, came);
          ASSERT_TRUE(follows.ok()) << follows.message();
          sent = came = {true, total, sent.metas + cut.metas, sent.rows + cut.rows};
          ASSERT_LT(++slots, 1000);
        } while (!sent.complete());
        if (room >= WholeSlot(format, lane, total)) EXPECT_EQ(slots, 1);
      }
    }
  }
}

TEST(Slots, RejectSlotOutOfSequence) {
  const Format format = Small();
  const auto head = [&](uint32_t total, uint32_t metas, uint32_t rows) {
    SlotHead h;
    h.pair = 7;
    h.total = total;
    h.metas = metas;
    h.rows = rows;
    h.top_k = format.top_k;
    h.stride = static_cast<uint32_t>(format.stride(Lane::kDispatch));
    return h;
  };
  const auto why = [&](const SlotHead& h, size_t bytes, const Progress& came) {
    return Follows(format, h, bytes, came).message();
  };
  const size_t meta = format.meta_bytes(Lane::kDispatch);
  EXPECT_EQ(why(head(2, 1, 0), 64 + meta, {}), "");
  EXPECT_EQ(why(head(2, 1, 0), 64 + meta + 1, {}), "a slot of pair 7: it has 89 of 88 bytes");
  EXPECT_EQ(why(head(2, 3, 0), 64 + 3 * meta, {}), "a slot of pair 7: it announces 3 of 2 rows");
  EXPECT_EQ(why(head(2, 0, 1), 64, {}),
            "a slot of pair 7: it has rows that were not announced: 1 of 0");
  EXPECT_EQ(why(head(3, 1, 0), 64 + meta, {true, 2, 1, 0}),
            "a slot of pair 7: it is of 3 rows, and before of 2");
  EXPECT_EQ(why(head(101, 1, 0), 64 + meta, {}),
            "a slot of pair 7: 101 rows, and the most are 100");
  EXPECT_EQ(why(head(2, 1, 1), WholeSlot(format, Lane::kDispatch, 1), {}),
            "a slot of pair 7: it has rows before all are announced: 1 of 2");
  SlotHead other = head(2, 1, 0);
  other.stride = 8;
  EXPECT_EQ(why(other, 64 + meta, {}),
            "a slot of pair 7: rows of 8 bytes with 3 experts each; here they have 24 and 3");
  EXPECT_EQ(HeadOf(std::vector<uint8_t>(64, 1)).status().message(), "what came is no slot");
  EXPECT_EQ(HeadOf(std::vector<uint8_t>(63, 1)).status().message(), "a slot of 63 bytes");
}

TEST(Formats, RejectInvalidFormat) {
  const auto why = [](auto change) {
    Format format = Small();
    change(format);
    return format.Check().message();
  };
  EXPECT_EQ(why([](Format&) {}), "");
  EXPECT_EQ(why([](Format& f) { f.hidden = 0; }), "format of rows: hidden is 0: 1 to 1048576");
  EXPECT_EQ(why([](Format& f) { f.top_k = 33; }), "format of rows: top_k is 33: 1 to 32");
  EXPECT_EQ(why([](Format& f) { f.experts = 0; }), "format of rows: no experts");
  EXPECT_EQ(why([](Format& f) { f.x = Element::kFp8; }), "format of rows: x is FP8: F32 or BF16");
  EXPECT_EQ(why([](Format& f) { f.wire = Element::kBf16; }),
            "format of rows: rows travel as BF16: as x (F32) or FP8");
  EXPECT_EQ(why([](Format& f) { f.sums = Element::kFp8; }),
            "format of rows: sums are FP8: F32, BF16 or fixed point");
}

TEST(Formats, UseAboutHalfTheBytesOfBf16ForFp8) {
  Format format{.hidden = 7168, .top_k = 8, .experts = 256};
  const double bf16 = static_cast<double>(WholeSlot(format, Lane::kDispatch, 4096));
  format.wire = Element::kFp8;
  EXPECT_LE(static_cast<double>(WholeSlot(format, Lane::kDispatch, 4096)) / bf16, 0.52);
}

}  // namespace
}  // namespace tangram::dispatch
