// Checks of untrusted text for message fields that must be UTF-8: a single invalid byte makes the
// reader reject the whole message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tangram {

// The longest prefix of `text` with at most `bytes` bytes that does not split a character. Valid
// text stays valid; invalid text is cut anywhere.
std::string_view Utf8Prefix(std::string_view text, size_t bytes);

// `text` with '?' for each byte outside a well-formed character (no overlong forms, no surrogates,
// nothing above U+10FFFF). Same length as `text`.
std::string ValidUtf8(std::string_view text);

}  // namespace tangram
