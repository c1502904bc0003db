#include "agent/server/files.h"

#include <fcntl.h>
#include <openssl/rand.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "agent/base/unique_fd.h"
#include "agent/layout/geometry.h"

namespace tangram {
namespace {
constexpr size_t kMinTokenBytes = 16;
}

Result<std::string> ReadWholeFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream content;
  if (in) content << in.rdbuf();
  if (!in || std::filesystem::is_directory(path)) {
    return Status{Code::kInvalid, "cannot read " + path + ": " + std::strerror(errno)};
  }
  return content.str();
}

Status WriteFileAtomically(const std::string& path, std::string_view content, mode_t mode) {
  const std::string part = path + ".part";
  const auto failed = [&](const char* what) {
    return Status(Code::kInvalid, std::string(what) + " " + part + ": " + std::strerror(errno));
  };
  UniqueFd fd(open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
  if (!fd) return failed("cannot create");
  if (write(fd.get(), content.data(), content.size()) != static_cast<ssize_t>(content.size())) {
    return failed("cannot write");
  }
  fd.reset();
  if (rename(part.c_str(), path.c_str()) != 0) return failed("cannot rename");
  return OkStatus();
}

Result<std::string> ReadOrMakeToken(const std::string& path) {
  if (!std::filesystem::exists(path)) {
    std::string random(32, '\0');
    if (RAND_bytes(reinterpret_cast<unsigned char*>(random.data()), 32) != 1) {
      return Status{Code::kInternal, "cannot generate the engine token: no random bytes"};
    }
    TANGRAM_RETURN_IF_ERROR(WriteFileAtomically(path, layout::Hex(random) + "\n", 0600));
  }
  auto text = ReadWholeFile(path);
  if (!text.ok()) return text.status();
  const size_t first = text->find_first_not_of(" \t\r\n");
  const size_t last = text->find_last_not_of(" \t\r\n");
  if (first == std::string::npos || last - first + 1 < kMinTokenBytes) {
    return Status{Code::kInvalid, "the engine token in " + path + " is shorter than " +
                                      std::to_string(kMinTokenBytes) + " bytes"};
  }
  return text->substr(first, last - first + 1);
}

}  // namespace tangram
