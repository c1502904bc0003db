// Text that comes from elsewhere, on its way into a message whose fields must be UTF-8: one wrong
// byte makes the reader refuse the whole message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tangram {

// The longest beginning of `text` with at most `bytes` bytes that does not end within a character.
// Valid text stays valid; other text is cut somewhere.
std::string_view Utf8Prefix(std::string_view text, size_t bytes);

// `text` with '?' in place of each byte that belongs to no well-formed character (no overlong
// forms, no surrogates, nothing above U+10FFFF). As long as `text`.
std::string ValidUtf8(std::string_view text);

}  // namespace tangram
