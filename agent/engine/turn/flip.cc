// The step loop's part of a flip: manifests, plan, pull, barrier, commit, the new epoch.
#include <spdlog/spdlog.h>
#include <time.h>

#include <algorithm>

#include "agent/base/fault.h"
#include "agent/engine/turn/turn.h"
#include "agent/engine/world/groups.h"

namespace tangram::engine {
namespace {

const fault::Point kFlipManifest("engine.flip_manifest");
const fault::Point kFlipPulled("engine.flip_pulled");
const fault::Point kFlipCommit("engine.flip_commit");
const fault::Point kFlipEnter("engine.flip_enter");

std::chrono::nanoseconds ThreadCpu() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

}  // namespace

// Times of a flip's phases, for the log.
class Turn::Stopwatch {
 public:
  void Lap(const char* name) {
    const auto now = std::chrono::steady_clock::now();
    text_ +=
        " " + std::string(name) + "_us=" +
        std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(now - last_).count());
    last_ = now;
  }
  const std::string& text() const { return text_; }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::string text_;
};

Result<bool> Turn::Flip() {
  Stopwatch watch;
  const auto cpu = ThreadCpu();
  // Equal votes imply that every member prepared this very target.
  if (!preparation_) return Status{Code::kInternal, "the gate opened, but no flip was prepared"};
  Pending pending;
  pending.attempt = preparation_->attempt();
  pending.target_epoch = preparation_->target_epoch();
  pending.stays = true;
  Status pulled;
  if (epoch_->side != preparation_->target()) {
    Result<bool> fits = Carry(&watch, &pending, &pulled);
    if (!fits.ok() || !*fits) return fits;
    ++carried_;
  }
  (void)fault::Hit("engine.flip_pulled");
  if (pulled.ok()) pending_ = pending;
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
  spdlog::info("flip committed epoch={} kv_bytes={} requests_moved={}{}", pending_->target_epoch,
               pending_->bytes, pending_->requests_moved, watch.text());
  const bool carries = pending_->carries;
  TANGRAM_RETURN_IF_ERROR(EnterPending());
  if (carries) carrying_ += ThreadCpu() - cpu;
  return true;
}

Result<bool> Turn::Carry(Stopwatch* watch, Pending* pending, Status* pulled) {
  std::vector<Bytes> manifests;
  const Side& to = preparation_->target();
  uint32_t malformed = kNoRank;
  const auto plan = [&](bool whole) -> Status {
    TANGRAM_RETURN_IF_ERROR(comm_.Gather(step_, whole ? kWholeSequence : kManifestSequence,
                                         backend_->Manifest(to, whole), &manifests));
    watch->Lap(whole ? "whole" : "manifest");
    (void)fault::Hit("engine.flip_manifest");
    return backend_->Plan(epoch_->side, to, whole, manifests, &pending->requests_moved, &malformed);
  };
  Status fits = plan(false);
  if (fits.code() == Code::kNotHeld) fits = plan(true);
  if (!fits.ok()) {
    if (malformed != kNoRank) return Malformed(malformed, fits);
    // A pure function of the gathered manifests: all decline, and try again at the next boundary,
    // when requests have ended.
    if (fits.code() != Code::kNoMemory) return fits;
    if (declined_++ % 256 == 0) {
      spdlog::warn("flip declined, KV does not fit yet attempt={} error=\"{}\"",
                   preparation_->attempt(), fits.message());
    }
    world_->Decline(fits.message());
    preparation_->PauseNoMore();  // requests must end first
    return false;
  }
  pending->carries = true;
  const auto self = std::find(to.members.begin(), to.members.end(), comm_.members()[comm_.rank()]);
  pending->stays = self != to.members.end();
  watch->Lap("plan");
  if (!pending->stays) return true;
  // The other ranks learn of an error of this rank alone as a failed pull: all stay.
  const auto bytes = backend_->Bring(static_cast<uint32_t>(self - to.members.begin()), *this);
  if (bytes.status().code() == Code::kUnavailable) return bytes.status();
  *pulled = bytes.status();
  if (bytes.ok()) pending->bytes = *bytes;
  watch->Lap("pull");
  return true;
}

