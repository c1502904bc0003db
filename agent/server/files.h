// Small files: read completely, and written atomically.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "agent/base/status.h"

namespace tangram {

Result<std::string> ReadWholeFile(const std::string& path);
Status WriteFileAtomically(const std::string& path, std::string_view content, mode_t mode);
// The engines' token: the file's content without surrounding white space, at least 16 bytes. A
// missing file is created with 32 random bytes, readable only by this user.
Result<std::string> ReadOrMakeToken(const std::string& path);

}  // namespace tangram
