#include "agent/loader/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

namespace tangram::loader {

Result<std::unique_ptr<File>> File::Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat stat {};
  if (!fd || fstat(fd.get(), &stat) != 0) {
    return Status(Code::kInvalid, fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  }
  if (!S_ISREG(stat.st_mode)) return Status(Code::kInvalid, path + ": not a regular file");
  return std::unique_ptr<File>(new File(path, std::move(fd), static_cast<uint64_t>(stat.st_size)));
}

Status File::Read(uint64_t offset, std::span<std::byte> out) const {
  iovec part{out.data(), out.size()};
  return ReadInto(offset, {&part, 1});
}

Status File::ReadInto(uint64_t offset, std::span<iovec> parts) const {
  for (size_t at = 0; at < parts.size();) {
    if (parts[at].iov_len == 0) {
      ++at;
      continue;
    }
    const auto count = static_cast<int>(std::min<size_t>(parts.size() - at, IOV_MAX));
    const ssize_t n = preadv(fd_.get(), &parts[at], count, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return {Code::kInvalid, fmt::format("{}: cannot read at byte {}: {}", path_, offset,
                                          n == 0 ? "end of file" : std::strerror(errno))};
    }
    calls_.fetch_add(1, std::memory_order_relaxed);
    bytes_.fetch_add(static_cast<uint64_t>(n), std::memory_order_relaxed);
    offset += static_cast<uint64_t>(n);
    size_t got = static_cast<size_t>(n);
    while (at < parts.size() && got >= parts[at].iov_len) got -= parts[at++].iov_len;
    if (got == 0) continue;
    parts[at].iov_base = static_cast<std::byte*>(parts[at].iov_base) + got;
    parts[at].iov_len -= got;
  }
  return OkStatus();
}

Status File::StillThere() const {
  struct stat open_one {
  }, there{};
  if (fstat(fd_.get(), &open_one) != 0 || stat(path_.c_str(), &there) != 0) {
    return {Code::kInvalid, fmt::format("{}: {}", path_, std::strerror(errno))};
  }
  if (open_one.st_dev != there.st_dev || open_one.st_ino != there.st_ino) {
    return {Code::kInvalid, fmt::format("{}: the file was replaced", path_)};
  }
  if (static_cast<uint64_t>(open_one.st_size) != size_) {
    return {Code::kInvalid, fmt::format("{}: has {} bytes, had {} bytes when it was opened", path_,
                                        open_one.st_size, size_)};
  }
  std::byte last{};
  return size_ == 0 ? OkStatus() : Read(size_ - 1, {&last, 1});
}

}  // namespace tangram::loader
