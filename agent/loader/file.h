// A file of a checkpoint: read by place, with plain reads (a file that is cut short while it is
// read is an error, where a mapping of it would be a SIGBUS), and counted.
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
  // A regular file. Symlinks are followed, as caches of hubs are made of them; nobody waits for
  // what is a pipe or a device. kInvalid names the file.
  static Result<std::unique_ptr<File>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }  // when it was opened

  // All bytes of `out` from `offset` on. Thread-safe. kInvalid names file and place.
  Status Read(uint64_t offset, std::span<std::byte> out) const;
  // The same into several places, one after another; `parts` is used up.
  Status ReadInto(uint64_t offset, std::span<iovec> parts) const;
  // kInvalid: it is not what it was when it was opened, or cannot be read.
  Status StillThere() const;

  // What the kernel was asked for so far, and gave.
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
