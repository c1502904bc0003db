#include "agent/base/utf8.h"

#include <cstdint>

namespace tangram {
namespace {

bool Continues(char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; }

// Length in bytes of the well-formed character at the start of `text`; 0: there is none.
size_t CharacterAt(std::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  const size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (!Continues(text[i])) return 0;
  }
  const auto second = static_cast<uint8_t>(text[1]);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool surrogate = first == 0xed && second > 0x9f;
  const bool beyond = first == 0xf4 && second > 0x8f;
  return overlong || surrogate || beyond ? 0 : length;
}

}  // namespace

std::string_view Utf8Prefix(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return text;
  constexpr size_t kMostContinuing = 3;  // per character; more are never valid UTF-8
  size_t end = bytes;
  while (end > 0 && bytes - end < kMostContinuing && Continues(text[end])) --end;
  return text.substr(0, Continues(text[end]) ? bytes : end);
}

std::string ValidUtf8(std::string_view text) {
  std::string out(text);
  for (size_t at = 0; at < out.size();) {
    const size_t length = CharacterAt(std::string_view(out).substr(at));
    if (length == 0) out[at] = '?';
    at += length == 0 ? 1 : length;
  }
  return out;
}

}  // namespace tangram
