#include "agent/engine/frontend/server.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/grpcpp.h>

#include <chrono>

#include "agent/engine/frontend/session.h"
#include "agent/net/grpc_credentials.h"

namespace tangram::engine {

namespace {
// Bytes of one message. gRPC ends the whole session, with every request on it, when a message is
// larger. Gateways send at most 48 MiB (maxSubmit in operator/internal/gateway).
constexpr int kMaxMessage = 64 << 20;
}  // namespace

class FrontendServer::Service final : public v1::Serve::CallbackService {
 public:
  Service(Hub* hub, Inbox* inbox) : hub_(hub), inbox_(inbox) {}

  grpc::ServerBidiReactor<v1::ServeRequest, v1::ServeReply>* Session(
      grpc::CallbackServerContext* context) override {
    std::string peer;
    for (const grpc::string_ref& uri :
         context->auth_context()->FindPropertyValues(GRPC_PEER_SPIFFE_ID_PROPERTY_NAME)) {
      peer.assign(uri.data(), uri.size());
    }
    std::lock_guard lock(mu_);
    return engine::Session::Start(world_, std::move(peer), hub_, inbox_).get();
  }
  void SetWorld(const std::string& world) {
    std::lock_guard lock(mu_);
    world_ = world;
  }

 private:
  Hub* hub_;
  Inbox* inbox_;
  std::mutex mu_;
  std::string world_;
};

FrontendServer::FrontendServer() = default;
FrontendServer::~FrontendServer() { Shutdown(); }

Result<std::unique_ptr<FrontendServer>> FrontendServer::Start(const std::string& listen,
                                                              const net::TlsFiles& tls, Hub* hub,
                                                              Inbox* inbox) {
  const auto credentials = net::GrpcServer(tls);
  if (!credentials.ok()) return credentials.status();

  std::unique_ptr<FrontendServer> out(new FrontendServer);
  out->service_ = std::make_unique<Service>(hub, inbox);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(listen, *credentials, &out->port_);
  builder.RegisterService(out->service_.get());
  builder.SetMaxReceiveMessageSize(kMaxMessage);
  // Two engines on one port would each get half of the sessions.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Ends streams to a client that is cut off or unresponsive.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  out->server_ = builder.BuildAndStart();
  if (out->server_ == nullptr || out->port_ == 0) {
    return Status{Code::kInvalid, "cannot listen on " + listen +
                                      ": the port is in use or the address is not of this host"};
  }
  return out;
}

void FrontendServer::SetWorldName(const std::string& world) { service_->SetWorld(world); }

void FrontendServer::Shutdown() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
  server_->Wait();
  server_.reset();
}

}  // namespace tangram::engine
