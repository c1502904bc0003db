// The engine's part of a flip: carry KV and requests, commit, and enter the new epoch.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>

#include "agent/base/fault.h"
#include "e2e/engine/step/engine.h"

namespace tangram::engine {
namespace {

const fault::Point kFlipManifest("engine.flip_manifest");
const fault::Point kFlipPulled("engine.flip_pulled");
const fault::Point kFlipCommit("engine.flip_commit");
const fault::Point kFlipEnter("engine.flip_enter");

}  // namespace

// Where a flip's time goes, for the log.
class Engine::Stopwatch {
 public:
  void Lap(const char* name) {
    const auto now = std::chrono::steady_clock::now();
    text_ +=
        " " + std::string(name) + " " +
        std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(now - last_).count());
    last_ = now;
  }
  const std::string& text() const { return text_; }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::string text_;
};

Result<bool> Engine::Flip() {
  Stopwatch watch;
  // Equal words imply that every member prepared this very target.
  if (!preparation_) return Status{Code::kInternal, "the gate opened, but nothing was prepared"};
  const Side from{groups_, comm_.members()};
  Pending pending;
  pending.attempt = preparation_->attempt();
  pending.target_epoch = preparation_->target_epoch();
  pending.stays = true;
  Status pulled;
  if (from != preparation_->target()) {
    Result<bool> fits = Carry(from, &watch, &pending, &pulled);
    if (!fits.ok() || !*fits) return fits;
    ++carried_;
  }
  (void)fault::Hit("engine.flip_pulled");
  if (pulled.ok()) pending_ = std::move(pending);
  const Result<bool> all = AllBrought(pulled);
  if (!all.ok() || !*all) return all;
  watch.Lap("wait");
  (void)fault::Hit("engine.flip_commit");
  if (const Status committed = world_->Commit(); !committed.ok()) {
    return world_->stopped() ? Fenced() : committed;
  }
  ++flips_;
  watch.Lap("commit");
  (void)fault::Hit("engine.flip_enter");
  spdlog::info("epoch {}: {} bytes of KV brought here, {} requests changed home, microseconds:{}",
               pending_->target_epoch, pending_->bytes, pending_->requests_moved, watch.text());
  TANGRAM_RETURN_IF_ERROR(EnterPending());
  return true;
}

Result<bool> Engine::Carry(const Side& from, Stopwatch* watch, Pending* pending, Status* pulled) {
  const uint32_t me = comm_.rank();
  std::vector<Bytes> gathered;
  TANGRAM_RETURN_IF_ERROR(
      comm_.Gather(step_, kManifestSequence, EncodeManifest(scheduler_, pages_), &gathered));
  std::vector<RankManifest> manifests;
  for (const Bytes& bytes : gathered) {
    Result<RankManifest> manifest = DecodeManifest(bytes);
    if (!manifest.ok()) return manifest.status();
    manifests.push_back(std::move(*manifest));
  }
  watch->Lap("manifest");
  (void)fault::Hit("engine.flip_manifest");
  const Side& to = preparation_->target();
  Result<Carrying> carrying = PlanCarry(shape_, from, to, &manifests);
  if (!carrying.ok()) {
    // A pure function of what all gathered: all decline, and may be asked again at the next
    // boundary, when requests have ended.
    if (carrying.status().code() != Code::kNoMemory) return carrying.status();
    if (declined_++ % 256 == 0) {
      spdlog::warn("attempt {}: KV does not fit yet: {}", preparation_->attempt(),
                   carrying.status().message());
    }
    world_->Decline(carrying.status().message());
    return false;
  }
  pending->requests_moved = carrying->plan.requests_moved;
  const auto self = std::find(to.members.begin(), to.members.end(), comm_.members()[me]);
  pending->stays = self != to.members.end();
  if (!pending->stays) return true;
  const auto rank = static_cast<uint32_t>(self - to.members.begin());
  // What this rank alone finds wrong the others hear as a pull that failed: all stay.
  *pulled = Bring(*carrying, std::move(manifests), rank, watch, pending);
  watch->Lap("pull");
  return true;
}

// This rank's part, carried out beside what is in force.
Status Engine::Bring(const Carrying& carrying, std::vector<RankManifest> manifests, uint32_t rank,
                     Stopwatch* watch, Pending* pending) {
  const Result<kv::RankPlan> part = PartOf(carrying, rank);
  if (!part.ok()) return part.status();
  const Side& to = preparation_->target();
  const HeldMap held(to.groups, shape_, static_cast<uint32_t>(to.members.size()));
  std::vector<kv::PageCopy> copies;
  Result<PageStore> pages = pages_.After(*part, held, rank, &copies);
  if (!pages.ok()) return pages.status();
  watch->Lap("plan");
  // Others wait: who brings much says that it lives.
  std::vector<kv::Format> sources;
  for (const kv::RankState& old : carrying.input.ranks) {
    sources.push_back(PoolOf(shape_, old.total_pages));
  }
  const Result<uint64_t> bytes = PullPages(*world_, *kv_, sources, PoolOf(shape_, pages->total()),
                                           comm_.rank(), copies, [this] { mesh_->Beat(); });
  if (!bytes.ok()) return bytes.status();
  pending->bytes = *bytes;
  pending->carried.emplace(Pending::Carried{std::move(*pages),
                                            AdoptOf(carrying.plan, std::move(manifests), rank),
                                            carrying.plan.next_block[rank]});
  return OkStatus();
}

