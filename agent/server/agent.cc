#include "agent/server/agent.h"

#include <fmt/format.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "agent/net/address.h"
#include "agent/net/grpc_credentials.h"
#include "agent/server/files.h"

namespace tangram {
namespace {

constexpr auto kCheckSource = std::chrono::seconds(1);

}  // namespace

Result<std::unique_ptr<Agent>> Agent::Start(AgentConfig config, const MemoryFactory& memory) {
  auto agent = std::unique_ptr<Agent>(new Agent(std::move(config)));
  TANGRAM_RETURN_IF_ERROR(agent->Open(memory));
  return agent;
}

Agent::~Agent() { Stop(); }

Status Agent::Open(const MemoryFactory& make_memory) {
  if (config_.incarnation == 0) {
    config_.incarnation = static_cast<uint64_t>(
        std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
  }
  for (uint32_t device = 0; device < config_.ranks; ++device) {
    v1::Member& member = members_.emplace_back();
    member.set_id(fmt::format("{}/{}/{}", config_.pod_uid, device, config_.incarnation));
    member.set_node(config_.node);
    member.set_pod(config_.pod);
    member.set_link(config_.link);
  }
  auto channel = net::GrpcChannel(config_.tls);
  if (!channel.ok()) return channel.status();
  auto token = ReadOrMakeToken(config_.engine_token_file);
  if (!token.ok()) return token.status();

  peers_ = std::make_unique<PeerClient>(config_.world, std::move(*channel));
  auto memory = make_memory(config_, members_, peers_.get());
  if (!memory.ok()) return memory.status();
  // A blocked check of the checkpoint may outlive this (SourceWatch).
  memory_ = {memory->release(), [peers = peers_](MemoryHost* host) { delete host; }};
  for (v1::Member& member : members_) {
    member.set_nvlink_domain(memory_->fabric());
    member.set_rail(config_.rail);
  }
  data_address_ = net::JoinHostPort(config_.advertise, memory_->data_port());
  engines_ = std::make_unique<EngineServer>(EngineServer::Options{
      config_.engine_socket, std::move(*token), memory_->geometry().proto().slab_format()});
  TANGRAM_RETURN_IF_ERROR(Listen());
  if (!config_.metrics_listen.empty()) {
    // civetweb's syntax for all addresses. (Debian's is built without IPv6.)
    const auto listen = net::ParseHostPort(config_.metrics_listen);
    if (!listen.ok()) return listen.status();
    const bool all = listen->host == "::";
    try {  // civetweb reports a taken port by an exception
      exposer_ = std::make_unique<prometheus::Exposer>(
          all ? fmt::format("+{}", listen->port) : config_.metrics_listen, 1);
    } catch (const std::exception& e) {
      return {Code::kInvalid, fmt::format("metrics_listen: cannot listen on {}: {}",
                                          config_.metrics_listen, e.what())};
    }
    metrics_ = std::make_shared<AgentMetrics>(executor_.get(), config_.tls.cert);
    exposer_->RegisterCollectable(metrics_);
    metrics_address_ = net::JoinHostPort(
        config_.advertise, static_cast<uint16_t>(exposer_->GetListeningPorts().at(0)));
  }
  return WriteReady();
}

Status Agent::Listen() {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  const auto credentials = net::GrpcServer(config_.tls);
  if (!credentials.ok()) return credentials.status();

  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(config_.listen, *credentials, &port);
  builder.SetMaxReceiveMessageSize(64 << 20);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a taken port is an error
  // Ends a stream to a client that is cut off or unresponsive.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);

  Executor::Options executor;
  executor.world = config_.world;
  executor.pod = config_.pod;
  executor.revision = config_.revision;
  executor.config_json = memory_->config_json();
  executor.address.set_data(data_address_);
  executor.address.set_comm_library(memory_->wire());
  executor.abort_wait = config_.abort_wait;
  executor.max_step_stretch = config_.max_step_stretch_percent / 100.;
  executor.after_death = PresenceFile::LeftBehind(config_.in_world_file);
  std::vector<Executor::Local> ranks;
  for (uint32_t device = 0; device < config_.ranks; ++device) {
    ranks.push_back({members_[device], memory_->memory(device)});
  }
  executor_ = std::make_unique<Executor>(std::move(executor), memory_->geometry(), std::move(ranks),
                                         engines_.get(), peers_.get());
  agent_service_ = std::make_unique<AgentService>(config_.world, executor_.get());
  peer_service_ = std::make_unique<PeerService>(config_.world, executor_.get());
  builder.RegisterService(agent_service_.get());
  builder.RegisterService(peer_service_.get());
  server_ = builder.BuildAndStart();
  if (!server_ || port == 0) {
    return {
        Code::kInvalid,
        fmt::format(
            "listen: cannot listen on {}: the port is in use or the address is not of this host",
            config_.listen)};
  }
  address_ = net::JoinHostPort(config_.advertise, static_cast<uint16_t>(port));
  executor_->SetAddress(address_);
  if (!config_.in_world_file.empty()) {
    auto presence = PresenceFile::Follow(config_.in_world_file, executor_.get());
    if (!presence.ok()) return presence.status();
    presence_ = std::move(*presence);
  }
  auto source = SourceWatch::Start(
      [memory = memory_] { return memory->CheckSource(); },
      [this](const std::string& why) { executor_->SetCheckpointError(why); }, kCheckSource);
  if (!source.ok()) return source.status();
  source_ = std::move(source).value();
  TANGRAM_RETURN_IF_ERROR(engines_->Start(executor_.get()));
  spdlog::info("agent listening world={} pod={} address={} data={}", config_.world, config_.pod,
               address_, data_address_);
  return OkStatus();
}

Status Agent::WriteReady() {
  if (config_.ready_file.empty()) return OkStatus();
  nlohmann::json ready = {{"agent", address_},
                          {"data", data_address_},
                          {"metrics", metrics_address_},
                          {"engine_socket", config_.engine_socket},
                          {"pid", getpid()}};
  for (const v1::Member& member : members_) ready["members"].push_back(member.id());
  return WriteFileAtomically(config_.ready_file, ready.dump() + "\n", 0644);
}

void Agent::Stop() {
  if (stopped_) return;
  stopped_ = true;
  if (agent_service_) agent_service_->Stop();
  if (server_) {
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
    server_->Wait();
  }
  if (exposer_ && metrics_) exposer_->RemoveCollectable(metrics_);
  exposer_.reset();
  if (engines_) engines_->Stop();
  presence_.reset();
  source_.reset();
  // The executor joins its workers before their memory is destroyed.
  executor_.reset();
}

}  // namespace tangram
