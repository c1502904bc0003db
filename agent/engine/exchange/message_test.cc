// Rows that no sound engine sends: refused, before anything is read at what they say.
#include "agent/engine/exchange/message.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

namespace tangram::engine {
namespace {

TEST(RowMessage, BringsTheRowsThatWereMeant) {
  const RowFormat format{2, 3, Element::kF32};
  const std::vector<float> x{1, 2, 3, 4, 5, 6},
      weights{.1f, .2f, .3f, .4f, .5f, .6f, .7f, .8f, .9f};
  const std::vector<uint32_t> rows{0, 2};
  const std::vector<int32_t> choices{7, -1, 8, -1, -1, 9};
  const Bytes bytes = RowMessage::Encode(format, rows, x.data(), weights.data(), choices);
  const Result<RowMessage> read = RowMessage::Decode(format, bytes);
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read->rows, 2u);
  std::vector<float> out(6);
  ToFloat(format.element, read->x, 4, out.data());
  EXPECT_EQ(std::vector(out.begin(), out.begin() + 4), (std::vector<float>{1, 2, 5, 6}));
  std::vector<int32_t> chosen(6);
  std::memcpy(chosen.data(), read->choices, sizeof(int32_t) * 6);
  EXPECT_EQ(chosen, choices);
  std::memcpy(out.data(), read->weights, sizeof(float) * 6);
  EXPECT_EQ(out, (std::vector<float>{.1f, .2f, .3f, .7f, .8f, .9f}));
}

TEST(RowMessage, NoRowsAreNoBytes) {
  const RowFormat format{4, 2, Element::kBf16};
  EXPECT_TRUE(RowMessage::Encode(format, {}, nullptr, nullptr, {}).empty());
  const Result<RowMessage> read = RowMessage::Decode(format, {});
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->rows, 0u);
}

TEST(RowMessage, AnotherSizeOrFormatThanHereIsRefused) {
  const RowFormat format{2, 1, Element::kBf16};
  const std::vector<uint16_t> x{1, 2, 3, 4};
  const std::vector<float> weights{1, 2};
  const std::vector<uint32_t> rows{0, 1};
  const std::vector<int32_t> choices{0, 1};
  const Bytes good = RowMessage::Encode(format, rows, x.data(), weights.data(), choices);
  ASSERT_TRUE(RowMessage::Decode(format, good).ok());
  for (const RowFormat& other : {RowFormat{3, 1, Element::kBf16}, RowFormat{2, 2, Element::kBf16},
                                 RowFormat{2, 1, Element::kF32}, RowFormat{1, 1, Element::kF32}})
    EXPECT_FALSE(RowMessage::Decode(other, good).ok());
  for (size_t size = 1; size < good.size(); ++size)
    EXPECT_FALSE(RowMessage::Decode(format, std::span(good).first(size)).ok()) << size;
  Bytes longer = good;
  longer.push_back(0);
  EXPECT_FALSE(RowMessage::Decode(format, longer).ok());
  // A count that says more than is there, and one whose product wraps.
  for (const uint32_t count : {0u, 1u, 3u, 0xffffffffu, 0x40000000u}) {
    Bytes wrong = good;
    std::memcpy(wrong.data(), &count, sizeof count);
    EXPECT_FALSE(RowMessage::Decode(format, wrong).ok()) << count;
  }
}

TEST(RowMessage, Bf16IsItsFloatExactly) {
  const std::vector<uint16_t> x{0x3f80, 0xc000, 0x0001, 0x7f80};  // 1, -2, the least, infinity
  std::vector<float> out(4);
  ToFloat(Element::kBf16, x.data(), 4, out.data());
  EXPECT_EQ(out,
            (std::vector<float>{1, -2, 9.18354962e-41f, std::numeric_limits<float>::infinity()}));
}

}  // namespace
}  // namespace tangram::engine
