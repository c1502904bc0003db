// tangram-engine: the reference engine of one rank.
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/net/address.h"
#include "e2e/engine/frontend/server.h"
#include "e2e/engine/step/engine.h"
#include "e2e/engine/world/client_world.h"

namespace tangram::engine {
namespace {

std::atomic<bool> stop_asked{false};

struct Flags {
  ClientWorld::Options world;
  std::string token_file, mesh_listen = "127.0.0.1:0", serve_listen = "127.0.0.1:0";
  std::string advertise, ready_file, log_level = "info";
  bool log_json = false;
  uint32_t agent_wait_seconds = 60;
  net::TlsFiles tls;
  bool insecure_fabric = false;
  Engine::Options engine;
  std::string pace;
};

Result<std::string> ReadToken(const std::string& path) {
  std::ifstream file(path);
  std::string token;
  if (!std::getline(file, token) || token.empty()) {
    return Status{Code::kUnavailable, "--token-file: cannot read a token from \"" + path + "\""};
  }
  return token;
}

// The containers of a pod start side by side: `attempt` is repeated until the agent is there.
template <typename Attempt>
auto AwaitAgent(std::chrono::steady_clock::time_point until, Attempt attempt) {
  auto result = attempt();
  while (!result.ok() && result.status().code() == Code::kUnavailable && !stop_asked &&
         std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    result = attempt();
  }
  return result;
}

// Written whole or not at all: a reader that sees the file sees all of it.
Status WriteReady(const std::string& path, const nlohmann::json& content) {
  if (path.empty()) return OkStatus();
  const std::string part = path + ".part";
  {
    std::ofstream file(part);
    file << content.dump() << "\n";
    if (!file.flush()) return {Code::kInvalid, "--ready-file: cannot write \"" + part + "\""};
  }
  if (std::rename(part.c_str(), path.c_str()) != 0) {
    return {Code::kInvalid, "--ready-file: cannot write \"" + path + "\""};
  }
  return OkStatus();
}

Result<std::shared_ptr<net::Credentials>> CredentialsOf(const Flags& flags,
                                                        const std::string& world) {
  if (!flags.insecure_fabric) return net::Credentials::Open(flags.tls, world, "engine");
  spdlog::warn(
      "--insecure-fabric: what engines tell each other crosses the network in plain text, and "
      "whoever reaches {} is believed to be an engine",
      flags.mesh_listen);
  return net::Credentials::Insecure();
}

Status Serve(Flags flags) {
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::seconds(flags.agent_wait_seconds);
  Result<std::string> token = AwaitAgent(until, [&] { return ReadToken(flags.token_file); });
  if (!token.ok()) return token.status();
  Result<net::HostPort> serve = net::ParseHostPort(flags.serve_listen);
  if (!serve.ok()) return serve.status();
  if (flags.advertise.empty()) flags.advertise = serve->host;

  Inbox inbox;
  Hub hub(&inbox);
  Result<std::unique_ptr<Mesh>> mesh = Mesh::Listen(flags.mesh_listen);
  if (!mesh.ok()) return mesh.status();
  Result<std::unique_ptr<FrontendServer>> server =
      FrontendServer::Start(flags.serve_listen, flags.tls, &hub, &inbox);
  if (!server.ok()) return server.status();

  flags.world.token = *token;
  flags.world.mesh_endpoint = net::JoinHostPort(flags.advertise, (*mesh)->port());
  flags.world.frontend =
      net::JoinHostPort(flags.advertise, static_cast<uint16_t>((*server)->port()));
  flags.world.block_tokens = flags.engine.limits.block_tokens;
  Result<std::unique_ptr<ClientWorld>> world =
      AwaitAgent(until, [&] { return ClientWorld::Attach(flags.world); });
  if (!world.ok()) return world.status();
  const tg_model& model = (*world)->model();
  Result<std::shared_ptr<net::Credentials>> credentials = CredentialsOf(flags, model.world);
  if (!credentials.ok()) return credentials.status();
  (*mesh)->SetSelf(model.world, model.member, std::move(*credentials));
  Result<std::unique_ptr<Engine>> engine =
      Engine::Make(flags.engine, world->get(), mesh->get(), &inbox, &hub);
  if (!engine.ok()) return engine.status();
  (*server)->SetWorldName(model.world);
  TANGRAM_RETURN_IF_ERROR(WriteReady(flags.ready_file, {{"world", model.world},
                                                        {"member", model.member},
                                                        {"mesh", flags.world.mesh_endpoint},
                                                        {"frontend", flags.world.frontend},
                                                        {"pid", getpid()}}));
  spdlog::info("engine of {} in world {}: serving at {}, mesh at {}", model.member, model.world,
               flags.world.frontend, flags.world.mesh_endpoint);
  const Status status = (*engine)->Run(stop_asked);
  if (!status.ok()) {
    // As a process that dies: all hear of it at once, by connections that close. An end in order
    // waits for gateways, and for a driver that may not answer any more.
    spdlog::error("{}", status.message());
    spdlog::shutdown();
    std::_Exit(1);
  }
  (*server)->Shutdown();
  return OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  SchedulerLimits& limits = flags.engine.limits;
  uint64_t most_ms = static_cast<uint64_t>(flags.engine.patience.most.count());
  uint64_t least_ms = static_cast<uint64_t>(flags.engine.patience.least.count());
  uint64_t step_ms = 0;
  uint32_t drift_seconds = 600;
  CLI::App app("The reference engine of one rank: attaches to its agent and serves.");
  app.add_option("--agent-socket", flags.world.agent_socket, "UNIX socket of the agent")
      ->required();
  app.add_option("--token-file", flags.token_file, "File with the pod's engine token")->required();
  app.add_option("--agent-wait-seconds", flags.agent_wait_seconds,
                 "How long to wait for the agent to be there");
  app.add_option("--device", flags.world.device, "Which of the pod's ranks, from 0");
  app.add_option("--cuda-driver", flags.world.cuda_driver,
                 "Where the agent's memory is a GPU's: the driver, a name or a path");
  app.add_option("--mesh-listen", flags.mesh_listen, "host:port for other engines");
  app.add_option("--serve-listen", flags.serve_listen, "host:port for gateways");
  app.add_option("--advertise", flags.advertise, "Host that others reach this engine at");
  app.add_option("--tls-ca", flags.tls.ca, "PEM of the CA")->required();
  app.add_option("--tls-cert", flags.tls.cert, "PEM of this engine's certificate")->required();
  app.add_option("--tls-key", flags.tls.key, "PEM of its key")->required();
  app.add_flag("--insecure-fabric", flags.insecure_fabric,
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
  app.add_option("--exchange-timeout-ms", most_ms, "A peer silent for so long is gone, always")
      ->check(CLI::Range(100, 3600000));
  app.add_option("--least-timeout-ms", least_ms,
                 "... and at the earliest; in between, the limit is learned from what steps take")
      ->check(CLI::Range(100, 3600000));
  app.add_option("--least-step-ms", step_ms, "A step with work takes at least so long")
      ->check(CLI::Range(0, 1000));
  PaceOptions& pace = flags.engine.pace;
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
  app.add_option("--ready-file", flags.ready_file, "JSON with the real endpoints, once attached");
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

  flags.engine.patience.most = std::chrono::milliseconds(most_ms);
  if (!flags.pace.empty()) {
    Result<PaceTable> table = PaceTable::Open(flags.pace);
    if (!table.ok()) {
      std::fprintf(stderr, "tangram-engine: --pace: %s\n", table.status().message().c_str());
      return 2;
    }
    pace.table = std::make_shared<PaceTable>(std::move(*table));
    pace.drift_period = std::chrono::seconds(drift_seconds);
    pace.most = flags.engine.patience.most;
  }
  flags.engine.least_step = std::chrono::milliseconds(step_ms);
  flags.engine.patience.least = std::chrono::milliseconds(std::min(least_ms, most_ms));
  tangram::SetUpLog("engine", flags.log_level, flags.log_json,
                    {{"device", std::to_string(flags.world.device)}});
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
