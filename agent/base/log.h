// Logs on stderr: JSON lines, or plain text.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tangram {

// Sets spdlog's default logger. `fields` are on every JSON line; `level` is trace, debug,
// info, warn or error.
void SetUpLog(const std::string& name, const std::string& level, bool json,
              std::vector<std::pair<std::string, std::string>> fields);

}  // namespace tangram
