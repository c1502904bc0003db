#include "e2e/engine/testing/memory_world.h"

#include <algorithm>
#include <cstring>

#include "agent/device/platform.h"
#include "agent/layout/geometry.h"

namespace tangram::engine::testing {

// The arrays behind a tg_maps.
struct MemoryNet::Maps {
  LayoutSpec spec;
  tg_maps maps{};
  std::vector<std::string> mesh, pods;
  std::vector<const char*> member_names, mesh_names, frontends, pod_names;
  std::deque<std::vector<tg_piece>> pieces;
  std::deque<std::vector<tg_expert>> experts;
  std::deque<std::vector<uint32_t>> bounds;
  std::deque<std::vector<tg_attention_group>> groups;
  std::vector<tg_layer_map> layers;
};

std::vector<Ranks> GroupsOfSize(uint32_t ranks, uint32_t size) {
  std::vector<Ranks> out;
  for (uint32_t r = 0; r < ranks; ++r) {
    if (r % size == 0) out.emplace_back();
    out.back().push_back(r);
  }
  return out;
}

LayoutSpec Uniform(std::vector<std::string> members, uint32_t layers, uint32_t serving, uint32_t g,
                   uint32_t t) {
  LayoutSpec out;
  out.members = std::move(members);
  for (uint32_t l = 0; l < layers; ++l) {
    out.layers.push_back({GroupsOfSize(serving, g), false, GroupsOfSize(serving, t)});
  }
  return out;
}

std::shared_ptr<MemoryNet::Maps> MemoryNet::Build(const LayoutSpec& spec, uint64_t epoch,
                                                  const std::string& member) {
  auto out = std::make_shared<Maps>();
  keep_.push_back(out);
  out->spec = spec;
  const model::Config& config = checkpoint_->config();
  const auto self = std::find(spec.members.begin(), spec.members.end(), member);
  out->maps.epoch = epoch;
  out->maps.rank =
      self == spec.members.end() ? -1 : static_cast<int32_t>(self - spec.members.begin());
  out->maps.world_size = static_cast<uint32_t>(spec.members.size());
  for (const std::string& name : spec.members) {
    out->mesh.push_back(members_[name].mesh);
    out->pods.push_back(name.substr(0, name.find('/')));
  }
  for (size_t i = 0; i < spec.members.size(); ++i) {
    out->member_names.push_back(out->spec.members[i].c_str());
    out->mesh_names.push_back(out->mesh[i].c_str());
    out->frontends.push_back("none:0");
    out->pod_names.push_back(out->pods[i].c_str());
  }
  out->maps.members = out->member_names.data();
  out->maps.mesh = out->mesh_names.data();
  out->maps.frontends = out->frontends.data();
  out->maps.pods = out->pod_names.data();
  int32_t ordinal = 0;
  for (uint32_t l = 0; l < config.layers; ++l) {
    const LayerSpec& layer = spec.layers[l];
    tg_layer_map& map = out->layers.emplace_back();
    map.layer = l;
    map.moe_ordinal = config.moe_layer[l] ? ordinal++ : -1;
    if (config.moe_layer[l]) {
      std::vector<tg_expert>& experts = out->experts.emplace_back();
      const size_t groups = layer.experts.size();
      for (uint32_t e = 0; e < config.experts; ++e) {
        std::vector<tg_piece>& pieces = out->pieces.emplace_back();
        const uint32_t replicas = layer.redundant && groups > 1 && e % 3 == 0 ? 2 : 1;
        uint32_t shards = 0;
        for (uint32_t a = 0; a < replicas; ++a) {
          const Ranks& ranks = layer.experts[(e + a) % groups];
          shards = static_cast<uint32_t>(ranks.size());
          for (uint32_t p = 0; p < shards; ++p) {
            const layout::Run run = layout::ShardOf(checkpoint_->granules(), shards, e, p);
            const bool here = out->maps.rank == static_cast<int32_t>(ranks[p]);
            pieces.push_back({ranks[p], run.start, run.count,
                              here ? checkpoint_->Run(l, e, run.start, run.count).data : nullptr});
          }
        }
        experts.push_back({replicas, shards, pieces.data()});
      }
      map.experts = experts.data();
    }
    std::vector<tg_attention_group>& groups = out->groups.emplace_back();
    for (const Ranks& ranks : out->spec.layers[l].attention) {
      std::vector<uint32_t>& bounds = out->bounds.emplace_back();
      for (size_t p = 0; p <= ranks.size(); ++p) {
        bounds.push_back(static_cast<uint32_t>(config.query_heads * p / ranks.size()));
      }
      groups.push_back({static_cast<uint32_t>(ranks.size()), ranks.data(), bounds.data()});
    }
    map.attention_groups = static_cast<uint32_t>(groups.size());
    map.attention = groups.data();
  }
  out->maps.layers = out->layers.data();
  return out;
}

std::unique_ptr<MemoryWorld> MemoryNet::Attach(const std::string& member, const std::string& mesh) {
  {
    std::lock_guard lock(mu_);
    members_[member].kv.resize(kv_bytes_);
    members_[member].mesh = mesh;
  }
  return std::make_unique<MemoryWorld>(this, member);
}

Status MemoryNet::Flip(const LayoutSpec& spec, int seconds) { return Take(spec, false, seconds); }

Status MemoryNet::Repair(const LayoutSpec& spec, int seconds) { return Take(spec, true, seconds); }

void MemoryNet::Stop(const std::string& member) {
  std::lock_guard lock(mu_);
  members_[member].stopped = true;
}

bool MemoryNet::WaitStopped(const std::vector<std::string>& members, int seconds) {
  std::unique_lock lock(mu_);
  return changed_.wait_for(lock, std::chrono::seconds(seconds), [&] {
    return std::all_of(members.begin(), members.end(),
                       [&](const std::string& name) { return members_[name].stopped; });
  });
}

void MemoryNet::SetPause(bool pauses) {
  std::lock_guard lock(mu_);
  pauses_ = pauses;
}

void MemoryNet::SetStaging(const Staging& staging) {
  const std::lock_guard lock(mu_);
  staging_ = staging;
}

Status MemoryNet::Abort(const LayoutSpec& spec, const std::function<bool()>& until) {
  return Take(spec, false, 20, until);
}

Status MemoryNet::Take(const LayoutSpec& spec, bool repair, int seconds,
                       const std::function<bool()>& aborts) {
  std::unique_lock lock(mu_);
  const bool by_agents = epoch_ == 0 || repair;
  ++attempt_;
  std::vector<std::string> all;
  if (!repair) all = spec_.members;
  for (const std::string& name : spec.members) {
    if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
  }
  for (const std::string& name : all) {
    Member& member = members_[name];
    member.prepared = member.flipped = false;
    member.refusal.clear();
    member.target = Build(spec, epoch_ + 1, name);
    tg_event event{};
    event.kind = TG_EVENT_PREPARE;
    event.attempt = attempt_;
    event.target_epoch = epoch_ + 1;
    event.joining = member.current == nullptr || member.current->maps.rank < 0;
    event.leaving = member.target->maps.rank < 0;
    event.repair = repair;
    event.target = &member.target->maps;
    event.pause_steps = pauses_;
    member.events.push_back(event);
  }
  const auto wait = [&](bool Member::*flag) {
    return changed_.wait_for(lock, std::chrono::seconds(seconds), [&] {
      return std::all_of(all.begin(), all.end(), [&](const std::string& name) {
        return members_[name].*flag || !members_[name].refusal.empty();
      });
    });
  };
  std::string trouble;
  const bool prepared = wait(&Member::prepared);
  for (const std::string& name : all) {
    if (!members_[name].prepared) trouble += name + " " + members_[name].refusal + "; ";
  }
  if (prepared && trouble.empty() && aborts) {
    while (!aborts()) (void)changed_.wait_for(lock, std::chrono::milliseconds(1));
    trouble = "aborted";
  } else if (prepared && trouble.empty()) {
    if (by_agents) {
      for (const std::string& name : all) {
        Member& member = members_[name];
        member.current = member.target;
        member.stopped = false;
        tg_event event{};
        event.kind = TG_EVENT_FLIPPED;
        event.target_epoch = epoch_ + 1;
        event.repair = repair;
        member.events.push_back(event);
      }
      // Wait until every engine has processed the event: later requests find it ready.
      if (!wait(&Member::flipped)) trouble = "the layout was not taken by all";
    } else {
      armed_ = true;
      if (!wait(&Member::flipped)) {
        for (const std::string& name : all) {
          if (!members_[name].flipped) trouble += name + " did not flip; ";
        }
      }
      armed_ = false;
    }
  } else if (trouble.empty()) {
    trouble = "not prepared in time";
  }
  if (!trouble.empty()) {
    for (const std::string& name : all) {
      tg_event event{};
      event.kind = TG_EVENT_ABORT;
      event.attempt = attempt_;
      members_[name].events.push_back(event);
    }
    return {Code::kUnavailable, trouble};
  }
  ++epoch_;
  spec_ = spec;
  return OkStatus();
}

MemoryWorld::MemoryWorld(MemoryNet* net, std::string member)
    : net_(net),
      member_(std::move(member)),
      device_(device::MakePlatform({}).value()->Importers().kv) {
  const model::Config& config = net->checkpoint_->config();
  model_.platform = "host";
  model_.world = "test";
  model_.member = member_.c_str();
  model_.config_json = net->checkpoint_->config_json().c_str();
  model_.config_json_size = net->checkpoint_->config_json().size();
  model_.layers = config.layers;
  model_.moe_layers =
      static_cast<uint32_t>(std::count(config.moe_layer.begin(), config.moe_layer.end(), true));
  model_.hidden = config.hidden;
  model_.moe_inner = config.moe_inner;
  model_.experts = config.experts;
  model_.top_k = config.top_k;
  model_.query_heads = config.query_heads;
  model_.kv_heads = config.kv_heads;
  model_.head_dim = config.head_dim;
  model_.granule_rows = net->checkpoint_->granule_rows();
  model_.granules = net->checkpoint_->granules();
  model_.granule_bytes = net->checkpoint_->granule_bytes();
  model_.dtype = static_cast<uint32_t>(net->checkpoint_->dtype());
  model_.kv = net->members_[member_].kv.data();
  model_.kv_bytes = net->members_[member_].kv.size();
  for (const model::DenseTensor& tensor : net->checkpoint_->dense()) {
    tg_tensor& to = dense_.emplace_back();
    to.name = tensor.name.c_str();
    to.dtype = static_cast<uint32_t>(tensor.dtype);
    to.rank = static_cast<uint32_t>(tensor.shape.size());
    std::copy(tensor.shape.begin(), tensor.shape.end(), to.shape);
    to.data = tensor.data;
  }
}

const tg_maps* MemoryWorld::maps() const {
  std::lock_guard lock(net_->mu_);
  const auto& current = net_->members_[member_].current;
  return current ? &current->maps : nullptr;
}

Result<tg_event> MemoryWorld::Poll(int) {
  std::lock_guard lock(net_->mu_);
  std::deque<tg_event>& events = net_->members_[member_].events;
  tg_event event{};
  if (!events.empty()) {
    event = events.front();
    events.pop_front();
    if (event.kind == TG_EVENT_FLIPPED) {
      net_->members_[member_].flipped = true;
      net_->changed_.notify_all();
    }
  }
  return event;
}

Status MemoryWorld::Prepared(uint64_t, bool ok, const std::string& message) {
  std::lock_guard lock(net_->mu_);
  net_->members_[member_].prepared = ok;
  if (!ok) net_->members_[member_].refusal = message;
  net_->changed_.notify_all();
  return OkStatus();
}

tg_vote MemoryWorld::Word() {
  std::lock_guard lock(net_->mu_);
  const MemoryNet::Member& member = net_->members_[member_];
  const bool armed = net_->armed_ && !member.flipped;
  return {armed ? net_->epoch_ + 1 : member.current->maps.epoch, armed ? 7ull : 0};
}

bool MemoryWorld::Decide(std::span<const tg_vote> words) {
  return words[0].hash != 0 && std::all_of(words.begin(), words.end(), [&](const tg_vote& word) {
           return word.hash == words[0].hash && word.epoch == words[0].epoch;
         });
}

Status MemoryWorld::Commit() {
  std::lock_guard lock(net_->mu_);
  MemoryNet::Member& member = net_->members_[member_];
  member.current = member.target;
  member.flipped = true;
  net_->changed_.notify_all();
  return OkStatus();
}

void MemoryWorld::Stop(bool) {
  std::lock_guard lock(net_->mu_);
  net_->members_[member_].stopped = true;
  net_->changed_.notify_all();
}

bool MemoryWorld::stopped() const {
  std::lock_guard lock(net_->mu_);
  return net_->members_[member_].stopped;
}

Status MemoryWorld::Join(int) { return Commit(); }

Status MemoryWorld::PullKv(std::span<const tg_kv_move> moves) {
  if (staged_) return {Code::kInvalid, "one at a time"};
  bool fails = false;
  {
    std::lock_guard lock(net_->mu_);
    fails = net_->staging_.flips_fail > 0;
    if (fails) --net_->staging_.flips_fail;
  }
  staged_ = fails ? Result<uint64_t>(Status{Code::kEngine, "a source failed"}) : Pull(moves);
  return OkStatus();
}

Result<uint64_t> MemoryWorld::Pull(std::span<const tg_kv_move> moves) {
  std::lock_guard lock(net_->mu_);
  MemoryNet::Member& me = net_->members_[member_];
  uint64_t bytes = 0;
  for (const tg_kv_move& move : moves) {
    const MemoryNet::Member& from = net_->members_[me.current->spec.members[move.source_rank]];
    if (&from == &me) return Status{Code::kInvalid, "a pull from oneself"};
    if (move.source_offset + move.length > from.kv.size() ||
        move.target_offset + move.length > me.kv.size()) {
      return Status{Code::kInvalid, "a pull beyond the KV region"};
    }
    std::memcpy(me.kv.data() + move.target_offset, from.kv.data() + move.source_offset,
                move.length);
    bytes += move.length;
  }
  return bytes;
}

Status MemoryWorld::StageKv(std::span<const tg_kv_move> moves) {
  if (staged_) return {Code::kInvalid, "one at a time"};
  uint32_t fails = 0;
  {
    const std::lock_guard lock(net_->mu_);
    fails = net_->staging_.fails;
  }
  looks_ = 0;
  staged_ = fails > 0 && ++stagings_ % fails == 0
                ? Result<uint64_t>(Status{Code::kEngine, "a source failed"})
                : Pull(moves);
  return OkStatus();
}

Result<WorldView::StagedKv> MemoryWorld::KvStaged(int timeout_ms) {
  if (!staged_) return Status{Code::kInvalid, "nothing is staged"};
  uint32_t looks = 0;
  {
    const std::lock_guard lock(net_->mu_);
    looks = net_->staging_.looks;
  }
  if (timeout_ms == 0 && ++looks_ < looks) return StagedKv{};
  const Result<uint64_t> bytes = *std::exchange(staged_, std::nullopt);
  if (!bytes.ok()) return bytes.status();
  return StagedKv{StagedKv::State::kHere, *bytes};
}

void MemoryWorld::Count(uint32_t moe_ordinal, uint32_t expert, uint64_t tokens) {
  routed_ += tokens;
  routed_by_[{moe_ordinal, expert}] += tokens;
}
void MemoryWorld::CountExecuted(uint32_t moe_ordinal, uint32_t expert, uint64_t tokens) {
  executed_[{moe_ordinal, expert}] += tokens;
}

}  // namespace tangram::engine::testing
