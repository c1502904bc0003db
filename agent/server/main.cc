// tangram-agent: owns the memory of a pod's ranks and takes them through flips.
#include <malloc.h>
#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "agent/base/background.h"
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/server/agent.h"

int main(int argc, char** argv) {
  CLI::App app{"Tangram agent: owns the device memory of a pod's ranks and executes their flips."};
  std::string file;
  tangram::Overrides overrides;
  bool check = false;
  bool list = false;
  bool sizes_only = false;
  app.add_option("--config", file, "YAML configuration file, required (agent/server/README.md)");
  app.add_option("--set", overrides, "KEY=VALUE that overrides the configuration file; repeatable");
  app.add_flag("--check-config", check, "check the configuration, print its first error, and exit");
  std::string faults;
  std::string fault_dir;
  app.add_option("--faults", faults, "for tests: faults to arm at the start (agent/base/fault.h)");
  app.add_option("--fault-dir", fault_dir, "for tests: directory of faults to arm at run time");
  app.add_flag("--sizes-only", sizes_only,
               "for benchmarks: memory with sizes but without bytes, which cannot serve requests");
  uint64_t descriptor_bytes = 0;
  app.add_option("--descriptor-bytes", descriptor_bytes,
                 "for tests: size of a memory handle in bytes; default 0: that of the platform");
  app.add_flag("--list-fault-points", list, "print the fault points and exit");
  CLI11_PARSE(app, argc, argv);

  if (list) {
    for (const std::string& point : tangram::fault::Describe()) std::puts(point.c_str());
    return 0;
  }
  if (file.empty()) {
    std::fputs("tangram-agent: --config is required; see --help\n", stderr);
    return 2;
  }
  auto config = tangram::LoadConfig(file, overrides);
  if (!config.ok()) {
    std::fprintf(stderr, "tangram-agent: %s\n", config.status().message().c_str());
    return 2;
  }
  if (check) return 0;
  // A layout of 58 x 256 experts has 50,000 small blocks. With fast bins, glibc scans all of them
  // each time that a large block is freed (docs/performance.md, control-cost).
  mallopt(M_MXFAST, 0);
  tangram::StandBehindEngines();
  tangram::SetUpLog("agent", config->log_level, config->log_json,
                    {{"world", config->world}, {"pod", config->pod}});
  if (const tangram::Status armed = tangram::fault::Arm(faults); !armed.ok()) {
    std::fprintf(stderr, "tangram-agent: --faults: %s\n", armed.message().c_str());
    return 2;
  }
  tangram::fault::Follow(fault_dir);
  config->sizes_only = sizes_only;
  config->descriptor_bytes = descriptor_bytes;
  // Every thread inherits the mask, so that only sigwait gets the signals.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  signal(SIGPIPE, SIG_IGN);

  auto agent = tangram::Agent::Start(std::move(*config), tangram::MakeStoreHost);
  if (!agent.ok()) {
    spdlog::error("start failed error=\"{}\"", agent.status().message());
    std::fprintf(stderr, "tangram-agent: %s\n", agent.status().message().c_str());
    return 1;
  }
  int which = -1;
  while (which < 0) {
    constexpr timespec kLook{0, 200'000'000};
    which = sigtimedwait(&ends, nullptr, &kLook);
    const tangram::Status health = (*agent)->Health();
    if (health.ok()) continue;
    spdlog::critical("agent unhealthy, exiting for another agent to take over error=\"{}\"",
                     health.message());
    spdlog::shutdown();
    std::_Exit(1);  // no orderly shutdown: the GPU driver can do nothing more
  }
  spdlog::info("stopping signal={}", which);
  (*agent)->Stop();
  return 0;
}
