// tangram-stub-engines: plays the engines of any number of pods, until SIGTERM.
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

volatile std::sig_atomic_t g_ended = 0;

}  // namespace

int main(int argc, char** argv) {
  mallopt(M_MXFAST, 0);  // as agent/server/main.cc
  CLI::App app{"Stub engines that compute nothing, for any number of pods, in one process."};
  std::vector<std::string> sockets, tokens;
  std::vector<uint32_t> ranks;
  std::string ready;
  uint32_t step_ms = 5;
  app.add_option("--agent-socket", sockets, "path of a pod's engine socket; repeatable, required")
      ->required();
  app.add_option("--token-file", tokens,
                 "file with the engine token of the same pod; repeatable, required")
      ->required();
  app.add_option("--ranks", ranks, "number of ranks of the same pod; repeatable, required")
      ->required();
  app.add_option("--step-ms", step_ms, "duration of a step in milliseconds");
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
  while (g_ended == 0) {
    engines.Turn();
    std::this_thread::sleep_for(std::chrono::milliseconds(step_ms));
  }
  return 0;
}
