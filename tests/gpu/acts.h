// The acts of the check, each in a file of its name. An act runs in a separate process, opens the
// driver itself, and reports its results; it throws Lacks or Failed (gpu.h) if it cannot continue.
#pragma once

#include <span>
#include <string>

#include "tests/gpu/record.h"

namespace tangram::gpu {

struct Task {
  std::string driver;  // path of the library
  // Sizes that finish in seconds on a recording driver, which moves bytes with the CPU.
  bool small = false;
  Recorder* out = nullptr;
};

struct Act {
  const char* name;
  const char* what;  // text for the table
  int limit_seconds;
  void (*run)(const Task& task);
};

void RunMachine(const Task& task);
void RunConformance(const Task& task);
void RunTwins(const Task& task);
void RunRemap(const Task& task);
void RunDescriptors(const Task& task);
void RunReshard(const Task& task);
void RunKv(const Task& task);
void RunCopies(const Task& task);
void RunGraphs(const Task& task);
void RunTokens(const Task& task);
void RunDispatch(const Task& task);

// In the order of execution.
std::span<const Act> Acts();

}  // namespace tangram::gpu
