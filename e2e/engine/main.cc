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
    // As a process that dies: all hear of it at once, by connections that close. An end in order
    // waits for gateways, and for a driver that may not answer any more.
    spdlog::error("{}", status.message());
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
  CLI::App app("The reference engine of one rank: attaches to its agent and serves.");
  app.add_option("--agent-socket", flags.host.world.agent_socket, "UNIX socket of the agent")
      ->required();
  app.add_option("--token-file", flags.host.token_file, "File with the pod's engine token")
      ->required();
  app.add_option("--agent-wait-seconds", flags.agent_wait_seconds,
                 "How long to wait for the agent to be there");
  app.add_option("--device", flags.host.world.device, "Which of the pod's ranks, from 0");
  app.add_option("--cuda-driver", flags.host.world.cuda_driver,
                 "Where the agent's memory is a GPU's: the driver, a name or a path");
  app.add_option("--mesh-listen", flags.host.mesh_listen, "host:port for other engines");
  app.add_option("--serve-listen", flags.host.serve_listen, "host:port for gateways");
  app.add_option("--advertise", flags.host.advertise, "Host that others reach this engine at");
  app.add_option("--tls-ca", flags.host.tls.ca, "PEM of the CA")->required();
  app.add_option("--tls-cert", flags.host.tls.cert, "PEM of this engine's certificate")->required();
  app.add_option("--tls-key", flags.host.tls.key, "PEM of its key")->required();
  app.add_flag("--insecure-fabric", flags.host.insecure_fabric,
               "Mesh in plain TCP, for networks that are closed to others");
  app.add_option("--block-tokens", limits.block_tokens, "Positions of a KV block")
      ->check(CLI::Range(1, 1024));
  app.add_option("--max-batch-tokens", limits.max_batch_tokens, "Rows of a step (prefill budget)")
      ->check(CLI::Range(1, 65536));
  app.add_option("--max-running", limits.max_running, "Requests that run at once at this home")
      ->check(CLI::Range(1, 65536));
  app.add_option("--max-waiting", limits.max_waiting, "Requests that wait; beyond it: busy");
  app.add_option("--max-model-len", limits.max_model_len, "Most tokens of prompt and answer");
  app.add_option("--kv-headroom", limits.headroom, "Share of KV pages kept for flips")
      ->check(CLI::Range(0.0, 0.9));
  app.add_flag("!--no-prefix-cache", limits.prefix_cache,
               "KV of a prompt's beginning goes with the last request that has it");
  app.add_option("--max-peer-timeout-ms", most_ms, "A peer silent for so long is gone, always")
      ->check(CLI::Range(100, 3600000));
  app.add_option("--min-peer-timeout-ms", least_ms,
                 "... and at the earliest; in between, the limit is learned from what steps take")
      ->check(CLI::Range(100, 3600000));
  app.add_option("--min-step-ms", step_ms, "A step with work takes at least so long")
      ->check(CLI::Range(0, 1000));
  app.add_option("--kv-ahead-ms", ahead_ms,
                 "A flip waits so long, while steps go on, for KV to be ahead of it; -1: all KV "
                 "moves in the flip")
      ->check(CLI::Range(-1, 60000));
  PaceOptions& pace = flags.engine.reference.pace;
  app.add_option("--pace", flags.pace, "A step lasts what this table says (tangram pace-table)");
  CLI::Option* paced[] = {
      app.add_option("--dilation", pace.dilation, "A second of the table lasts so many")
          ->check(CLI::Range(1e-3, 1e6)),
      app.add_option("--pace-noise", pace.noise, "Relative deviation of a paced step")
          ->check(CLI::Range(0.0, 0.5)),
      app.add_option("--pace-drift", pace.drift, "Steps become slower and faster by this share")
          ->check(CLI::Range(0.0, 0.9)),
      app.add_option("--pace-drift-seconds", drift_seconds, "... and back in so many seconds")
          ->check(CLI::Range(1, 86400)),
      app.add_option("--pace-seed", pace.seed, "Of noise and drift; the same at all ranks"),
      app.add_flag("--pace-imbalance", pace.imbalance,
                   "The experts' load counts as measured, on top of the table's routing")};
  for (CLI::Option* option : paced) option->needs("--pace");
  app.add_option("--ready-file", flags.host.ready_file,
                 "JSON with the real endpoints, once attached");
  app.add_option("--log-level", flags.log_level, "trace, debug, info, warn, error")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error"}));
  app.add_flag("--log-json", flags.log_json, "One JSON object per line");
  std::string faults, fault_dir;
  app.add_option("--faults", faults, "For tests: faults to arm (agent/base/fault.h)");
  app.add_option("--fault-dir", fault_dir, "For tests: directory that arms faults while it runs");
  const auto list = [] {
    for (const std::string& point : fault::Describe()) std::puts(point.c_str());
    throw CLI::Success();  // whatever else is missing
  };
  app.add_flag_callback("--list-fault-points", list, "List the named fault points, and end")
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
  spdlog::error("{}", status.message());
  return 1;
}

}  // namespace
}  // namespace tangram::engine

int main(int argc, char** argv) { return tangram::engine::Main(argc, argv); }
