// Descriptors and messages between a process and its child.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <utility>

#include "agent/base/unique_fd.h"

namespace tangram::gpu {

// One end of a socket pair. Throws Failed if the other end is closed, or silent for too long.
class Line {
 public:
  explicit Line(UniqueFd socket) : socket_(std::move(socket)) {}
  void Say(const std::string& words) const;
  std::string Hear(int timeout_seconds = 30) const;
  void Pass(int descriptor) const;
  UniqueFd Take() const;

 private:
  const UniqueFd socket_;
};

// Runs `work` in a separate process, which is killed with this object if it still runs. Make it
// before this process opens the driver: a driver does not survive a fork. An exception of `work`
// becomes the last message of the line, with the prefix "failed: ".
class Child {
 public:
  explicit Child(const std::function<void(const Line&)>& work) : Child(work, SocketPair()) {}
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  const Line& line() const { return line_; }
  void Kill();  // with SIGKILL, and waits

 private:
  using Ends = std::pair<UniqueFd, UniqueFd>;
  static Ends SocketPair();
  Child(const std::function<void(const Line&)>& work, Ends ends);

  pid_t pid_ = -1;
  Line line_;
};

}  // namespace tangram::gpu
