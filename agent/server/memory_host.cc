#include "agent/server/memory_host.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "agent/device/platform.h"
#include "agent/gate/gate_page.h"
#include "agent/mover/data_server.h"
#include "agent/mover/node_transport.h"
#include "agent/mover/tcp_transport.h"
#include "agent/mover/wire_server.h"
#include "agent/mover/wire_transport.h"
#include "agent/store/rank_store.h"

namespace tangram {
namespace {

// Null: agents exchange bytes by TCP. kInvalid: the configured library is not available.
Result<std::shared_ptr<device::Wires>> OpenWires(const AgentConfig& config,
                                                 const device::Platform& platform) {
  if (config.comm_library == "none" || (config.comm_library == "auto" && config.sizes_only)) {
    return std::shared_ptr<device::Wires>();
  }
  const bool automatic = config.comm_library == "auto";
  if (automatic && !config.insecure_fabric) {
    spdlog::info(
        "transport between agents is TCP with TLS; comm_library auto requires insecure_fabric, "
        "name a comm library to use it unencrypted");
    return std::shared_ptr<device::Wires>();
  }
  auto wires = platform.OpenWires(
      {.name = automatic ? "" : config.comm_library, .library = config.comm_library_path});
  if (wires.ok()) {
    spdlog::info("comm library loaded, TCP for peers without it comm_library={}", (*wires)->kind());
    return std::shared_ptr<device::Wires>(std::move(wires).value());
  }
  if (!automatic) return wires.status();
  spdlog::info("no comm library, transport between agents is TCP error=\"{}\"",
               wires.status().message());
  return std::shared_ptr<device::Wires>();
}

class StoreHost final : public MemoryHost {
 public:
  static Result<std::unique_ptr<MemoryHost>> Make(const AgentConfig& config,
                                                  const std::vector<v1::Member>& members,
                                                  PeerClient* peers) {
    std::unique_ptr<StoreHost> host(new StoreHost);
    auto credentials = net::Credentials::Insecure();
    if (config.insecure_fabric) {
      spdlog::warn(
          "insecure_fabric: weights, KV and tokens are not encrypted, and data connections are not "
          "authenticated data_listen={}",
          config.data_listen);
    } else {
      auto opened = net::Credentials::Open(config.tls, config.world, "agent");
      if (!opened.ok()) return opened.status();
      credentials = std::move(opened).value();
    }
    auto platform = device::MakePlatform({.name = config.sizes_only ? "ghost" : config.device,
                                          .map_bytes = config.page_bytes,
                                          .hugetlb = config.hugetlb,
                                          .ordinal = static_cast<int>(config.device_ordinal),
                                          .driver = config.cuda_driver,
                                          .descriptor_bytes = config.descriptor_bytes,
                                          .sizes_only = config.sizes_only});
    if (!platform.ok()) return platform.status();
    const std::shared_ptr<const device::Platform> memory = std::move(platform).value();
    host->platform_ = memory;
    spdlog::info("memory platform opened platform={} pages=\"{}\"", memory->name(),
                 memory->pages());
    auto opened_wires = OpenWires(config, *memory);
    if (!opened_wires.ok()) return opened_wires.status();
    const std::shared_ptr<device::Wires> wires = std::move(opened_wires).value();
    auto checkpoint = loader::Checkpoint::Open(config.checkpoint, config.granule_rows,
                                               config.page_bytes, config.slab_format);
    if (!checkpoint.ok()) return checkpoint.status();
    host->checkpoint_ = std::move(checkpoint).value();
    const layout::GeometryView& geometry = host->checkpoint_->geometry();
    std::vector<std::unique_ptr<mover::Transport>> nearest_first;
    if (!config.node_socket_dir.empty()) {
      spdlog::warn(
          "node_socket_dir: agents of the same world on this node map the memory of these ranks "
          "and can read it until they end");
      nearest_first.push_back(
          std::make_unique<mover::NodeTransport>(config.node_socket_dir, credentials, memory));
    }
    std::function<void(std::unique_ptr<net::Stream>)> take_wire;
    if (wires != nullptr) {
      const auto turns = std::make_shared<mover::Turns>();
      nearest_first.push_back(std::make_unique<mover::WireTransport>(wires, turns, credentials));
      host->wire_ = wires->kind();
      host->wires_ = std::make_unique<mover::WireServer>(
          mover::WireServer::Options{.wires = wires, .turns = turns}, &host->grants_);
      take_wire = [server = host->wires_.get()](std::unique_ptr<net::Stream> stream) {
        server->Take(std::move(stream));
      };
    }
    host->fabric_ = config.nvlink_domain.empty() ? memory->fabric() : config.nvlink_domain;
    nearest_first.push_back(std::make_unique<mover::TcpTransport>(credentials));
    const auto transports = std::make_shared<mover::Transports>(std::move(nearest_first));
    const auto reads = std::make_shared<loader::SharedReads>(host->checkpoint_);
    for (const v1::Member& member : members) {
      store::RankStore::Options options;
      options.member = member.id();
      options.checkpoint = host->checkpoint_;
      options.platform = memory;
      options.revision = config.revision;
      options.banks = geometry.moe_layers() + config.spare_banks;
      options.pool_bytes = config.memory_bytes;
      options.kv_bytes = config.kv_bytes;
      options.control_bytes = GatePageBytes(geometry.moe_layers(), geometry.experts());
      if (!config.hashes_file.empty()) {
        options.hashes_file = fmt::format("{}-{}", config.hashes_file, host->stores_.size());
      }
      options.grants = &host->grants_;
      options.transports = transports;
      options.node = config.node;
      options.fabric = host->fabric_;
      options.rail = config.rail;
      options.reads = reads;
      options.load_threads = config.load_threads;
      options.staging_share = static_cast<double>(config.staging_percent) / 100;
      options.opener = [peers](const std::string& address, const v1::OpenPullRequest& request,
                               const std::stop_token& stop) {
        return peers->OpenPull(address, request, stop);
      };
      options.sibling = [host = host.get()](const std::string& id) -> store::RankStore* {
        for (const auto& store : host->stores_) {  // a pod has a few ranks
          if (store->member() == id) return store.get();
        }
        return nullptr;
      };
      auto made = store::RankStore::Create(std::move(options));
      if (!made.ok()) return made.status();
      host->stores_.push_back(std::move(made).value());
    }
    auto server = mover::DataServer::Start({.listen = config.data_listen,
                                            .node_socket_dir = config.node_socket_dir,
                                            .advertise = config.advertise,
                                            .credentials = std::move(credentials),
                                            .wires = std::move(take_wire)},
                                           &host->grants_);
    if (!server.ok()) return server.status();
    host->server_ = std::move(server).value();
    return std::unique_ptr<MemoryHost>(std::move(host));
  }

  const layout::GeometryView& geometry() const override { return checkpoint_->geometry(); }
  const std::string& config_json() const override { return checkpoint_->config_json(); }
  Status CheckSource() const override { return checkpoint_->StillReadable(); }
  Status CheckMemory() const override { return platform_->Health(); }
  RankMemory* memory(uint32_t device) override { return stores_.at(device).get(); }
  uint16_t data_port() const override { return server_->port(); }
  std::string wire() const override { return wire_; }
  std::string fabric() const override { return fabric_; }

 private:
  StoreHost() = default;

  std::shared_ptr<const device::Platform> platform_;
  std::shared_ptr<const loader::Checkpoint> checkpoint_;
  mover::Grants grants_;
  std::vector<std::unique_ptr<store::RankStore>> stores_;
  std::string wire_, fabric_;
  std::unique_ptr<mover::WireServer> wires_;
  std::unique_ptr<mover::DataServer> server_;  // last: no connection outlives the memory it reads
};

}  // namespace

Result<std::unique_ptr<MemoryHost>> MakeStoreHost(const AgentConfig& config,
                                                  const std::vector<v1::Member>& members,
                                                  PeerClient* peers) {
  return StoreHost::Make(config, members, peers);
}

}  // namespace tangram
