// The suite that every device passes (agent/device/conformance.h), as a separate program next to
// this one, whose GoogleTest output is parsed here.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "agent/base/unique_fd.h"
#include "tests/gpu/acts.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/started.h"

namespace tangram::gpu {
namespace {

// The complete output of a program, and its exit code.
std::pair<std::string, int> Output(const std::vector<std::string>& command) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Failed("no pipe");
  UniqueFd in(ends[0]), out(ends[1]);
  const pid_t child = fork();
  if (child == 0) {
    dup2(out.get(), STDOUT_FILENO);
    dup2(out.get(), STDERR_FILENO);
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  out.reset();
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(in.get(), buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
  }
  int status = 0;
  waitpid(child, &status, 0);
  return {text, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)};
}

}  // namespace

void RunConformance(const Task& task) {
  { const Gpu here(task.driver); }  // otherwise every test of the suite would report a missing GPU
  const auto command = Beside("gpu_conformance_test");
  if (access(command.back().c_str(), X_OK) != 0) {
    return task.out->NotRun("the suite", "there is no " + command.back());
  }
  setenv("TANGRAM_GPU_DRIVER", task.driver.c_str(), 1);
  const auto [text, code] = Output(command);
  // "[  PASSED  ] 15 tests.", then a line "[  FAILED  ] Suite.Name" per failure.
  unsigned passed = 0;
  std::istringstream lines(text);
  std::string said;
  for (std::string line; std::getline(lines, line);) {
    (void)std::sscanf(line.c_str(), "[  PASSED  ] %u test", &passed);
    if (line.rfind("[  FAILED  ]", 0) == 0 && line.find(" ms)") != std::string::npos) {
      task.out->Wrong(line.substr(13));
    }
    if (line.find("Failure") != std::string::npos || line.find("cuda:") != std::string::npos) {
      said = line;
    }
  }
  if (passed > 0) task.out->Right("tests of the suite", passed);
  if (code != 0) {
    task.out->Failed(
        fmt::format("the suite ended with {}{}", code, said.empty() ? "" : ": " + said));
  } else if (passed == 0) {
    task.out->Failed("the suite ran no test");
  }
}

}  // namespace tangram::gpu
