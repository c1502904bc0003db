#include "agent/engine/turn/turn.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <thread>

#include "agent/base/fault.h"
#include "agent/engine/turn/asked.h"
#include "agent/engine/world/groups.h"

namespace tangram::engine {
namespace {

using Clock = std::chrono::steady_clock;

const fault::Point kBeforeExchange("engine.before_exchange");
const fault::Point kAfterExchange("engine.after_exchange");

constexpr auto kLoadPeriod = std::chrono::milliseconds(250);
constexpr int kOutsideWaitMs = 5;
constexpr size_t kUnknownCancels = 4096;
// Steps per attempt that may end early: the step in which this rank's permit arrives, and the next
// one, in which those of the others have arrived, too. An attempt that is declined until requests
// have ended does not keep shortening steps.
constexpr uint32_t kHurried = 2;

}  // namespace

Status Turn::Run(const std::atomic<bool>& stop) {
  stop_ = &stop;
  while (!stop.load(std::memory_order_relaxed)) TANGRAM_RETURN_IF_ERROR(Once());
  return OkStatus();
}

Status Turn::Once() {
  TakeInbox();
  TANGRAM_RETURN_IF_ERROR(TakeEvents(0));
  if (epoch_ == nullptr) return Outside();
  if (stopped_) return StandStill();
  const Status step = world_->stopped() ? Fenced() : Step();
  if (step.code() != Code::kUnavailable) {
    // This rank ends because of it, so it leaves a report.
    if (!step.ok()) world_->Missed(comm_.missed());
    return step;
  }
  GiveUp(step);
  return OkStatus();
}

void Turn::TakeInbox() {
  for (InboxItem& item : inbox_->TakeAll()) {
    if (auto* cancel = std::get_if<CancelItem>(&item)) {
      if (backend_->Cancel(cancel->request)) continue;
      unknown_cancels_.push_back(std::move(cancel->request));
      if (unknown_cancels_.size() > kUnknownCancels) unknown_cancels_.pop_front();
      continue;
    }
    SubmitItem& submit = std::get<SubmitItem>(item);
    if (std::string wrong = WhatIsNotServed(submit.submit, backend_->can()); !wrong.empty()) {
      v1::Refused refused;
      refused.set_request(submit.submit.request());
      refused.set_code(v1::Refused::CODE_INVALID);
      refused.set_message(std::move(wrong));
      sink_->Refuse(submit.gateway, std::move(refused));
      continue;
    }
    backend_->Submit(submit.gateway, std::move(submit.submit));
  }
}

Status Turn::TakeEvents(int timeout_ms) {
  if (kept_event_) {
    const tg_event event = *std::exchange(kept_event_, std::nullopt);
    TANGRAM_RETURN_IF_ERROR(TakeEvent(event));
  }
  while (true) {
    Result<tg_event> event = world_->Poll(timeout_ms);
    timeout_ms = 0;
    if (!event.ok()) {
      if (event.status().code() != Code::kUnavailable) return event.status();
      // The memory stays mapped: the active layout can be computed without the agent.
      if (!agent_gone_) spdlog::error("agent disconnected error=\"{}\"", event.status().message());
      agent_gone_ = true;
      return OkStatus();
    }
    agent_gone_ = false;
    if (event->kind == TG_EVENT_NONE) return CheckPreparation();
    TANGRAM_RETURN_IF_ERROR(TakeEvent(*event));
  }
}

Status Turn::TakeEvent(const tg_event& event) {
  switch (event.kind) {
    case TG_EVENT_NONE:
      break;
    case TG_EVENT_PREPARE:
      Prepare(event);
      break;
    case TG_EVENT_ABORT:
      if (preparation_) spdlog::info("attempt ended attempt={}", preparation_->attempt());
      preparation_.reset();
      load_reported_ = {};  // gateways send requests here again
      if (staged_ == event.attempt) UnstageKv();
      if (pending_ && pending_->attempt == event.attempt) DropPending();
      mesh_->KeepOnly({comm_.members().begin(), comm_.members().end()});
      break;
    case TG_EVENT_FLIPPED:
      return Follow(event);
  }
  return OkStatus();
}

void Turn::Prepare(const tg_event& event) {
  Result<Preparation> begun =
      Preparation::Begin(event, world_->model(), mesh_,
                         {options_.prepare_timeout, options_.most_paused}, &patience_, time_.Now());
  const Status fits =
      begun.ok() ? backend_->Fits(*event.target, event.repair != 0) : begun.status();
  if (!fits.ok()) {
    spdlog::warn("flip rejected attempt={} error=\"{}\"", event.attempt, fits.message());
    (void)world_->Prepared(event.attempt, false, fits.message());
    return;
  }
  preparation_ = std::move(*begun);
  if (GivesHomesUp()) load_reported_ = {};  // later requests should not have to move
  spdlog::info("preparing flip attempt={} epoch={} members={}", event.attempt, event.target_epoch,
               preparation_->target().members.size());
}

Status Turn::CheckPreparation() {
  if (!preparation_ || preparation_->answered()) return OkStatus();
  mesh_->Progress(0);
  // The attempt may have ended by now, or the agent be gone: the next event reports it.
  if (const Status told = preparation_->Answer(*mesh_, world_, time_.Now()); !told.ok()) {
    spdlog::warn("reply to Prepare not sent attempt={} error=\"{}\"", preparation_->attempt(),
                 told.message());
  }
  return OkStatus();
}

Status Turn::Outside() {
  mesh_->Progress(kOutsideWaitMs);
  if (!preparation_) return OkStatus();
  TANGRAM_RETURN_IF_ERROR(CheckPreparation());
  if (!preparation_->answered() || !preparation_->joins() ||
      !preparation_->communicator().Begun()) {
    return OkStatus();
  }
  // Members of the target step in it: the flip has happened, and this rank follows.
  const Status joined = world_->Join(1000);
  if (joined.code() == Code::kUnavailable) return OkStatus();
  TANGRAM_RETURN_IF_ERROR(joined);
  return Enter(Entry::kEmpty);
}

Status Turn::Step() {
  const Clock::time_point begun = time_.Now();
  StageKv();
  Backend::Announcement announced = backend_->Announce(step_);
  Control mine;
  mine.word = world_->Word();
  if (mine.word.epoch != epoch() && KeepsWordBack()) mine.word = {epoch(), 0};
  mine.pending = preparation_.has_value();
  mine.pause = preparation_ && begun < preparation_->paused_until();
  mine.work = announced.work;
  mine.rows = announced.rows;
  mine.text = std::move(announced.text);
  (void)fault::Hit("engine.before_exchange");
  std::vector<Bytes> gathered;
  comm_.SetWork(rows_);  // the slowest rank may still compute that step
  comm_.SetDoing(TG_IN_VOTE);
  TANGRAM_RETURN_IF_ERROR(comm_.Gather(step_, kControlSequence, mine.Encode(), &gathered));
  std::vector<tg_vote> words;
  std::vector<Bytes> texts;
  bool work = false, pending = false, pause = false;
  uint64_t rows = 0;
  for (uint32_t r = 0; r < gathered.size(); ++r) {
    Result<Control> control = Control::Decode(gathered[r]);
    if (!control.ok()) return Malformed(r, control.status());
    words.push_back(control->word);
    work = work || control->work;
    pending = pending || control->pending;
    pause = pause || control->pause;
    rows += control->rows;
    texts.push_back(std::move(control->text));
  }
  uint32_t malformed = kNoRank;
  const Status heard = backend_->Heard(texts, &malformed);
  if (!heard.ok()) return Malformed(malformed, heard);
  (void)fault::Hit("engine.after_exchange");

  if (world_->Decide(words)) {
    comm_.SetWork(std::nullopt);
    comm_.SetDoing(TG_IN_FLIP);
    Result<bool> flipped = Flip();
    if (!flipped.ok()) return flipped.status();
    if (*flipped) return OkStatus();
  }
  // All received the same votes: no rank computes the announced rows, and they are announced again.
  if (pause) {
    rows = 0;
    ++paused_;
  }
  rows_ = rows;
  comm_.SetWork(rows_);
  comm_.SetDoing(TG_IN_EXCHANGE);
  beaten_ = time_.Now();
  if (rows > 0) TANGRAM_RETURN_IF_ERROR(backend_->Compute({*epoch_, step_, rows, comm_, *this}));
  backend_->StepDone(!pause);
  if (staged_ != 0) kv_ready_ = backend_->Advance();
  world_->StepDone();
  ++step_;
  ReportLoad(false);
  Pause(work && !pause, pending, begun);
  return OkStatus();
}

Status Turn::Malformed(uint32_t rank, const Status& why) {
  if (rank == kNoRank || rank == comm_.rank()) return why;
  comm_.Missed(rank, TG_HOSTILE);
  return {Code::kUnavailable, comm_.members()[rank] + ": " + why.message()};
}

Status Turn::Answer() {
  TANGRAM_RETURN_IF_ERROR(MayEmit());
  Result<tg_event> event = world_->Poll(0);
  if (event.ok() && event->kind == TG_EVENT_FLIPPED) {
    kept_event_ = *event;  // no rank enters another epoch within a step
  } else if (event.ok()) {
    TANGRAM_RETURN_IF_ERROR(TakeEvent(*event));
  } else if (event.status().code() != Code::kUnavailable) {
    return event.status();
  }
  TANGRAM_RETURN_IF_ERROR(CheckPreparation());
  mesh_->Progress(0);
  const Clock::time_point now = time_.Now();
  if (now - beaten_ >= options_.patience.heartbeat()) {
    mesh_->Beat();
    beaten_ = now;
  }
  return OkStatus();
}

Status Turn::Lives() {
  TANGRAM_RETURN_IF_ERROR(MayEmit());
  mesh_->Beat();
  mesh_->Progress(0);
  for (uint32_t r = 0; r < comm_.size(); ++r) {
    const std::string& member = comm_.members()[r];
    if (r == comm_.rank() || !mesh_->GaveUp(member, epoch())) continue;
    comm_.Missed(r, TG_GONE);
    return {Code::kUnavailable, member + " abandoned the flip: " + mesh_->Missing({&member, 1})};
  }
  return OkStatus();
}

Status Turn::MayEmit() { return world_->stopped() ? Fenced() : OkStatus(); }

bool Turn::Hurries() {
  if (kept_event_ || (stop_ != nullptr && stop_->load(std::memory_order_relaxed)) ||
      !mesh_->Connected(comm_.members())) {  // the next exchange finds the lost peer
    return true;
  }
  if (!preparation_ || !preparation_->answered() || preparation_->repair()) return false;
  if (hurried_attempt_ != preparation_->attempt()) {
    hurried_attempt_ = preparation_->attempt();
    hurried_ = 0;
  }
  // The vote latches here as it would in the next step's control exchange.
  if (hurried_ >= kHurried || world_->Word().epoch == epoch()) return false;
  ++hurried_;
  return true;
}

void Turn::Pause(bool work, bool pending, Clock::time_point begun) {
  if (work) {
    idle_turns_ = 0;
    std::this_thread::sleep_until(begun + options_.least_step);
    return;
  }
  // The members pause alike, so an idle world costs a few short wake-ups. A request ends the pause
  // of its own rank, and the others wake when theirs ends.
  ++idle_turns_;
  const auto longest = pending ? std::chrono::milliseconds(1) : options_.idle_pause;
  inbox_->WaitFor(std::min<std::chrono::milliseconds>(
      longest, std::chrono::milliseconds(1 + idle_turns_ / 50)));
}

bool Turn::GivesHomesUp() const {
  if (!preparation_ || epoch_ == nullptr) return false;
  const Side& to = preparation_->target();
  const auto self = std::find(to.members.begin(), to.members.end(), comm_.members()[comm_.rank()]);
  return self == to.members.end() ||
         !Accepts(to.groups, static_cast<uint32_t>(self - to.members.begin()));
}

void Turn::ReportLoad(bool now) {
  const Clock::time_point time = time_.Now();
  if (!now && time - load_reported_ < kLoadPeriod) return;
  load_reported_ = time;
  v1::Load load;
  tg_engine_stats stats = TG_INIT(tg_engine_stats);
  backend_->Measure(&load, &stats);
  load.set_step(step_);
  load.set_leaving(GivesHomesUp());
  world_->Report(stats);
  sink_->SetLoad(std::move(load));
}

}  // namespace tangram::engine
