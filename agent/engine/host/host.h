// The parts of a rank's process around its step loop: its agent, the mesh, gateways' sessions.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "agent/engine/frontend/server.h"
#include "agent/engine/mesh/mesh.h"
#include "agent/engine/world/client_world.h"
#include "agent/net/credentials.h"

namespace tangram::engine {

class Host {
 public:
  struct Options {
    ClientWorld::Options world;  // token, mesh_endpoint and frontend are filled in
    std::string token_file;      // the agent writes it
    std::chrono::seconds agent_wait{60};
    std::string mesh_listen = "127.0.0.1:0", serve_listen = "127.0.0.1:0";  // host:port, 0: any
    std::string advertise;  // host under which others reach this rank; empty: that of serve_listen
    net::TlsFiles tls;
    bool insecure_fabric = false;
    std::string ready_file;  // JSON with the real endpoints, once attached; empty: none
  };

  // Listens, waits for the agent (until `stop`), attaches. Errors name the wrong option.
  static Result<std::unique_ptr<Host>> Open(Options options, const std::atomic<bool>& stop);
  ~Host();

  ClientWorld& world() { return *world_; }
  Mesh& mesh() { return *mesh_; }
  Inbox& inbox() { return inbox_; }
  Hub& hub() { return hub_; }
  // The engine is ready: admits gateways, and writes the ready file.
  Status Ready();

 private:
  explicit Host(Options options) : options_(std::move(options)), hub_(&inbox_) {}
  Status Listen();
  Status Attach(const std::atomic<bool>& stop);

  Options options_;
  Inbox inbox_;
  Hub hub_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<FrontendServer> server_;
  std::unique_ptr<ClientWorld> world_;
};

}  // namespace tangram::engine
