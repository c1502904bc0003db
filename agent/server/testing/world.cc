#include "agent/server/testing/world.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>

#include "agent/layout/testing.h"
#include "agent/net/address.h"
#include "agent/server/files.h"

namespace tangram::testing {
namespace {

constexpr uint32_t kSpareBanks = 1;

}  // namespace

v1::Geometry TestGeometry() { return layout::testing::SmallGeometry(3, 7, 6); }

v1::Layout ExpertLayout(const std::vector<v1::Member>& members, uint64_t epoch, bool last_tensor) {
  const auto geometry = layout::GeometryView::Make(TestGeometry());
  const auto ranks = static_cast<uint32_t>(members.size());
  v1::Layout out;
  out.set_world("test");
  out.set_epoch(epoch);
  out.set_revision("r1");
  out.set_geometry_fingerprint(geometry->fingerprint());
  out.set_banks(geometry->moe_layers() + kSpareBanks);
  for (uint32_t r = 0; r < ranks; ++r) {
    *out.add_members() = members[r];
    out.mutable_dense()->add_ranks(r);
  }
  const uint32_t layers = geometry->proto().layers();
  for (uint32_t l = 0; l < layers; ++l) {
    v1::LayerLayout* layer = out.add_layers();
    layer->set_layer(l);
    const bool tensor = last_tensor && l + 1 == layers;
    layer->set_bank_offset(tensor ? 1 : 0);
    layer->set_expert_group_size(tensor ? ranks : 1);
    for (uint32_t r = 0; r < (tensor ? 1 : ranks); ++r) {
      v1::ExpertGroup* group = layer->add_experts();
      if (!tensor) group->add_ranks(r);
      for (uint32_t i = 0; tensor && i < ranks; ++i) group->add_ranks(i);
      for (uint32_t e = 0; e < geometry->experts(); ++e) {
        if (tensor || e % ranks == r) group->add_slots(e + 1);
      }
    }
    layer->set_attention_group_size(1);
    for (uint32_t r = 0; r < ranks; ++r) {
      v1::AttentionGroup* group = layer->add_attention();
      group->add_ranks(r);
      group->add_query_head_bounds(0);
      group->add_query_head_bounds(geometry->proto().query_heads());
    }
  }
  v1::PipelineStage* stage = out.add_stages();
  stage->set_layer_count(layers);
  for (uint32_t r = 0; r < ranks; ++r) stage->add_ranks(r);
  return out;
}

World::World(const std::vector<uint32_t>& ranks, uint64_t memory_bytes, const std::string& host,
             v1::Geometry geometry)
    : geometry_(std::move(geometry)) {
  // Made before threads start: its library is not instrumented, so TSan would not see how its first
  // users synchronize.
  spdlog::default_logger();
  char name[] = "/tmp/tangram-world-XXXXXX";
  dir_ = mkdtemp(name);
  for (size_t i = 0; i < ranks.size(); ++i) {
    AgentConfig config;
    config.world = "test";
    config.pod = "pod-" + std::to_string(i);
    config.pod_uid = "uid-" + std::to_string(i);
    config.node = "node";
    config.incarnation = 1;
    config.ranks = ranks[i];
    config.memory_bytes = memory_bytes;
    config.kv_bytes = 1 << 16;
    config.spare_banks = kSpareBanks;
    config.granule_rows = 8;
    config.abort_wait = std::chrono::hours(1);  // a test that waits for it would time out
    config.checkpoint = "none";
    config.revision = "r1";
    config.listen = config.data_listen = net::JoinHostPort(host, 0);
    if (host == "::") config.metrics_listen = config.listen;
    config.advertise = host;
    config.engine_socket = socket(i);
    config.engine_token_file = dir_ + "/" + std::to_string(i) + ".token";
    config.ready_file = dir_ + "/" + std::to_string(i) + ".json";
    config.in_world_file = dir_ + "/" + std::to_string(i) + ".in-world";
    config.tls = ca_.Write("spiffe://tangram/test/agent/" + config.pod, dir_, config.pod);
    auto agent = Agent::Start(std::move(config), TestHostOf(geometry_));
    if (!agent.ok()) {
      ADD_FAILURE() << agent.status().message();
      std::abort();
    }
    agents_.push_back(std::move(*agent));
    members_.push_back(agents_.back()->members());
  }
}

World::~World() {
  for (auto& agent : agents_) agent->Stop();
  agents_.clear();
  std::filesystem::remove_all(dir_);
}

std::string World::token(size_t i) const {
  return *ReadOrMakeToken(dir_ + "/" + std::to_string(i) + ".token");
}

std::vector<v1::Member> World::members() const {
  std::vector<v1::Member> out;
  for (const auto& members : members_) out.insert(out.end(), members.begin(), members.end());
  return out;
}

std::vector<v1::PeerAddress> World::peers() const {
  std::vector<v1::PeerAddress> out;
  for (size_t i = 0; i < agents_.size(); ++i) {
    for (const v1::Member& member : members_[i]) {
      v1::PeerAddress& peer = out.emplace_back();
      peer.set_rank(static_cast<uint32_t>(out.size() - 1));
      peer.set_member(member.id());
      peer.set_agent(agents_[i]->address());
      peer.set_engine("mesh-" + std::to_string(peer.rank()));
    }
  }
  return out;
}

std::unique_ptr<v1::Agent::Stub> World::Stub(size_t i, const std::string& who,
                                             const TestCa* ca) const {
  const net::TlsTexts tls = (ca == nullptr ? ca_ : *ca).Issue("spiffe://tangram/test/" + who);
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = ca_.Issue("x").ca;
  options.pem_cert_chain = tls.cert;
  options.pem_private_key = tls.key;
  grpc::ChannelArguments args;
  args.SetSslTargetNameOverride("agent.test");
  return v1::Agent::NewStub(
      grpc::CreateCustomChannel(agents_[i]->address(), grpc::SslCredentials(options), args));
}

v1::Header World::HeaderOf(uint64_t epoch, uint64_t attempt) {
  v1::Header header;
  header.set_world("test");
  header.set_epoch(epoch);
  header.set_attempt(attempt);
  return header;
}

v1::PrepareRequest World::Request(size_t i, v1::FlipKind kind, uint64_t attempt,
                                  const v1::Layout& target) const {
  v1::PrepareRequest out;
  *out.mutable_header() = HeaderOf(target.epoch() - 1, attempt);
  *out.mutable_geometry() = geometry_;
  out.set_kind(kind);
  out.set_target_epoch(target.epoch());
  out.set_target_hash(layout::HashOf(target));
  *out.mutable_layout() = target;
  for (const v1::PeerAddress& peer : peers()) *out.add_peers() = peer;
  for (const v1::Member& member : members_[i]) {
    v1::RankPart* part = out.add_parts();
    part->set_member(member.id());
    part->set_rank(static_cast<uint32_t>(layout::RankOf(target, member.id())));
  }
  return out;
}

v1::StatusResponse World::StatusOf(size_t i) const {
  grpc::ClientContext context;
  v1::StatusRequest request;
  request.set_world("test");
  v1::StatusResponse response;
  const grpc::Status status = Driver(i)->Status(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

bool World::WaitPhase(v1::Phase phase) const {
  return Eventually([&] {
    for (size_t i = 0; i < agents_.size(); ++i) {
      const v1::StatusResponse status = StatusOf(i);
      for (const v1::RankStatus& rank : status.ranks()) {
        if (rank.transition().phase() != phase) return false;
      }
    }
    return true;
  });
}

bool World::WaitEpoch(uint64_t epoch) const {
  return Eventually([&] {
    for (size_t i = 0; i < agents_.size(); ++i) {
      if (StatusOf(i).epoch() != epoch) return false;
    }
    return true;
  });
}

bool World::PrepareAll(v1::FlipKind kind, uint64_t attempt, const v1::Layout& target) {
  std::atomic<bool> ok{true};
  std::vector<std::jthread> calls;
  for (size_t i = 0; i < agents_.size(); ++i) {
    calls.emplace_back([&, i] {
      grpc::ClientContext context;
      v1::PrepareResponse response;
      const auto status =
          Driver(i)->Prepare(&context, Request(i, kind, attempt, target), &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
      if (!status.ok()) ok = false;
    });
  }
  calls.clear();
  return ok;
}

bool World::StageAll(const v1::Header& header) {
  for (size_t i = 0; i < agents_.size(); ++i) {
    grpc::ClientContext context;
    v1::StageRequest request;
    *request.mutable_header() = header;
    v1::StageResponse response;
    const auto status = Driver(i)->Stage(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    if (!status.ok()) return false;
  }
  return WaitPhase(v1::PHASE_STAGED);
}

bool World::Take(v1::FlipKind kind, uint64_t attempt, const v1::Layout& target) {
  const v1::Header header = HeaderOf(target.epoch() - 1, attempt);
  if (!PrepareAll(kind, attempt, target) || !StageAll(header)) return false;
  for (size_t i = 0; i < agents_.size(); ++i) {
    grpc::ClientContext context;
    v1::PermitRequest request;
    *request.mutable_header() = header;
    v1::PermitResponse response;
    const auto status = Driver(i)->Permit(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    if (!status.ok()) return false;
  }
  return WaitPhase(v1::PHASE_FLIPPED) && WaitEpoch(target.epoch());
}

Engines::Engines(const World& world) {
  size_t ranks = 0;
  for (size_t i = 0; i < world.size(); ++i)
    ranks += static_cast<size_t>(world.StatusOf(i).ranks_size());
  for (size_t rank = 0; rank < ranks; ++rank) clients_.push_back(Attach(world, rank));
  thread_ = std::jthread([this](std::stop_token stop) { Run(std::move(stop)); });
}

tg_options EngineOptions(const std::string& socket, const char* token, uint32_t device,
                         const char* mesh, const char* frontend) {
  tg_options options = TG_INIT(tg_options);
  options.socket_path = socket.c_str();
  options.token = token;
  options.device = device;
  options.mesh_endpoint = mesh;
  options.frontend = frontend;
  options.mixed_layouts = 1;
  options.kv_block_tokens = 16;
  return options;
}

tg_client* Engines::Attach(const World& world, size_t rank) {
  size_t agent = 0, device = rank;
  while (device >= world.ranks_of(agent)) device -= world.ranks_of(agent++);
  const std::string path = world.socket(agent), token = world.token(agent);
  const tg_options options = EngineOptions(path, token.c_str(), static_cast<uint32_t>(device),
                                           "127.0.0.1:1", "127.0.0.1:2");
  tg_client* client = nullptr;
  tg_error error = TG_INIT(tg_error);
  const bool attached = Eventually([&] { return tg_attach(&options, &client, &error) == TG_OK; });
  EXPECT_TRUE(attached) << error.message;
  return client;
}

void Engines::Leave(size_t rank) {
  const std::scoped_lock lock(mu_);
  tg_detach(clients_[rank]);
  clients_[rank] = nullptr;
}

void Engines::InAStep(const std::function<void()>& what) {
  const std::scoped_lock lock(mu_);
  what();
}

void Engines::Replace(const World& world, size_t rank) {
  if (clients_[rank] != nullptr) Leave(rank);
  tg_client* client = Attach(world, rank);
  const std::scoped_lock lock(mu_);
  clients_[rank] = client;
}

Engines::~Engines() {
  thread_.request_stop();
  thread_.join();
  for (tg_client* client : clients_) {
    if (client != nullptr) tg_detach(client);
  }
}

void Engines::Run(std::stop_token stop) {
  for (tg_client* client : clients_) {
    if (tg_maps_current(client) != nullptr) Check(client);
  }
  while (!stop.stop_requested()) {
    {
      const std::scoped_lock lock(mu_);
      for (size_t i = 0; i < clients_.size(); ++i) {
        if (clients_[i] != nullptr) Poll(i);
      }
      if (break_step.exchange(false)) Break();
      if (!mute) Step();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Engines::StageKv(size_t rank, bool waits) {
  tg_client* client = clients_[rank];
  tg_error error = TG_INIT(tg_error);
  Staging& staging = staging_[rank];
  if (staging == Staging::kWanted) {
    const auto ranks = static_cast<uint32_t>(clients_.size());
    const tg_kv_move move{static_cast<uint32_t>(rank + 1) % ranks, 0, 256, 32};
    EXPECT_EQ(tg_kv_stage(client, &move, 1, sizeof move, &error), TG_OK) << error.message;
    EXPECT_EQ(tg_kv_stage(client, &move, 1, sizeof move, &error), TG_INVALID) << "one at a time";
    EXPECT_EQ(tg_kv_pull(client, &move, 1, sizeof move, nullptr, &error), TG_INVALID);
    staging = Staging::kGoing;
  }
  if (staging != Staging::kGoing) return;
  uint64_t bytes = 0;
  const tg_code code = tg_kv_staged(client, waits ? kHangMs : 0, &bytes, &error);
  if (code == TG_AGAIN) return;
  // The engine may get its reply before its agent counts all as prepared.
  staging = code == TG_OK ? Staging::kNone : Staging::kWanted;
  ahead_bytes_ += bytes;
  EXPECT_EQ(tg_kv_staged(client, 0, &bytes, &error), TG_INVALID) << "nothing is under way";
}

void Engines::Poll(size_t rank) {
  tg_client* client = clients_[rank];
  StageKv(rank, false);
  tg_event event = TG_INIT(tg_event);
  tg_error error = TG_INIT(tg_error);
  last_poll_[rank] = tg_poll(client, 0, &event, &error);
  if (last_poll_[rank] != TG_OK) return;
  if (event.kind == TG_EVENT_PREPARE) {
    ++prepares_;
    if (unprepared) return;
    tg_prepared(client, event.attempt, refuse_prepare ? 0 : 1, "test says no", &error);
    if (ahead) staging_[rank] = Staging::kWanted;
  }
  if (event.kind == TG_EVENT_ABORT) ++aborts_;
  if (event.kind == TG_EVENT_FLIPPED) Check(client);
}

void Engines::Break() {
  for (tg_client* client : clients_) {
    if (client != nullptr) (void)tg_gate_vote(client);
  }
  for (size_t i = 0; i < clients_.size(); ++i) {
    if (clients_[i] == nullptr) continue;
    tg_error error = TG_INIT(tg_error);
    if (i == 0 && one_commits) {
      EXPECT_EQ(tg_gate_commit(clients_[i], &error), TG_OK) << error.message;
    }
    tg_stop(clients_[i], keep_vote ? 1 : 0);
  }
}

void Engines::Step() {
  std::vector<tg_vote> words;
  for (tg_client* client : clients_) {
    if (client == nullptr || tg_maps_current(client) == nullptr || tg_stopped(client) != 0) return;
  }
  for (tg_client* client : clients_) words.push_back(tg_gate_vote(client));
  size_t go = 0;
  for (tg_client* client : clients_) {
    go += tg_gate_decide(client, words.data(), words.size()) == TG_GATE_GO ? 1 : 0;
  }
  if (go != 0 && go != clients_.size()) ++wrong_;  // otherwise only some would flip
  if (go == clients_.size()) {
    if (decline) {
      for (tg_client* client : clients_) tg_gate_decline(client, "no room for KV");
    } else {
      for (size_t i = 0; i < clients_.size(); ++i) {
        if (staging_[i] == Staging::kGoing) StageKv(i, true);
        staging_[i] = Staging::kNone;
      }
      for (size_t i = 0; i < clients_.size(); ++i) {
        std::memset(tg_get_model(clients_[i])->kv, static_cast<int>(i + 1), 64);
      }
      for (size_t i = 0; i < clients_.size(); ++i) {
        tg_error error = TG_INIT(tg_error);
        const tg_kv_move move{static_cast<uint32_t>((i + 1) % clients_.size()), 0, 128, 64};
        uint64_t bytes = 0;
        EXPECT_EQ(tg_kv_pull(clients_[i], &move, 1, sizeof move, &bytes, &error), TG_OK)
            << error.message;
        kv_bytes_ += bytes;
        const auto* kv = static_cast<const uint8_t*>(tg_get_model(clients_[i])->kv);
        if (kv[128] != (i + 1) % clients_.size() + 1) ++wrong_;
      }
      for (tg_client* client : clients_) {
        tg_error error = TG_INIT(tg_error);
        const int done = done_fd;
        const tg_code committed =
            done < 0 ? tg_gate_commit(client, &error) : tg_gate_commit_after(client, done, &error);
        EXPECT_EQ(committed, TG_OK) << error.message;
        Check(client);
      }
    }
  }
  for (tg_client* client : clients_) {
    tg_count(client, 1, 2, 3);
    tg_count_executed(client, 1, 3, 4);
    tg_step_done(client);
  }
  ++steps_;
}

void Engines::Check(tg_client* client) {
  const tg_maps* maps = tg_maps_current(client);
  const tg_model* model = tg_get_model(client);
  for (uint32_t l = 0; l < model->layers; ++l) {
    for (uint32_t e = 0; e < model->experts; ++e) {
      const tg_expert& expert = maps->layers[l].experts[e];
      std::vector<int> owners(model->granules);
      for (uint32_t p = 0; p < expert.replicas * expert.shards; ++p) {
        const tg_piece& piece = expert.pieces[p];
        if ((piece.data != nullptr) != (static_cast<int32_t>(piece.rank) == maps->rank)) ++wrong_;
        for (uint32_t g = 0; g < piece.granule_count; ++g) {
          ++owners[piece.granule_start + g];
          if (piece.data == nullptr) continue;
          uint64_t stamp = 0;
          std::memcpy(&stamp, static_cast<const uint8_t*>(piece.data) + g * model->granule_bytes,
                      sizeof stamp);
          ++checked_;
          if (stamp != StampOf(l, e, piece.granule_start + g)) ++wrong_;
        }
      }
      for (const int n : owners) wrong_ += n == static_cast<int>(expert.replicas) ? 0 : 1;
    }
  }
}

}  // namespace tangram::testing