// Nobody writes into a source before all have what they came for, and all hear of a pull that
// failed: then the old pages are still whole, and all stay.
Result<bool> Engine::AllBrought(const Status& pulled) {
  ByteWriter answer;
  answer.PutString(pulled.ok() ? "" : pulled.message() + " ");
  std::vector<Bytes> gathered;
  TANGRAM_RETURN_IF_ERROR(comm_.Gather(step_, kPulledSequence, answer.Take(), &gathered));
  std::string failed;
  for (uint32_t r = 0; r < gathered.size(); ++r) {
    ByteReader reader(gathered[r]);
    const std::string message = reader.GetString();
    if (!reader.done()) return Status{Code::kInternal, "malformed answer after the KV pull"};
    if (!message.empty()) failed += "rank " + std::to_string(r) + ": " + message;
  }
  if (failed.empty()) return true;
  ++declined_;
  spdlog::warn("attempt {}: KV was not carried: {}", preparation_->attempt(), failed);
  world_->Decline(failed);
  pending_.reset();
  return false;
}

Status Engine::EnterPending() {
  Pending pending = std::move(*pending_);
  pending_.reset();
  if (!pending.stays) {
    Leave();
    return OkStatus();
  }
  if (!pending.carried) return Enter(std::move(pages_), std::nullopt, 0);
  return Enter(std::move(pending.carried->pages), std::move(pending.carried->adopted),
               pending.carried->next_block);
}

Status Engine::Enter(PageStore pages, std::optional<Adopted> adopted, uint32_t next_block) {
  const tg_maps* maps = world_->maps();
  if (maps == nullptr || maps->rank < 0) {
    return {Code::kInternal, "a layout is in force, but this rank is not in it"};
  }
  Result<std::vector<kv::LayerGroups>> groups = GroupsOf(*maps, world_->model());
  if (!groups.ok()) return groups.status();
  Result<PacedLayout> paced =
      PaceFor(*maps, true);  // what may be refused was, when it was prepared
  if (!paced.ok()) return paced.status();
  TANGRAM_RETURN_IF_ERROR(BindModel());
  paced_.layout = std::move(*paced);
  paced_.imbalance = 1;
  paced_.ended = Paced::Ended::kUnpaced;
  meter_.Enter(maps->epoch);
  maps_ = maps;
  groups_ = std::move(*groups);
  held_ = HeldMap(groups_, shape_, maps->world_size);
  std::vector<std::string> members(maps->members, maps->members + maps->world_size);
  mesh_->KeepOnly({members.begin(), members.end()});
  comm_ = Communicator(mesh_, maps->epoch, static_cast<uint32_t>(maps->rank), std::move(members),
                       &patience_);
  step_ = 0;
  rows_.reset();
  idle_turns_ = 0;
  preparation_.reset();
  pending_.reset();
  stopped_ = world_->stopped();
  unreachable_.clear();
  if (stopped_) WatchTheOthers();
  pages_ = std::move(pages);
  kv_->Forget();
  pieces_.Forget();
  TANGRAM_RETURN_IF_ERROR(pages_.Audit());
  scheduler_.SetLayout(&held_, static_cast<uint32_t>(maps->rank));
  if (adopted) {
    scheduler_.Replace(std::move(adopted->running), std::move(adopted->waiting), next_block);
  }
  for (const std::string& request : unknown_cancels_) (void)scheduler_.Cancel(request);
  TakeInbox();  // what came while this rank stood still is its own, too
  sink_->SetWorld(WorldMessage(*maps, held_), world_->model().member, Rosters());
  ReportLoad(true);
  return OkStatus();
}

Status Engine::BindModel() {
  if (model_) return OkStatus();
  std::vector<model::DenseTensor> tensors;
  std::vector<Reader::Range> ranges;
  for (const tg_tensor& tensor : world_->dense()) {
    model::DenseTensor& to = tensors.emplace_back();
    to.name = tensor.name;
    to.dtype = static_cast<model::DType>(tensor.dtype);
    to.shape.assign(tensor.shape, tensor.shape + tensor.rank);
    uint64_t bytes = model::SizeOf(to.dtype);
    for (const uint64_t extent : to.shape) bytes *= extent;
    ranges.push_back({tensor.data, bytes});
  }
  const Result<std::vector<const void*>> data = dense_.Read(ranges);
  if (!data.ok()) return data.status();
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].data = (*data)[i];
  Result<model::Model> bound = model::Model::Bind(*config_, tensors);
  if (!bound.ok()) return bound.status();
  model_ = std::move(*bound);
  return OkStatus();
}

void Engine::Leave() {
  const tg_maps* maps = world_->maps();
  if (maps != nullptr) {
    Result<std::vector<kv::LayerGroups>> groups = GroupsOf(*maps, world_->model());
    if (groups.ok()) {
      sink_->SetWorld(WorldMessage(*maps, HeldMap(*groups, shape_, maps->world_size)),
                      world_->model().member, {});
    }
  }
  maps_ = nullptr;
  model_.reset();  // the dense weights go; a later join brings them again
  dense_.Forget();
  pieces_.Forget();
  kv_->Forget();
  pages_ = PageStore(pages_.total());
  comm_ = Communicator();
  preparation_.reset();
  mesh_->KeepOnly({});
  scheduler_.SetLayout(nullptr, 0);
  scheduler_.Replace({}, {}, 0);
  ReportLoad(true);
}

v1::World Engine::WorldMessage(const tg_maps& maps, const HeldMap& held) const {
  v1::World out;
  out.set_world(world_->model().world);
  out.set_epoch(maps.epoch);
  for (uint32_t r = 0; r < maps.world_size; ++r) {
    v1::WorldMember* member = out.add_members();
    member->set_rank(r);
    member->set_member(maps.members[r]);
    member->set_frontend(maps.frontends[r]);
    member->set_accepts(held.Accepts(r));
  }
  out.set_max_tokens(options_.limits.max_model_len);
  out.set_vocabulary(config_->vocab);
  return out;
}

}  // namespace tangram::engine
