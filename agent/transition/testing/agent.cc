#include "agent/transition/testing/agent.h"

namespace tangram::testing {

store::testing::World::Options Small(uint32_t dense) {
  store::testing::World::Options options;
  options.shape.layers = 2;
  for (uint32_t l = 0; l < dense; ++l) options.shape.mlp_only_layers.push_back(l);
  options.shape.experts = 4;
  options.shape.moe_inner = 16;
  options.shape.hidden = 16;
  options.shape.head_dim = 8;
  options.nodes = 1;
  return options;
}

OneAgent::OneAgent(uint32_t ranks, std::chrono::milliseconds permit_wait, uint32_t away,
                   const store::testing::World::Options& world)
    : stores(world), permit_wait_(permit_wait), away_(away) {
  for (uint32_t device = 0; device < ranks; ++device) stores.AddMember();
  Start(false);
}

OneAgent::~OneAgent() {
  peers.Hang(false);
  executor.reset();
}

void OneAgent::Start(bool after_death) {
  Executor::Options options;
  options.world = "test";
  options.address.set_agent("agent-0");
  options.permit_wait = permit_wait_;
  options.max_step_stretch = 0.25;
  options.after_death = after_death;
  options.now = [this] { return Executor::Clock::now() + later.load(); };
  std::vector<Executor::Local> ranks;
  memories_.clear();
  for (const auto& member : stores.members) {
    if (ranks.size() + away_ == stores.members.size()) break;
    Executor::Local& local = ranks.emplace_back();
    local.member.set_id(member->store->member());
    memories_.push_back(std::make_unique<HookedMemory>(member->store.get(), &hooks));
    local.memory = memories_.back().get();
  }
  executor = std::make_unique<Executor>(std::move(options), stores.geometry(), std::move(ranks),
                                        &engines, &peers);
}

void OneAgent::Die() {
  kept.clear();
  for (const auto& member : stores.members) kept.push_back(stores.KeptBy(*member));
  Reborn();
}

void OneAgent::Reborn() {
  executor.reset();
  for (const auto& member : stores.members) {
    if (const Status born = stores.Replace(*member); !born.ok()) {
      throw std::runtime_error(born.message());
    }
  }
  Start(true);
}

Status OneAgent::Resume(uint32_t device) {
  return executor->Resume(device, kept[device].resume, kept[device].Fds(), {}).status();
}

v1::Header OneAgent::Header(uint64_t attempt) const {
  v1::Header header;
  header.set_world("test");
  header.set_epoch(stores.layout.epoch());
  header.set_attempt(attempt);
  return header;
}

v1::Layout OneAgent::Again() {
  v1::Layout out = stores.layout;
  out.set_epoch(out.epoch() + 1);
  return out;
}

Status OneAgent::Prepare(v1::FlipKind kind, uint64_t attempt, const v1::Layout& target,
                         const std::vector<v1::Layout>& then) {
  v1::PrepareRequest request;
  *request.mutable_geometry() = stores.geometry().proto();
  const auto fill = [&](v1::FlipKind its_kind, uint64_t ahead, const v1::Layout& to,
                        v1::PrepareRequest* out) {
    *out->mutable_header() = Header(attempt + ahead);
    out->mutable_header()->set_epoch(stores.layout.epoch() + ahead);
    out->set_kind(its_kind);
    out->set_target_epoch(to.epoch());
    out->set_target_hash(layout::HashOf(to));
    *out->mutable_layout() = to;
    for (const auto& member : stores.members) {
      if (layout::RankOf(to, member->id) < 0) continue;
      if (out->parts_size() == static_cast<int>(memories_.size())) break;  // the rest is away
      *out->add_parts() = stores.PartOf(*member, to);
    }
  };
  fill(kind, 0, target, &request);
  for (size_t i = 0; i < then.size(); ++i) {
    fill(v1::FLIP_KIND_LAYOUT, i + 1, then[i], request.add_next());
  }
  for (const v1::PeerAddress& peer : stores.Addresses(target)) *request.add_peers() = peer;
  v1::PeerAddress* elsewhere = request.add_peers();  // a peer to query and to send votes to
  *elsewhere = request.peers(0);
  elsewhere->set_agent("elsewhere");
  return executor->Prepare(request);
}

void OneAgent::AwaitPhase(v1::Phase phase) {
  uint64_t seen = 0;
  while (executor->GetStatus(nullptr).ranks(0).transition().phase() != phase) {
    executor->WaitChange(&seen, std::chrono::milliseconds(100));
  }
}

void OneAgent::AwaitEpoch(uint64_t epoch) {
  uint64_t seen = 0;
  while (executor->GetStatus(nullptr).epoch() != epoch) {
    executor->WaitChange(&seen, std::chrono::milliseconds(100));
  }
}

Status OneAgent::Take(v1::FlipKind kind, uint64_t attempt, const v1::Layout& target) {
  TANGRAM_RETURN_IF_ERROR(Prepare(kind, attempt, target));
  TANGRAM_RETURN_IF_ERROR(Stage(attempt));
  AwaitPhase(v1::PHASE_STAGED);
  TANGRAM_RETURN_IF_ERROR(executor->Permit(Header(attempt)));
  AwaitEpoch(target.epoch());
  return OkStatus();
}

Status OneAgent::Retire(uint64_t attempt) {
  for (uint32_t device = 0; device < stores.members.size(); ++device) page(device)->steps = 1;
  const Status retired = executor->Retire(Header(attempt));
  if (retired.ok()) stores.layout = GetStatus().layout();
  return retired;
}

Status OneAgent::Release(const std::string& member) {
  v1::ReleaseRequest request;
  request.mutable_header()->set_world("test");
  request.mutable_header()->set_epoch(UINT64_MAX);
  if (!member.empty()) request.add_members(member);
  request.set_world_ends(member.empty());
  request.set_reason("a test");
  const Status released = executor->Release(request);
  for (const auto& each : stores.members) each->id = each->store->member();
  return released;
}

GatePage* OneAgent::page(uint32_t device) {
  return static_cast<GatePage*>(stores.members[device]->store->Regions().control_page);
}

}  // namespace tangram::testing
