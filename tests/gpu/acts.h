// The acts of the check, each in a file of its name. An act runs in a process of its own, opens the
// driver itself, and tells what it finds; it throws Lacks or Failed (gpu.h) where it cannot go on.
#pragma once

#include <span>
#include <string>

#include "tests/gpu/record.h"

namespace tangram::gpu {

struct Task {
  std::string driver;  // the library
  // Sizes that a recording driver, which moves bytes by a processor, gets through in seconds.
  bool small = false;
  Recorder* out = nullptr;
};

struct Act {
  const char* name;
  const char* what;  // in the table
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

// In the order in which they are run.
std::span<const Act> Acts();

}  // namespace tangram::gpu
