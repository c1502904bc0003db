// Processes that tests control line by line.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include "agent/base/testing/hang.h"

namespace tangram::mover::testing {

class Process {
 public:
  // `words`: the program and its arguments; `environment` as NAME=VALUE.
  explicit Process(std::vector<std::string> words,
                   const std::vector<std::string>& environment = {}) {
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) return;
    std::vector<std::string> all{"/usr/bin/env"};
    all.insert(all.end(), environment.begin(), environment.end());
    all.insert(all.end(), words.begin(), words.end());
    std::vector<char*> arguments;
    for (std::string& word : all) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_ = in[1];
    from_ = out[0];
  }
  ~Process() {
    close(to_);  // it ends by itself
    if (pid_ > 0) (void)Ended(tangram::testing::kHang);
    Kill();
    close(from_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void Say(const std::string& line) const {
    const std::string text = line + "\n";
    EXPECT_EQ(write(to_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // Its next line; empty: it ended, or is silent for kHang.
  std::string Hear() {
    while (true) {
      const size_t end = heard_.find('\n');
      if (end != std::string::npos) {
        std::string out = heard_.substr(0, end);
        heard_.erase(0, end + 1);
        return out;
      }
      pollfd look{from_, POLLIN, 0};
      char part[4096];
      if (poll(&look, 1, tangram::testing::kHangMs) <= 0) return "";
      const ssize_t got = read(from_, part, sizeof part);
      if (got <= 0) return "";
      heard_.append(part, static_cast<size_t>(got));
    }
  }
  std::string Ask(const std::string& line) {
    Say(line);
    return Hear();
  }
  // Stops it until it is killed.
  void Stop() const { kill(pid_, SIGSTOP); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // Whether it ends within that time; stores its exit code.
  bool Ended(std::chrono::seconds most) {
    const auto end = std::chrono::steady_clock::now() + most;
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) return false;
      usleep(2000);
    }
    pid_ = -1;
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
  }
  int code() const { return code_; }

 private:
  pid_t pid_ = -1;
  int to_ = -1, from_ = -1, code_ = -1;
  std::string heard_;
};

}  // namespace tangram::mover::testing
