// The Serve service: gRPC over mTLS, one session per gateway.
#pragma once

#include <memory>
#include <string>

#include "agent/base/status.h"
#include "agent/engine/frontend/hub.h"
#include "agent/net/credentials.h"

namespace grpc {
class Server;
}

namespace tangram::engine {

class FrontendServer {
 public:
  // Listens on host:port (port 0: any). Clients need a certificate of the same CA. Sessions
  // are answered UNAVAILABLE until SetWorldName.
  static Result<std::unique_ptr<FrontendServer>> Start(const std::string& listen,
                                                       const net::TlsFiles& tls, Hub* hub,
                                                       Inbox* inbox);
  ~FrontendServer();

  int port() const { return port_; }
  void SetWorldName(const std::string& world);
  // Ends all sessions. Called once, before the hub is destroyed.
  void Shutdown();

 private:
  class Service;
  FrontendServer();

  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace tangram::engine