// A barrier: no rank writes into a source before all ranks have fetched, and all learn of a failed
// pull. Then the old pages are still intact, and all stay.
Result<bool> Turn::AllBrought(const Status& pulled) {
  ByteWriter answer;
  answer.PutString(pulled.ok() ? "" : pulled.message() + " ");
  std::vector<Bytes> gathered;
  TANGRAM_RETURN_IF_ERROR(comm_.Gather(step_, kPulledSequence, answer.Take(), &gathered));
  std::string failed;
  for (uint32_t r = 0; r < gathered.size(); ++r) {
    ByteReader reader(gathered[r]);
    const std::string message = reader.GetString();
    if (!reader.done()) {
      return Malformed(r, {Code::kInternal, "malformed answer after the KV pull"});
    }
    if (!message.empty()) failed += "rank " + std::to_string(r) + ": " + message;
  }
  if (failed.empty()) return true;
  ++declined_;
  spdlog::warn("flip declined, KV migration failed attempt={} error=\"{}\"",
               preparation_->attempt(), failed);
  world_->Decline(failed);
  DropPending();
  return false;
}

void Turn::StageKv() {
  if (options_.kv_ahead.count() < 0 || !preparation_ || !preparation_->answered() ||
      preparation_->repair() || staged_ == preparation_->attempt() ||
      epoch_->side == preparation_->target()) {
    return;
  }
  staged_ = preparation_->attempt();
  kv_ready_ = false;  // until the first Advance
  kept_back_.reset();
  backend_->Stage(staged_, preparation_->target());
}

void Turn::UnstageKv() {
  staged_ = 0;
  backend_->Unstage();
}

// A rank without a vote prevents the flip: the others see it as not ready.
bool Turn::KeepsWordBack() {
  if (staged_ == 0 || kv_ready_) return false;
  const auto now = time_.Now();
  if (!kept_back_) kept_back_ = now;
  return now - *kept_back_ < options_.kv_ahead;
}

void Turn::DropPending() {
  pending_.reset();
  backend_->Drop();
}

Status Turn::EnterPending() {
  const Pending pending = *std::exchange(pending_, std::nullopt);
  if (pending.stays) return Enter(pending.carries ? Entry::kCarried : Entry::kKept);
  Leave();
  return OkStatus();
}

Status Turn::Enter(Entry entry) {
  const tg_maps* maps = world_->maps();
  if (maps == nullptr || maps->rank < 0) {
    return {Code::kInternal, "this rank is not in the active layout"};
  }
  Result<std::vector<kv::LayerGroups>> groups = GroupsOf(*maps, world_->model());
  if (!groups.ok()) return groups.status();
  std::vector<std::string> members(maps->members, maps->members + maps->world_size);
  auto next = std::make_unique<Epoch>(
      Epoch{maps, {std::move(*groups), members}, static_cast<uint32_t>(maps->rank)});
  mesh_->KeepOnly({members.begin(), members.end()});
  comm_ = Communicator(mesh_, maps->epoch, next->rank, std::move(members), &patience_);
  step_ = 0;
  rows_.reset();
  idle_turns_ = 0;
  preparation_.reset();
  pending_.reset();
  staged_ = 0;
  stopped_ = world_->stopped();
  unreachable_.clear();
  if (stopped_) WatchTheOthers();
  TANGRAM_RETURN_IF_ERROR(backend_->Enter(*next, entry));
  epoch_ = std::move(next);
  for (const std::string& request : unknown_cancels_) (void)backend_->Cancel(request);
  TakeInbox();  // submits received while this rank was stopped belong to it, too
  sink_->SetWorld(WorldMessage(*maps, epoch_->side.groups), world_->model().member,
                  backend_->Rosters());
  ReportLoad(true);
  return OkStatus();
}

void Turn::Leave() {
  if (const tg_maps* maps = world_->maps(); maps != nullptr) {
    const Result<std::vector<kv::LayerGroups>> groups = GroupsOf(*maps, world_->model());
    if (groups.ok()) sink_->SetWorld(WorldMessage(*maps, *groups), world_->model().member, {});
  }
  backend_->Leave();
  staged_ = 0;
  epoch_.reset();
  comm_ = Communicator();
  preparation_.reset();
  mesh_->KeepOnly({});
  ReportLoad(true);
}

v1::World Turn::WorldMessage(const tg_maps& maps,
                             const std::vector<kv::LayerGroups>& groups) const {
  v1::World out;
  out.set_world(world_->model().world);
  out.set_epoch(maps.epoch);
  for (uint32_t r = 0; r < maps.world_size; ++r) {
    v1::WorldMember* member = out.add_members();
    member->set_rank(r);
    member->set_member(maps.members[r]);
    member->set_frontend(maps.frontends[r]);
    member->set_accepts(Accepts(groups, r));
  }
  out.set_max_tokens(backend_->max_tokens());
  out.set_vocabulary(backend_->vocabulary());
  for (std::string& field : backend_->can()) out.add_can(std::move(field));
  return out;
}

}  // namespace tangram::engine
