#include "agent/dispatch/exchange.h"

#include <sched.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "agent/base/wait.h"

namespace tangram::dispatch {
namespace {

using Clock = Wait::Clock;

// While nothing moves: kSpins polls of the links alone; then also checks the clock and yields;
// after kAwake sleeps between polls. Few spins, because with more ranks than processors they take
// another rank's time.
constexpr uint32_t kSpins = 64;
constexpr auto kAwake = std::chrono::milliseconds(2);
constexpr auto kAsleep = std::chrono::microseconds(50);

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Exchange::Enter(uint64_t epoch, Links* links, std::shared_ptr<const Routes> routes) {
  epoch_ = epoch;
  links_ = links;
  routes_ = std::move(routes);
  if (routes_) turns_.resize(size_t{routes_->moe_layers()} * format_.experts, 0);
  for (Pair& pair : pairs_) End(pair);
  next_ = 0;
  const size_t ranks = links_ == nullptr ? 0 : links_->ranks();
  active_.assign(ranks, 1);
  found_.assign(ranks, {});
  fronts_.assign(ranks, {});
  moved_.assign(ranks, 0);
  for (uint32_t r = 0; r < ranks; ++r)
    if (r != links_->rank() && links_->at(r) == nullptr)
      Gone(r, {Code::kUnavailable, "there is no connection with it"}, TG_GONE);
}

void Exchange::End(Pair& pair) {
  pair.stage = Stage::kFree;
  pair.routes.reset();
  pair.rows = {};
  pair.y = nullptr;
}

void Exchange::Abandon() {
  for (Pair& pair : pairs_) End(pair);
  for (auto& of : fronts_)
    for (Front& front : of) front.open = false;  // seen again, popped as of an ended pair
}

void Exchange::Mask(uint32_t rank, std::string cause) {
  // The rank is reported as missed in the older of the open pairs.
  const Pair* in = nullptr;
  for (const Pair* const pair : InOrder())
    if (in == nullptr && pair != nullptr && pair->part[rank] != 0) in = pair;
  const bool back = in != nullptr && in->stage == Stage::kCombining;
  Gone(rank, {Code::kUnavailable, std::move(cause)}, TG_TOLD, in,
       back ? Lane::kCombine : Lane::kDispatch);
}

void Exchange::Gone(uint32_t rank, const Status& why, tg_cause cause, const Pair* in, Lane lane) {
  if (active_[rank] == 0) return;
  active_[rank] = 0;
  found_[rank] = {cause, 0, 0, why.message()};
  if (in != nullptr) {
    found_[rank].doing = lane == Lane::kDispatch ? TG_IN_DISPATCH : TG_IN_COMBINE;
    found_[rank].layer = in->moe_ordinal;
  }
  for (Front& front : fronts_[rank]) front = {};
  if (Link* const link = links_->at(rank)) link->HangUp();
  for (Pair& pair : pairs_) {
    if (pair.stage == Stage::kFree || pair.part[rank] == 0) continue;
    if (options_.strict)
      pair.failed = {why.code(), "rank " + std::to_string(rank) + ": " + why.message()};
    LeaveEmpty(pair, rank);
  }
}

Result<Exchange::Pair*> Exchange::At(const Handle& handle, Stage least, Stage most,
                                     const char* doing) {
  Pair& pair = pairs_[handle.pair % 2];
  const auto bad = [&](const std::string& what) {
    return Status{Code::kInvalid, std::string(doing) + " of pair " + std::to_string(handle.pair) +
                                      " of epoch " + std::to_string(handle.epoch) + ": " + what};
  };
  if (handle.epoch != epoch_) return bad("the epoch is " + std::to_string(epoch_) + " by now");
  if (pair.stage == Stage::kFree || pair.number != handle.pair)
    return bad("it is over: a handle is for one dispatch and its combine");
  if (pair.stage < least || pair.stage > most)
    return bad(pair.stage < least ? "its dispatch is not through yet" : "it is past that");
  if (!pair.failed.ok()) {
    const Status failed = pair.failed;
    End(pair);
    return failed;
  }
  return &pair;
}

Result<Handle> Exchange::Send(uint32_t moe_ordinal, const Rows& rows,
                              std::span<const uint8_t> active) {
  const auto invalid = [](const std::string& what) { return Status{Code::kInvalid, what}; };
  if (!routes_ || links_ == nullptr || moe_ordinal >= routes_->moe_layers())
    return invalid("no active layout has layer " + std::to_string(moe_ordinal) + " of experts");
  const uint32_t ranks = links_->ranks();
  if (!active.empty() && active.size() != ranks)
    return invalid("of a world of " + std::to_string(ranks) + " ranks " +
                   std::to_string(active.size()) + " are said to be active or not");
  if (format_.most_tokens != 0 && rows.count > format_.most_tokens)
    return invalid(std::to_string(rows.count) + " rows in one dispatch, and the most are " +
                   std::to_string(format_.most_tokens));
  Pair& pair = pairs_[next_ % 2];
  if (pair.stage != Stage::kFree)
    return invalid("two pairs are open: the combine of pair " + std::to_string(pair.number) +
                   " comes first");
  pair.layer = routes_->Layer(moe_ordinal);
  pair.part.assign(ranks, 1);
  for (uint32_t r = 0; r < ranks; ++r)
    pair.part[r] = active_[r] != 0 && (active.empty() || active[r] != 0) ? 1 : 0;
  const std::span turns =
      std::span(turns_).subspan(size_t{moe_ordinal} * format_.experts, format_.experts);
  TANGRAM_RETURN_IF_ERROR(Choose(format_, pair.layer, rows, pair.part, ranks, turns, &pair.plan));
  if (options_.strict && !pair.plan.homeless.empty())
    return Status{Code::kUnavailable, "layer " + std::to_string(moe_ordinal) +
                                          " of experts: expert " +
                                          std::to_string(pair.plan.homeless.front().expert) +
                                          " has no alternative without a rank that is left out"};
  pair.stage = Stage::kDispatching;
  pair.number = next_++;
  pair.moe_ordinal = moe_ordinal;
  pair.routes = routes_;
  pair.rows = rows;
  pair.experts.assign(rows.experts, rows.experts + size_t{rows.count} * format_.top_k);
  pair.sent.assign(ranks, {});
  pair.in.resize(ranks);
  for (uint32_t r = 0; r < ranks; ++r) {
    pair.sent[r].total = static_cast<uint32_t>(pair.plan.to[r].rows.size());
    pair.in[r].came = {};
    pair.in[r].choices.clear();
    pair.in[r].weights.clear();
    pair.in[r].at.clear();
  }
  pair.placed = pair.streamed = pair.wraps = false;
  pair.settled = {};
  pair.overflow.reset();
  pair.missing = pair.plan.homeless;
  pair.failed = OkStatus();
  pair.y = nullptr;
  pair.row = 0;
  TakeOwn(pair);
  Poll();
  return Handle{epoch_, pair.number};
}

std::array<Exchange::Pair*, 2> Exchange::InOrder() {
  std::array<Pair*, 2> out{&pairs_[0], &pairs_[1]};
  if (out[0]->number > out[1]->number) std::swap(out[0], out[1]);
  for (Pair*& pair : out)
    if (pair->stage == Stage::kFree || !pair->failed.ok()) pair = nullptr;
  return out;
}

void Exchange::Poll() {
  const auto pairs = InOrder();
  const auto settle = [&](Pair& pair, Lane lane) {
    if (std::exchange(pair.settled[static_cast<size_t>(lane)], true)) return;
    if (const Status settled = links_->Settle(lane); !settled.ok()) pair.failed = settled;
  };
  // Later messages of a lane wait for earlier ones.
  for (Pair* const pair : pairs) {
    if (pair == nullptr) continue;
    Fill(*pair, Lane::kDispatch);
    if (!AllSent(*pair, Lane::kDispatch)) break;
    settle(*pair, Lane::kDispatch);
  }
  for (Pair* const pair : pairs) {
    if (pair == nullptr || pair->stage != Stage::kCombining) continue;
    Fill(*pair, Lane::kCombine);
    if (!AllSent(*pair, Lane::kCombine)) break;
    settle(*pair, Lane::kCombine);
  }
  const auto take = [&] {
    for (uint32_t r = 0; r < links_->ranks(); ++r) {
      Link* const link = links_->at(r);
      if (link == nullptr || active_[r] == 0) continue;
      Take(r, *link, Lane::kDispatch);
      if (active_[r] != 0) Take(r, *link, Lane::kCombine);
    }
  };
  take();
  bool placed = false;
  for (Pair* const pair : pairs) {
    if (pair == nullptr || pair->placed || !MayPlace(*pair)) continue;
    Place(*pair);
    placed = true;
  }
  if (placed) take();
  for (Pair* const pair : pairs)
    if (pair != nullptr && pair->stage == Stage::kCombining) Merge(*pair);
}

bool Exchange::Awaited(const Pair& pair, Lane lane, uint32_t rank) const {
  if (rank == links_->rank() || !InPart(pair, rank)) return false;
  const bool here = fronts_[rank][static_cast<size_t>(lane)].open;
  if (lane == Lane::kDispatch)
    return !pair.sent[rank].complete() || (!here && !pair.in[rank].came.complete());
  return !pair.back[rank].sent.complete() ||
         (!here && pair.merged[rank] < pair.plan.to[rank].rows.size());
}

template <typename Done>
Status Exchange::Await(Pair& pair, Lane lane, const Done& done) {
  std::optional<Wait> silent, stuck;
  std::vector<uint64_t> moved, beats;
  const uint32_t ranks = links_->ranks();
  uint32_t polls = 0;
  uint64_t sum = 0;
  while (true) {
    Poll();
    if (!pair.failed.ok()) {
      const Status failed = pair.failed;
      End(pair);
      return failed;
    }
    if (done()) return OkStatus();
    uint64_t now_sum = 0;
    for (const uint64_t m : moved_) now_sum += m;
    if (now_sum != std::exchange(sum, now_sum)) polls = 0;
    if (++polls < kSpins) {
      Pause();
      continue;
    }
    if (!silent) {
      const auto timeout = options_.timeout.value_or(std::chrono::hours(1));
      silent.emplace(ranks, timeout, timeout / 4, Clock::now());
      // A waiting peer is not silent, but it must complete eventually.
      stuck.emplace(ranks, 3 * timeout, timeout, Clock::now());
      moved = moved_;
      beats.assign(ranks, 0);
    }
    silent->Look(Clock::now());
    stuck->Look(Clock::now());
    for (uint32_t r = 0; r < ranks; ++r) {
      Link* const link = links_->at(r);
      if (r == links_->rank() || link == nullptr || active_[r] == 0) continue;
      if (const Status work = link->Work(); !work.ok()) {
        // First take the data that it sent before it was lost.
        Poll();
        // A transport with unreadable data returns another code than a closed one.
        if (Awaited(pair, lane, r))
          Gone(r, work, work.code() == Code::kUnavailable ? TG_GONE : TG_HOSTILE, &pair, lane);
        continue;
      }
      const bool awaited = Awaited(pair, lane, r);
      if (!awaited || moved[r] != moved_[r]) stuck->Heard(r);
      if (!awaited || moved[r] != moved_[r] ||
          link->Beats() != std::exchange(beats[r], link->Beats()))
        silent->Heard(r);
      moved[r] = moved_[r];
      if (!options_.timeout) continue;
      const bool quiet = silent->Silent(r);
      if (!quiet && !stuck->Silent(r)) continue;
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(quiet ? silent->limit()
                                                                                  : stuck->limit());
      Gone(r,
           {Code::kUnavailable,
            (quiet ? "nothing came from it for " : "it waits for somebody for ") +
                std::to_string(ms.count()) + " ms"},
           quiet ? TG_SILENT : TG_STUCK, &pair, lane);
    }
    if (silent->BeatDue())
      for (uint32_t r = 0; r < ranks; ++r)
        if (Link* const link = links_->at(r); link != nullptr && active_[r] != 0) link->Beat();
    if (silent->ran() > kAwake) {
      std::this_thread::sleep_for(kAsleep);
    } else {
      sched_yield();
    }
  }
}

Result<bool> Exchange::TryReceive(const Handle& handle) {
  const Result<Pair*> at = At(handle, Stage::kDispatching, Stage::kArrived, "Receive");
  if (!at.ok()) return at.status();
  Pair& pair = **at;
  if (pair.stage == Stage::kArrived) return true;
  Poll();
  if (!pair.failed.ok()) {
    const Status failed = pair.failed;
    End(pair);
    return failed;
  }
  if (!Received(pair)) return false;
  if (pair.streamed) EndStreams();
  pair.stage = Stage::kArrived;
  report_ = {pair.missing, pair.overflow, {}};
  for (uint32_t r = 0; r < active_.size(); ++r)
    if (active_[r] == 0) report_.masked.push_back(r);
  return true;
}

Status Exchange::Receive(const Handle& handle) {
  const Result<Pair*> at = At(handle, Stage::kDispatching, Stage::kArrived, "Receive");
  if (!at.ok()) return at.status();
  Pair& pair = **at;
  if (pair.stage == Stage::kDispatching)
    TANGRAM_RETURN_IF_ERROR(Await(pair, Lane::kDispatch, [&] { return Received(pair); }));
  return TryReceive(handle).status();
}

Arrived Exchange::arrived(const Handle& handle) const {
  const Pair& pair = Of(handle);
  return {static_cast<uint32_t>(pair.total),
          {reinterpret_cast<const float*>(pair.x.data()), pair.total * format_.hidden},
          pair.all_choices,
          pair.all_weights};
}

Packed Exchange::packed(const Handle& handle) const {
  const Pair& pair = Of(handle);
  const bool scaled = format_.wire == Element::kFp8;
  return {static_cast<uint32_t>(pair.total), pair.x.data(),
          scaled ? reinterpret_cast<const float*>(pair.scales.data()) : nullptr, pair.choices,
          pair.counts};
}

std::span<const uint32_t> Exchange::routed(const Handle& handle) const {
  return Of(handle).plan.routed;
}
std::span<const uint32_t> Exchange::executed(const Handle& handle) const {
  return Of(handle).executed;
}
std::span<const uint32_t> Exchange::executed_by_choice(const Handle& handle) const {
  return Of(handle).by_choice;
}

void* Exchange::NextCombineBuffer(const Handle& handle) {
  Pair& pair = pairs_[handle.pair % 2];
  const uint64_t most =
      options_.packed_capacity != 0 ? options_.packed_capacity : std::max<uint64_t>(pair.total, 1);
  return pair.outputs.Get(most * RowBytes(format_.outputs(), format_.hidden));
}

Status Exchange::SendBack(const Handle& handle, const void* outputs) {
  const Result<Pair*> at = At(handle, Stage::kArrived, Stage::kArrived, "Combine");
  if (!at.ok()) return at.status();
  const Pair& other = pairs_[(handle.pair + 1) % 2];
  if (other.number < handle.pair &&
      (other.stage == Stage::kDispatching || other.stage == Stage::kArrived))
    return {Code::kInvalid, "the combine of pair " + std::to_string(handle.pair) +
                                " before that of pair " + std::to_string(other.number)};
  Pair& pair = **at;
  const uint32_t ranks = links_->ranks();
  pair.stage = Stage::kCombining;
  pair.given = outputs;
  pair.back.resize(ranks);
  pair.merged.assign(ranks, 0);
  for (uint32_t r = 0; r < ranks; ++r) {
    pair.back[r].lacking.clear();
    pair.back[r].came = {};
    // A rank that sent no rows gets no reply.
    const uint32_t rows = pair.in[r].came.total;
    pair.back[r].sent = {rows == 0, rows, 0, 0};
  }
  Poll();
  return OkStatus();
}

Result<Exchange::Pair*> Exchange::ToFinish(const Handle& handle) {
  // Data of the older pair comes first in the lane.
  const Pair& other = pairs_[(handle.pair + 1) % 2];
  if (other.stage == Stage::kCombining && other.number < handle.pair)
    return Status{Code::kInvalid, "Finish of pair " + std::to_string(handle.pair) +
                                      " before that of pair " + std::to_string(other.number)};
  return At(handle, Stage::kCombining, Stage::kCombining, "Finish");
}

Result<bool> Exchange::TryFinish(const Handle& handle, void* y) {
  const Result<Pair*> at = ToFinish(handle);
  if (!at.ok()) return at.status();
  Pair& pair = **at;
  pair.y = y;
  Poll();
  if (!pair.failed.ok()) {
    const Status failed = pair.failed;
    End(pair);
    return failed;
  }
  if (!Finished(pair)) return false;
  report_ = {std::move(pair.missing), pair.overflow, {}};
  std::sort(report_.missing.begin(), report_.missing.end());
  report_.missing.erase(std::unique(report_.missing.begin(), report_.missing.end()),
                        report_.missing.end());
  for (uint32_t r = 0; r < active_.size(); ++r)
    if (active_[r] == 0) report_.masked.push_back(r);
  const bool wraps = pair.wraps;
  if (pair.streamed) EndStreams();
  End(pair);
  if (wraps) return Status{Code::kInternal, "a sum of ranks leaves 64-bit fixed point"};
  return true;
}

Status Exchange::Finish(const Handle& handle, void* y) {
  const Result<Pair*> at = ToFinish(handle);
  if (!at.ok()) return at.status();
  Pair& pair = **at;
  pair.y = y;
  TANGRAM_RETURN_IF_ERROR(Await(pair, Lane::kCombine, [&] { return Finished(pair); }));
  return TryFinish(handle, y).status();
}

}  // namespace tangram::dispatch
