// A file of a checkpoint, with counted reads at offsets. It uses plain reads, because a file that
// is truncated meanwhile is then an error, and with a mapping a SIGBUS.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "agent/base/status.h"
#include "agent/base/unique_fd.h"

namespace tangram::loader {

class File {
 public:
  // Opens a regular file. Symlinks are followed, because caches of hubs consist of them. Does not
  // block on a pipe or a device. kInvalid names the file.
  static Result<std::unique_ptr<File>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }  // at the time it was opened

  // All bytes of `out` from `offset` on. Thread-safe. kInvalid names file and offset.
  Status Read(uint64_t offset, std::span<std::byte> out) const;
  // The same into several places, one after another; consumes `parts`.
  Status ReadInto(uint64_t offset, std::span<iovec> parts) const;
  // kInvalid: the file has changed since it was opened, or cannot be read.
  Status StillThere() const;

  // Read calls to the kernel so far, and bytes that they returned.
  uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  uint64_t bytes_read() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  File(std::string path, UniqueFd fd, uint64_t size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}

  const std::string path_;
  const UniqueFd fd_;
  const uint64_t size_;
  mutable std::atomic<uint64_t> calls_{0}, bytes_{0};
};

}  // namespace tangram::loader
