// Small files: read whole, written so that a reader sees all or nothing.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "agent/base/status.h"

namespace tangram {

Result<std::string> ReadWholeFile(const std::string& path);
Status WriteFileAtomically(const std::string& path, std::string_view content, mode_t mode);
// The engines' token: the file's content without white space at its ends; made from 32
// random bytes, readable by this user alone, when there is no file. At least 16 bytes.
Result<std::string> ReadOrMakeToken(const std::string& path);

}  // namespace tangram
