// tangram-engine: the reference engine of one rank.
#include <fmt/format.h>
#include <signal.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/engine/host/host.h"
#include "e2e/engine/step/engine.h"

namespace tangram::engine {
namespace {

std::atomic<bool> stop_asked{false};

struct Flags {
  Host::Options host;
  std::string log_level = "info";
  bool log_json = false;
  uint32_t agent_wait_seconds = 60;
  Engine::Options engine;
  std::string pace;
};

Status Serve(Flags flags) {
  flags.host.agent_wait = std::chrono::seconds(flags.agent_wait_seconds);
  const SchedulerLimits& limits = flags.engine.reference.limits;
  flags.host.world.block_tokens = limits.block_tokens;
  flags.host.world.settings =
      fmt::format("engine=tangram-engine\nversion={}\nmax_batch_tokens={}\nmax_model_len={}",
                  tg_version(), limits.max_batch_tokens, limits.max_model_len);
  const auto host = Host::Open(std::move(flags.host), stop_asked);
  if (!host.ok()) return host.status();
  Host& of = **host;
  const auto engine =
      Engine::Make(std::move(flags.engine), &of.world(), &of.mesh(), &of.inbox(), &of.hub());
  if (!engine.ok()) return engine.status();
  TANGRAM_RETURN_IF_ERROR(of.Ready());
  const Status status = (*engine)->Run(stop_asked);
  if (!status.ok()) {
    // Exit like a crashed process: closing connections inform all peers immediately. An orderly
    // shutdown waits for gateways, and for a driver that may no longer respond.
    spdlog::error("engine failed error=\"{}\"", status.message());
    spdlog::shutdown();
    std::_Exit(1);
  }
  return OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  SchedulerLimits& limits = flags.engine.reference.limits;
  uint64_t most_ms = static_cast<uint64_t>(flags.engine.turn.patience.most.count());
  uint64_t least_ms = static_cast<uint64_t>(flags.engine.turn.patience.least.count());
  uint64_t step_ms = 0;
  int64_t ahead_ms = flags.engine.turn.kv_ahead.count();
  uint32_t drift_seconds = 600;
  CLI::App app("Tangram reference engine: serves one rank with the memory of its agent.");
  app.add_option("--agent-socket", flags.host.world.agent_socket,
                 "path of the agent's UNIX socket, required")
      ->required();
  app.add_option("--token-file", flags.host.token_file,
                 "file with the engine token of the pod, required")
      ->required();
  app.add_option("--agent-wait-seconds", flags.agent_wait_seconds,
                 "time to wait for the agent at the start, in seconds");
  app.add_option("--device", flags.host.world.device, "index of the rank in the pod, from 0");
  app.add_option("--cuda-driver", flags.host.world.cuda_driver,
                 "name or path of the CUDA driver library, for agents with GPU memory");
  app.add_option("--mesh-listen", flags.host.mesh_listen,
                 "host:port of the mesh for other engines; port 0: any");
  app.add_option("--serve-listen", flags.host.serve_listen, "host:port for gateways; port 0: any");
  app.add_option("--advertise", flags.host.advertise,
                 "host name or address under which others reach this engine");
  app.add_option("--tls-ca", flags.host.tls.ca, "PEM file of the CA, required")->required();
  app.add_option("--tls-cert", flags.host.tls.cert,
                 "PEM file of this engine's certificate, required")
      ->required();
  app.add_option("--tls-key", flags.host.tls.key, "PEM file of its private key, required")
      ->required();
  app.add_flag("--insecure-fabric", flags.host.insecure_fabric,
               "mesh without TLS, for isolated networks only");
  app.add_option("--block-tokens", limits.block_tokens, "size of a KV block in tokens")
      ->check(CLI::Range(1, 1024));
  app.add_option("--max-batch-tokens", limits.max_batch_tokens,
                 "maximum number of tokens in a step (prefill budget)")
      ->check(CLI::Range(1, 65536));
  app.add_option("--max-running", limits.max_running,
                 "maximum number of running requests of this rank")
      ->check(CLI::Range(1, 65536));
  app.add_option("--max-waiting", limits.max_waiting,
                 "maximum number of waiting requests; further ones are rejected as busy");
  app.add_option("--max-model-len", limits.max_model_len,
                 "maximum number of tokens of prompt and answer");
  app.add_option("--kv-headroom", limits.headroom,
                 "share of the KV pages that is reserved for flips, 0 to 0.9")
      ->check(CLI::Range(0.0, 0.9));
  app.add_flag("!--no-prefix-cache", limits.prefix_cache,
               "disable the cache of common prompt prefixes");
  app.add_option("--max-peer-timeout-ms", most_ms,
                 "maximum timeout for an unresponsive peer, in milliseconds")
      ->check(CLI::Range(100, 3600000));
  app.add_option("--min-peer-timeout-ms", least_ms,
                 "minimum timeout for an unresponsive peer, in milliseconds; between the two it "
                 "follows the step times")
      ->check(CLI::Range(100, 3600000));
  app.add_option("--min-step-ms", step_ms, "minimum duration of a step with work, in milliseconds")
      ->check(CLI::Range(0, 1000));
  app.add_option("--kv-ahead-ms", ahead_ms,
                 "maximum time that a flip waits, while steps continue, for KV copies ahead of it, "
                 "in milliseconds; -1: no copies ahead")
      ->check(CLI::Range(-1, 60000));
  PaceOptions& pace = flags.engine.reference.pace;
  app.add_option("--pace", flags.pace,
                 "file with a table of step durations to reproduce (tangram pace-table)");
  CLI::Option* paced[] = {
      app.add_option("--dilation", pace.dilation, "factor on the durations of the table")
          ->check(CLI::Range(1e-3, 1e6)),
      app.add_option("--pace-noise", pace.noise,
                     "relative standard deviation of a paced step, 0 to 0.5")
          ->check(CLI::Range(0.0, 0.5)),
      app.add_option("--pace-drift", pace.drift,
                     "amplitude of a periodic drift of the step duration, 0 to 0.9")
          ->check(CLI::Range(0.0, 0.9)),
      app.add_option("--pace-drift-seconds", drift_seconds, "period of the drift in seconds")
          ->check(CLI::Range(1, 86400)),
      app.add_option("--pace-seed", pace.seed,
                     "seed of noise and drift; must be the same on all ranks"),
      app.add_flag("--pace-imbalance", pace.imbalance,
                   "apply the measured load of the experts on top of the routing of the table")};
  for (CLI::Option* option : paced) option->needs("--pace");
  app.add_option("--ready-file", flags.host.ready_file,
                 "file to write after the attach: JSON with the actual endpoints");
  app.add_option("--log-level", flags.log_level, "log level: trace, debug, info, warn, error")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error"}));
  app.add_flag("--log-json", flags.log_json, "log one JSON object per line");
  std::string faults, fault_dir;
  app.add_option("--faults", faults, "for tests: faults to arm at the start (agent/base/fault.h)");
  app.add_option("--fault-dir", fault_dir, "for tests: directory of faults to arm at run time");
  const auto list = [] {
    for (const std::string& point : fault::Describe()) std::puts(point.c_str());
    throw CLI::Success();  // even if required options are missing
  };
  app.add_flag_callback("--list-fault-points", list, "print the fault points and exit")
      ->trigger_on_parse();
  CLI11_PARSE(app, argc, argv);
  if (const Status armed = fault::Arm(faults); !armed.ok()) {
    std::fprintf(stderr, "tangram-engine: --faults: %s\n", armed.message().c_str());
    return 2;
  }
  fault::Follow(fault_dir);

  flags.engine.turn.patience.most = std::chrono::milliseconds(most_ms);
  if (!flags.pace.empty()) {
    Result<PaceTable> table = PaceTable::Open(flags.pace);
    if (!table.ok()) {
      std::fprintf(stderr, "tangram-engine: --pace: %s\n", table.status().message().c_str());
      return 2;
    }
    pace.table = std::make_shared<PaceTable>(std::move(*table));
    pace.drift_period = std::chrono::seconds(drift_seconds);
    pace.most = flags.engine.turn.patience.most;
  }
  flags.engine.turn.kv_ahead = std::chrono::milliseconds(ahead_ms);
  flags.engine.turn.least_step = std::chrono::milliseconds(step_ms);
  flags.engine.turn.patience.least = std::chrono::milliseconds(std::min(least_ms, most_ms));
  tangram::SetUpLog("engine", flags.log_level, flags.log_json,
                    {{"device", std::to_string(flags.host.world.device)}});
  struct sigaction action {};
  action.sa_handler = [](int) { stop_asked.store(true); };
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);

  const Status status = Serve(std::move(flags));
  if (status.ok()) return 0;
  spdlog::error("engine failed error=\"{}\"", status.message());
  return 1;
}

}  // namespace
}  // namespace tangram::engine

int main(int argc, char** argv) { return tangram::engine::Main(argc, argv); }
