#include "agent/base/utf8.h"

#include <gtest/gtest.h>

namespace tangram {
namespace {

TEST(Utf8, PrefixEndsBetweenCharacters) {
  EXPECT_EQ(Utf8Prefix("short", 10), "short");
  EXPECT_EQ(Utf8Prefix("abcdef", 3), "abc");
  EXPECT_EQ(Utf8Prefix("a\u00e4b", 2), "a");
  EXPECT_EQ(Utf8Prefix("a\u00e4b", 3), "a\u00e4");
  const std::string four = "\U0001f600";
  for (size_t bytes = 0; bytes < 4; ++bytes) EXPECT_EQ(Utf8Prefix(four + "x", bytes), "");
  EXPECT_EQ(Utf8Prefix(four + "x", 4), four);
}

TEST(Utf8, PrefixOfInvalidBytesStaysWithinLimit) {
  const std::string only_continuing(20, '\x80');
  for (size_t bytes = 0; bytes < 20; ++bytes) {
    EXPECT_LE(Utf8Prefix(only_continuing, bytes).size(), bytes);
  }
}

TEST(Utf8, KeepsValidText) {
  const std::string text = "plain \u00e4 \u20ac \ud7ff \ue000 \U0001f600 \U0010ffff";
  EXPECT_EQ(ValidUtf8(text), text);
  EXPECT_EQ(ValidUtf8(""), "");
}

TEST(Utf8, ReplacesInvalidBytes) {
  EXPECT_EQ(ValidUtf8("a\xff"
                      "b"),
            "a?b");
  EXPECT_EQ(ValidUtf8("cut \xe2\x82"), "cut ??");
  EXPECT_EQ(ValidUtf8("\xc0\xaf"), "??") << "overlong";
  EXPECT_EQ(ValidUtf8("\xe0\x80\xaf"), "???") << "overlong";
  EXPECT_EQ(ValidUtf8("\xed\xa0\x80"), "???") << "a surrogate";
  EXPECT_EQ(ValidUtf8("\xf4\x90\x80\x80"), "????") << "above U+10FFFF";
  EXPECT_EQ(ValidUtf8("\xe2\x82"
                      "\u00e4"),
            "??\u00e4")
      << "the next character stays";
}

}  // namespace
}  // namespace tangram
