#include "agent/store/testing/world.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "agent/layout/testing.h"
#include "agent/mover/node_transport.h"
#include "agent/mover/tcp_transport.h"
#include "agent/mover/wire_transport.h"

namespace tangram::store::testing {

using layout::PlacedPiece;

namespace {

void SetAttention(v1::LayerLayout* layer, uint32_t active, uint32_t heads) {
  layer->set_attention_group_size(1);
  layer->clear_attention();
  for (uint32_t r = 0; r < active; ++r) {
    v1::AttentionGroup* group = layer->add_attention();
    group->add_ranks(r);
    group->add_query_head_bounds(0);
    group->add_query_head_bounds(heads);
  }
}

}  // namespace

World::World(const Options& options) : random(options.seed), options_(options) {
  // Made before threads start: its library is not instrumented, so TSan would not see how its first
  // users synchronize.
  spdlog::default_logger();
  loader::testing::WriteCheckpoint(dir.path(), options.shape,
                                   loader::testing::MakeTensors(options.shape, options.seed), 2);
  auto opened = loader::Checkpoint::Open(dir.path(), options.granule_rows, 4096, options.format);
  if (!opened.ok()) throw std::runtime_error(opened.status().message());
  checkpoint = std::move(opened).value();
  reference_ = std::make_unique<loader::testing::Reference>(dir.path(), options.granule_rows);
  auto made = device::MakePlatform(options.memory);
  if (!made.ok()) throw std::runtime_error(made.status().message());
  platform = std::move(made).value();
  std::vector<std::unique_ptr<mover::Transport>> nearest_first;
  if (options.shared_memory) {
    nearest_first.push_back(
        std::make_unique<mover::NodeTransport>(dir.path(), credentials, platform));
  }
  const auto turns = std::make_shared<mover::Turns>();
  if (!options.wire.name.empty()) {
    auto opened_wires = platform->OpenWires(options.wire);
    if (!opened_wires.ok()) throw std::runtime_error(opened_wires.status().message());
    wires = std::move(opened_wires).value();
    nearest_first.push_back(std::make_unique<mover::WireTransport>(wires, turns, credentials));
  }
  nearest_first.push_back(std::make_unique<mover::TcpTransport>(credentials));
  transports = std::make_shared<mover::Transports>(std::move(nearest_first));
  for (uint32_t n = 0; n < options.nodes; ++n) {
    Node& node = *nodes.emplace_back(std::make_unique<Node>());
    if (wires != nullptr) {
      node.wires = std::make_unique<mover::WireServer>(
          mover::WireServer::Options{.wires = wires, .turns = turns}, &node.grants);
    }
    auto server = mover::DataServer::Start(
        {.listen = "127.0.0.1:0",
         .node_socket_dir = options.shared_memory ? dir.path() : "",
         .advertise = "127.0.0.1",
         .credentials = credentials,
         .wires =
             [&node](std::unique_ptr<net::Stream> stream) { node.wires->Take(std::move(stream)); }},
        &node.grants);
    if (!server.ok()) throw std::runtime_error(server.status().message());
    node.server = std::move(server).value();
    node.reads = std::make_shared<loader::SharedReads>(checkpoint);
  }
}

World::~World() {
  for (auto& node : nodes) {  // before the memory that they read
    node->server.reset();
    node->wires.reset();
  }
}

Member& World::AddMember() {
  auto made = std::make_unique<Member>();
  Member* member = made.get();
  member->id = fmt::format("pod-{}/0/1", members.size());
  member->node = static_cast<uint32_t>(members.size()) % options_.nodes;
  member->engine = EngineView(platform);
  auto store = RankStore::Create(StoreOptions(*member, member->id));
  if (!store.ok()) throw std::runtime_error(store.status().message());
  member->store = std::move(store).value();
  members.push_back(std::move(made));
  return *member;
}

Kept World::KeptBy(const Member& member) const {
  Kept out;
  out.resume.set_member(member.id);
  *out.resume.mutable_layout() = layout;
  const EngineRegions regions = member.store->Regions();
  std::map<SharedFd, uint32_t> numbers;
  const auto number = [&](const SharedFd& fd) {
    const auto next = static_cast<uint32_t>(10 + 3 * numbers.size());
    const auto [it, fresh] = numbers.try_emplace(fd, next);
    if (fresh) out.fds[next] = UniqueFd(dup(fd->get()));
    return it->second;
  };
  const auto add = [&](const device::Export& region, auto* extents) {
    for (const device::Extent& is : region.extents) {
      v1::Extent* extent = extents->Add();
      extent->set_fd_index(number(region.descriptors[is.descriptor]));
      extent->set_offset(is.offset);
      extent->set_length(is.length);
    }
  };
  add(regions.kv, out.resume.mutable_kv());
  add(regions.control, out.resume.mutable_control());
  EngineMappings current = member.store->CurrentMappings().value();
  for (v1::Mapping& mapping : current.mappings) {
    for (v1::Extent& extent : *mapping.mutable_extents()) {
      extent.set_fd_index(number(current.descriptors[extent.fd_index()]));
    }
    *out.resume.add_mappings() = std::move(mapping);
  }
  return out;
}

KeptFds Kept::Fds() const {
  KeptFds out;
  for (const auto& [number, fd] : fds) out[number] = UniqueFd(dup(fd.get()));
  return out;
}

int Kept::of(const v1::Extent& extent) const { return fds.at(extent.fd_index()).get(); }

int Kept::control() const { return of(resume.control(0)); }

Status World::Replace(Member& member) {
  member.store.reset();
  auto store = RankStore::Create(StoreOptions(member, member.id + "-next"));
  if (!store.ok()) return store.status();
  member.store = std::move(store).value();
  return OkStatus();
}

Status World::Restart(Member& member) {
  Kept kept = KeptBy(member);
  TANGRAM_RETURN_IF_ERROR(Replace(member));
  auto adoption = member.store->Examine(kept.resume, layout::RankOf(layout, member.id),
                                        std::move(kept.fds), {});
  if (!adoption.ok()) return adoption.status();
  return member.store->Adopt(adoption->get());
}

std::string World::HashesFile(const Member& member) const {
  const auto at = std::find_if(members.begin(), members.end(),
                               [&](const auto& each) { return each.get() == &member; });
  return fmt::format("{}/hashes-{}", dir.path(), at - members.begin());
}

std::string World::FabricOf(const Member& member) const {
  if (options_.fabrics == 0) return "";
  return fmt::format("domain-{}", std::stoul(member.id.substr(4)) % options_.fabrics);
}

RankStore::Options World::StoreOptions(const Member& of, const std::string& id) {
  const Member* member = &of;
  RankStore::Options options;
  options.member = id;
  options.checkpoint = checkpoint;
  options.platform = platform;
  options.banks = geometry().moe_layers() + options_.spare_banks;
  options.pool_bytes = options_.pool_pages * 4096;
  options.kv_bytes = options_.kv_bytes;
  options.control_bytes = 4096;
  options.transports = transports;
  options.fabric = FabricOf(of);
  options.hashes_file = HashesFile(of);
  options.grants = &nodes[member->node]->grants;
  options.reads = nodes[member->node]->reads;
  options.load_threads = options_.load_threads;
  options.after_failure = options_.after_failure;
  options.opener = [this](const std::string&, const v1::OpenPullRequest& request,
                          const std::stop_token& stop) -> Result<v1::OpenPullResponse> {
    ++opens;
    if (silent.contains(request.member())) {  // like an unresponsive agent
      while (!stop.stop_requested() && silent.contains(request.member())) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return Status(Code::kUnavailable, "stopped");
    }
    if (unreachable.contains(request.member())) return Status(Code::kUnavailable, "away");
    if (unheard.contains(request.member())) return Status(Code::kNotHeld, "no such attempt yet");
    {
      const std::scoped_lock lock(asked_mu);
      for (const uint32_t count : request.pieces().granule_count()) {
        asked[request.member()] += count * geometry().granule_bytes();
      }
    }
    return this->member(request.member()).store->OpenPull(request, "pod");
  };
  options.sibling = [this, node = member->node](const std::string& id) -> RankStore* {
    // As in an agent: checks the id of each rank of the process, under its lock.
    for (const auto& other : members) {
      if (other->node != node || !other->store || other->store->member() != id) continue;
      return other->store.get();
    }
    return nullptr;
  };
  return options;
}

Member& World::member(const std::string& id) {
  for (auto& member : members) {
    if (member->id == id) return *member;
  }
  throw std::runtime_error("no member " + id);
}

v1::LayerLayout World::LayerOf(const v1::Layout& base, uint32_t layer, uint32_t group,
                               uint32_t active, std::set<uint32_t>* banks) {
  const v1::LayerLayout& old = base.layers(static_cast<int>(layer));
  v1::LayerLayout out = old;
  out.clear_experts();
  SetAttention(&out, active, geometry().proto().query_heads());
  if (geometry().ordinal(layer) < 0) return out;
  out.set_expert_group_size(group);
  std::vector<uint32_t> experts(geometry().experts());
  for (uint32_t e = 0; e < experts.size(); ++e) experts[e] = e;
  std::shuffle(experts.begin(), experts.end(), random);
  const bool in_place = group == 1 && old.expert_group_size() == 1 && old.experts_size() > 0;
  if (!in_place && old.experts_size() > 0) {
    const auto ordinal = static_cast<uint32_t>(geometry().ordinal(layer));
    banks->insert(ordinal + static_cast<uint32_t>(old.bank_offset()));
    uint32_t bank = 0;
    while (banks->contains(bank)) ++bank;
    banks->insert(bank);
    out.set_bank_offset(static_cast<int32_t>(bank) - static_cast<int32_t>(ordinal));
  }
  const uint32_t groups = active / group;
  for (uint32_t g = 0; g < groups; ++g) {
    v1::ExpertGroup* made = out.add_experts();
    for (uint32_t p = 0; p < group; ++p) made->add_ranks(g * group + p);
    std::vector<uint32_t> slots;  // of the old layout at this rank, for in-place changes
    if (in_place) {
      for (const v1::ExpertGroup& before : old.experts()) {
        if (before.ranks(0) == g) slots.assign(before.slots().begin(), before.slots().end());
      }
    }
    std::vector<uint32_t> mine;
    for (size_t i = g; i < experts.size(); i += groups) mine.push_back(experts[i] + 1);
    std::vector<uint32_t> next(slots.size(), 0);
    for (size_t s = 0; s < slots.size(); ++s) {
      if (const auto it = std::find(mine.begin(), mine.end(), slots[s]); it != mine.end()) {
        next[s] = slots[s];
        mine.erase(it);
      }
    }
    for (const uint32_t expert : mine) {  // slots emptied in a flip are not reused in it
      size_t s = 0;
      while (s < next.size() && (next[s] != 0 || slots[s] != 0)) ++s;
      if (s == next.size()) {
        next.push_back(0);
        slots.push_back(0);
      }
      next[s] = expert;
      if (random() % 4 == 0) {  // an occasional gap
        next.push_back(0);
        slots.push_back(0);
      }
    }
    for (const uint32_t slot : next) made->add_slots(slot);
  }
  return out;
}

v1::Layout World::First(uint32_t group) {
  v1::Layout out;
  out.set_world("test");
  out.set_epoch(1);
  out.set_geometry_fingerprint(geometry().fingerprint());
  out.set_banks(geometry().moe_layers() + options_.spare_banks);
  for (uint32_t r = 0; r < members.size(); ++r) {
    out.add_members()->set_id(members[r]->id);
    out.mutable_dense()->add_ranks(r);
  }
  for (uint32_t l = 0; l < geometry().proto().layers(); ++l) out.add_layers()->set_layer(l);
  std::set<uint32_t> banks;
  for (uint32_t l = 0; l < geometry().proto().layers(); ++l) {
    *out.mutable_layers(static_cast<int>(l)) =
        LayerOf(out, l, group, static_cast<uint32_t>(members.size()), &banks);
  }
  return out;
}

v1::Layout World::Joined(const std::vector<std::string>& ids) {
  v1::Layout out = layout;
  out.set_epoch(layout.epoch() + 1);
  for (const std::string& id : ids) {
    out.mutable_dense()->add_ranks(static_cast<uint32_t>(out.members_size()));
    out.add_members()->set_id(id);
  }
  return out;
}

v1::Layout World::Reshaped(uint32_t group, uint32_t active, bool* done) {
  v1::Layout out = layout;
  out.set_epoch(layout.epoch() + 1);
  std::set<uint32_t> banks;
  for (const v1::LayerLayout& layer : layout.layers()) {
    const int32_t ordinal = geometry().ordinal(layer.layer());
    if (ordinal >= 0) banks.insert(static_cast<uint32_t>(ordinal + layer.bank_offset()));
  }
  uint32_t rewrites = 0;
  *done = true;
  for (int l = 0; l < layout.layers_size(); ++l) {
    const v1::LayerLayout& old = layout.layers(l);
    const bool plain = geometry().ordinal(old.layer()) < 0;
    const bool there = static_cast<uint32_t>(old.attention_size()) == active &&
                       (plain || (old.expert_group_size() == group &&
                                  static_cast<uint32_t>(old.experts_size()) == active / group));
    if (there) continue;
    const bool in_place = plain || (group == 1 && old.expert_group_size() == 1);
    if (!in_place && rewrites == options_.spare_banks) {
      *done = false;
      continue;
    }
    rewrites += in_place ? 0 : 1;
    *out.mutable_layers(l) = LayerOf(layout, static_cast<uint32_t>(l), group, active, &banks);
  }
  return out;
}

v1::Layout World::Left(uint32_t active) {
  v1::LayoutDelta delta;
  delta.set_members_changed(true);
  for (uint32_t r = 0; r < static_cast<uint32_t>(layout.members_size()); ++r) {
    delta.add_renumber(r < active ? r + 1 : 0);
    if (r >= active) continue;
    *delta.add_members() = layout.members(static_cast<int>(r));
    delta.mutable_dense()->add_ranks(r);
  }
  return layout::Apply(layout, delta, layout.epoch() + 1).value();
}

std::vector<std::string> World::Everyone(const v1::Layout& target) const {
  std::vector<std::string> out;
  for (const v1::Member& member : target.members()) out.push_back(member.id());
  for (const v1::Member& member : layout.members()) {
    if (layout::RankOf(target, member.id()) < 0) out.push_back(member.id());
  }
  return out;
}

v1::RankPart World::PartOf(const Member& member, const v1::Layout& target) {
  const int32_t rank = layout::RankOf(target, member.id);
  const auto held_by = [&](const std::string& id) {
    const int32_t r = layout::RankOf(layout, id);
    return r < 0 ? std::vector<PlacedPiece>()
                 : layout::PiecesOf(layout, geometry(), static_cast<uint32_t>(r));
  };
  const auto holds = [](const std::vector<PlacedPiece>& pieces, const PlacedPiece& piece,
                        uint32_t granule) {
    return std::any_of(pieces.begin(), pieces.end(), [&](const PlacedPiece& p) {
      return p.layer == piece.layer && p.expert == piece.expert && granule >= p.run.start &&
             granule < p.run.start + p.run.count;
    });
  };
  const std::vector<PlacedPiece> mine = held_by(member.id);
  std::vector<std::vector<PlacedPiece>> before, after;  // by rank of the target
  for (int r = 0; r < target.members_size(); ++r) {
    before.push_back(held_by(target.members(r).id()));
    after.push_back(layout::PiecesOf(target, geometry(), static_cast<uint32_t>(r)));
  }
  v1::RankPart part;
  part.set_member(member.id);
  part.set_rank(static_cast<uint32_t>(std::max(rank, 0)));
  std::vector<PlacedPiece> wanted, all(mine);
  if (rank >= 0) wanted = after[static_cast<size_t>(rank)];
  for (const PlacedPiece& piece : wanted) {
    if (std::find(mine.begin(), mine.end(), piece) != mine.end()) continue;
    all.push_back(piece);
    for (uint32_t g = piece.run.start; g < piece.run.start + piece.run.count; ++g) {
      if (holds(mine, piece, g)) {
        v1::LocalCopies& copies = *part.mutable_copies();
        copies.add_layer(piece.layer);
        copies.add_expert(piece.expert);
        copies.add_granule_start(g);
        copies.add_granule_count(1);
        continue;
      }
      // The current holders; if none, the first target rank reads it for the others.
      std::vector<uint32_t> sources;
      for (uint32_t r = 0; r < before.size(); ++r) {
        if (holds(before[r], piece, g)) sources.push_back(r + 1);
      }
      for (uint32_t r = 0; sources.empty() && r < after.size(); ++r) {
        if (holds(after[r], piece, g))
          sources.push_back(static_cast<int32_t>(r) == rank ? 0 : r + 1);
      }
      const uint32_t source = sources[random() % sources.size()];
      v1::Fetches& f = *part.mutable_fetches();
      const int last = f.layer_size() - 1;
      if (last >= 0 && f.layer(last) == piece.layer && f.expert(last) == piece.expert &&
          f.source(last) == source && f.granule_start(last) + f.granule_count(last) == g) {
        f.set_granule_count(last, f.granule_count(last) + 1);
        continue;
      }
      f.add_layer(piece.layer);
      f.add_expert(piece.expert);
      f.add_granule_start(g);
      f.add_granule_count(1);
      f.add_source(source);
    }
  }
  const int32_t old_rank = layout::RankOf(layout, member.id);
  const bool had = old_rank >= 0 && layout::HoldsDense(layout, static_cast<uint32_t>(old_rank));
  const bool has = rank >= 0 && layout::HoldsDense(target, static_cast<uint32_t>(rank));
  if (has && !had) {
    for (uint32_t p = 0; p < kDenseParts; ++p) {
      const int holders = layout.members_size();
      if (holders > 0) {  // members keep their rank when others join
        part.mutable_dense()->add_source_by_part(static_cast<uint32_t>(random() % holders) + 1);
      } else {
        const uint32_t reader = p % static_cast<uint32_t>(target.members_size());
        part.mutable_dense()->add_source_by_part(
            reader == static_cast<uint32_t>(rank) ? 0 : reader + 1);
      }
    }
  }
  const uint64_t page = geometry().page_bytes();
  const uint64_t dense = layout::RoundUp(geometry().proto().dense_bytes(), page);
  part.set_peak_bytes(layout::testing::PagesOf(all, geometry()).size() * page +
                      (had || has ? dense : 0));
  part.set_steady_bytes(layout::testing::PagesOf(wanted, geometry()).size() * page +
                        (has ? dense : 0));
  return part;
}

std::vector<v1::PeerAddress> World::Addresses(const v1::Layout& target) const {
  std::vector<v1::PeerAddress> out;
  for (int r = 0; r < target.members_size(); ++r) {
    for (const auto& member : members) {
      if (member->id != target.members(r).id()) continue;
      v1::PeerAddress& peer = out.emplace_back();
      peer.set_rank(static_cast<uint32_t>(r));
      peer.set_member(member->id);
      peer.set_agent(fmt::format("agent-{}", member->node));
      peer.set_data(fmt::format("127.0.0.1:{}", nodes[member->node]->server->port()));
      peer.set_nvlink_domain(FabricOf(*member));
      if (wires != nullptr) peer.set_comm_library(wires->kind());
    }
  }
  return out;
}

v1::Header World::HeaderOf() const {
  v1::Header header;
  header.set_world("test");
  header.set_epoch(layout.epoch());
  header.set_attempt(attempt);
  return header;
}

Status World::Prepare(const v1::Layout& target) {
  TANGRAM_RETURN_IF_ERROR(layout::Validate(target, geometry()));
  ++attempt;
  parts.clear();
  for (const std::string& id : Everyone(target)) {
    Member& one = member(id);
    const v1::RankPart& part = parts[id] = PartOf(one, target);
    TANGRAM_RETURN_IF_ERROR(one.store->Prepare(attempt, target, layout::RankOf(target, id), part));
  }
  return OkStatus();
}

Status World::Stage(const v1::Layout& target) {
  std::mutex mu;
  Status first;
  progress.clear();
  std::vector<std::jthread> threads;
  std::stop_source stop;
  for (const std::string& id : Everyone(target)) {
    StageProgress* mine =
        progress.emplace(id, std::make_unique<StageProgress>()).first->second.get();
    threads.emplace_back([&, id, mine] {
      const Status staged =
          member(id).store->Stage(HeaderOf(), OriginsOf(target), mine, stop.get_token());
      if (staged.ok()) return;
      {
        const std::scoped_lock lock(mu);
        if (first.ok()) first = staged;
      }
      stop.request_stop();  // the others may wait for its pieces
    });
  }
  threads.clear();
  return first;
}

Status World::CommitAndRetire(const v1::Layout& target) {
  const uint64_t page = geometry().page_bytes();
  for (const std::string& id : Everyone(target)) {
    Member& one = member(id);
    const auto fresh = one.store->NewMappings();
    if (!fresh.ok()) return fresh.status();
    one.engine.Map(*fresh, page);
    TANGRAM_RETURN_IF_ERROR(one.store->Commit());
  }
  for (const std::string& id : Everyone(target)) {
    Member& one = member(id);
    TANGRAM_RETURN_IF_ERROR(one.store->Audit());
    one.engine.Unmap(one.store->DroppedMappings(), page);
    TANGRAM_RETURN_IF_ERROR(one.store->Retire());
  }
  layout = target;
  return OkStatus();
}

void World::Abort(const v1::Layout& target) {
  for (const std::string& id : Everyone(target)) member(id).store->Abort();
}

Status World::Flip(const v1::Layout& target) {
  TANGRAM_RETURN_IF_ERROR(Prepare(target));
  TANGRAM_RETURN_IF_ERROR(Stage(target));
  return CommitAndRetire(target);
}

Status World::Reshape(uint32_t group, uint32_t active) {
  for (bool done = false; !done;) {
    const v1::Layout target = Reshaped(group, active, &done);
    TANGRAM_RETURN_IF_ERROR(Flip(target));
    TANGRAM_RETURN_IF_ERROR(Check());
  }
  return OkStatus();
}

}  // namespace tangram::store::testing
