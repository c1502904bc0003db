#include "agent/engine/host/host.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "agent/net/address.h"

namespace tangram::engine {
namespace {

using Clock = std::chrono::steady_clock;

Result<std::string> ReadToken(const std::string& path) {
  std::ifstream file(path);
  std::string token;
  if (!std::getline(file, token) || token.empty()) {
    return Status{Code::kUnavailable, "token file: cannot read a token from \"" + path + "\""};
  }
  return token;
}

// The containers of a pod start concurrently: `attempt` is repeated until the agent is ready.
template <typename Attempt>
auto AwaitAgent(Clock::time_point until, const std::atomic<bool>& stop, Attempt attempt) {
  auto result = attempt();
  while (!result.ok() && result.status().code() == Code::kUnavailable && !stop &&
         Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    result = attempt();
  }
  return result;
}

// Writes atomically: a reader never sees a partial file.
Status WriteReady(const std::string& path, const nlohmann::json& content) {
  const std::string part = path + ".part";
  {
    std::ofstream file(part);
    file << content.dump() << "\n";
    if (!file.flush()) return {Code::kInvalid, "ready file: cannot write \"" + part + "\""};
  }
  if (std::rename(part.c_str(), path.c_str()) != 0) {
    return {Code::kInvalid, "ready file: cannot write \"" + path + "\""};
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<Host>> Host::Open(Options options, const std::atomic<bool>& stop) {
  std::unique_ptr<Host> out(new Host(std::move(options)));
  TANGRAM_RETURN_IF_ERROR(out->Listen());
  TANGRAM_RETURN_IF_ERROR(out->Attach(stop));
  return out;
}

Host::~Host() {
  if (server_ != nullptr) server_->Shutdown();
}

Status Host::Listen() {
  Result<net::HostPort> serve = net::ParseHostPort(options_.serve_listen);
  if (!serve.ok()) return serve.status();
  if (options_.advertise.empty()) options_.advertise = serve->host;
  Result<std::unique_ptr<Mesh>> mesh = Mesh::Listen(options_.mesh_listen);
  if (!mesh.ok()) return mesh.status();
  mesh_ = std::move(*mesh);
  auto server = FrontendServer::Start(options_.serve_listen, options_.tls, &hub_, &inbox_);
  if (!server.ok()) return server.status();
  server_ = std::move(*server);
  options_.world.mesh_endpoint = net::JoinHostPort(options_.advertise, mesh_->port());
  options_.world.frontend =
      net::JoinHostPort(options_.advertise, static_cast<uint16_t>(server_->port()));
  return OkStatus();
}

Status Host::Attach(const std::atomic<bool>& stop) {
  const auto until = Clock::now() + options_.agent_wait;
  Result<std::string> token =
      AwaitAgent(until, stop, [&] { return ReadToken(options_.token_file); });
  if (!token.ok()) return token.status();
  options_.world.token = *token;
  auto world = AwaitAgent(until, stop, [&] { return ClientWorld::Attach(options_.world); });
  if (!world.ok()) return world.status();
  world_ = std::move(*world);
  const tg_model& model = world_->model();
  std::shared_ptr<net::Credentials> credentials = net::Credentials::Insecure();
  if (options_.insecure_fabric) {
    spdlog::warn(
        "insecure_fabric: messages between engines are not encrypted, and their senders are not "
        "authenticated mesh_listen={}",
        options_.mesh_listen);
  } else {
    auto opened = net::Credentials::Open(options_.tls, model.world, "engine");
    if (!opened.ok()) return opened.status();
    credentials = std::move(*opened);
  }
  mesh_->SetSelf(model.world, model.member, std::move(credentials));
  return OkStatus();
}

Status Host::Ready() {
  const tg_model& model = world_->model();
  server_->SetWorldName(model.world);
  spdlog::info("engine serving member={} world={} address={} mesh={}", model.member, model.world,
               options_.world.frontend, options_.world.mesh_endpoint);
  if (options_.ready_file.empty()) return OkStatus();
  return WriteReady(options_.ready_file, {{"world", model.world},
                                          {"member", model.member},
                                          {"mesh", options_.world.mesh_endpoint},
                                          {"frontend", options_.world.frontend},
                                          {"pid", getpid()}});
}

}  // namespace tangram::engine
