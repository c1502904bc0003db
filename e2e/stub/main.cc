// tangram-stub-engines: simulates the engines of any number of pods, until SIGTERM.
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "e2e/stub/stub_engines.h"

namespace {

using tangram::stub::Turned;

volatile std::sig_atomic_t g_ended = 0;

}  // namespace

int main(int argc, char** argv) {
  mallopt(M_MXFAST, 0);  // as agent/server/main.cc
  CLI::App app{"Stub engines that compute nothing, for any number of pods, in one process."};
  std::vector<std::string> sockets, tokens;
  std::vector<uint32_t> ranks;
  std::string ready, steps;
  uint32_t step_ms = 5;
  app.add_option("--agent-socket", sockets, "path of a pod's engine socket; repeatable, required")
      ->required();
  app.add_option("--token-file", tokens,
                 "file with the engine token of the same pod; repeatable, required")
      ->required();
  app.add_option("--ranks", ranks, "number of ranks of the same pod; repeatable, required")
      ->required();
  app.add_option("--step-ms", step_ms, "duration of a step in milliseconds");
  app.add_option(
      "--steps-file", steps,
      "file to which to append a line for each computed step: its end, Unix time in nanoseconds");
  app.add_option("--ready-file", ready, "file to write when all engines are attached");
  CLI11_PARSE(app, argc, argv);
  if (sockets.size() != tokens.size() || sockets.size() != ranks.size()) {
    std::fputs(
        "tangram-stub-engines: --agent-socket, --token-file and --ranks must be given once for "
        "each pod\n",
        stderr);
    return 2;
  }
  std::signal(SIGTERM, [](int) { g_ended = 1; });
  tangram::stub::StubEngines engines;
  for (size_t i = 0; i < sockets.size(); ++i) {
    if (!engines.Attach({sockets[i], tokens[i], ranks[i]})) return 1;
  }
  if (!ready.empty()) std::ofstream(ready) << "{}\n";
  std::ofstream log;
  if (!steps.empty()) log.open(steps, std::ios::app);
  while (g_ended == 0) {
    const Turned turned = engines.Turn();
    if (turned == Turned::kFlipped) continue;
    const bool paused = turned == Turned::kPaused;
    std::this_thread::sleep_for(std::chrono::milliseconds(paused ? 1 : step_ms));
    if (turned == Turned::kStepped && log.is_open()) {
      log << std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count()
          << std::endl;
    }
  }
  return 0;
}
