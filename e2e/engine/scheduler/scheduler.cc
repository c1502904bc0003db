#include "e2e/engine/scheduler/scheduler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tangram::engine {
namespace {

constexpr size_t kMaxSaltBytes = 256;
// Per report, four times a second: 10 KiB.

v1::Refused Refuse(const std::string& request, v1::Refused::Code code, std::string message) {
  v1::Refused out;
  out.set_request(request);
  out.set_code(code);
  out.set_message(std::move(message));
  return out;
}

// Returns an empty text if the request is valid by itself.
std::string WhatIsWrong(const v1::Submit& submit, const SchedulerLimits& limits) {
  if (submit.request().empty() || submit.request().size() > kMaxIdBytes) {
    return "request: the id has " + std::to_string(submit.request().size()) +
           " bytes, must have 1 to " + std::to_string(kMaxIdBytes);
  }
  if (submit.prompt_size() == 0) return "prompt: must not be empty";
  if (submit.max_tokens() == 0) return "max_tokens: must be at least 1";
  const uint64_t total = uint64_t{submit.max_tokens()} + submit.prompt_size();
  if (total > limits.max_model_len) {
    return "prompt (" + std::to_string(submit.prompt_size()) + ") and max_tokens (" +
           std::to_string(submit.max_tokens()) + ") together are " + std::to_string(total) +
           ", this model takes " + std::to_string(limits.max_model_len);
  }
  for (int i = 0; i < submit.prompt_size(); ++i) {
    if (submit.prompt(i) >= limits.vocabulary) {
      return "prompt: token " + std::to_string(submit.prompt(i)) + " at position " +
             std::to_string(i) + ", the vocabulary has " + std::to_string(limits.vocabulary);
    }
  }
  if (!std::isfinite(submit.temperature()) || submit.temperature() < 0) {
    return "temperature: must be 0 or more";
  }
  if (!(submit.top_p() >= 0 && submit.top_p() <= 1)) return "top_p: must be between 0 and 1";
  if (submit.cache_salt().size() > kMaxSaltBytes) {
    return "cache_salt: has " + std::to_string(submit.cache_salt().size()) +
           " bytes, the maximum is " + std::to_string(kMaxSaltBytes);
  }
  return "";
}

}  // namespace

void Scheduler::SetLayout(const HeldMap* held, uint32_t rank) {
  held_ = held;
  rank_ = rank;
  figures_.clear();
}

std::optional<v1::Refused> Scheduler::Submit(const std::string& gateway, v1::Submit submit,
                                             uint64_t arrival) {
  const std::string id = submit.request();
  if (Knows(id)) return Refuse(id, v1::Refused::CODE_RUNNING, "request: " + id + " runs already");
  if (!accepts()) {
    return Refuse(id, v1::Refused::CODE_NOT_READY,
                  held_ == nullptr ? "this rank has no active layout yet"
                                   : "this rank is in no attention group; try another rank");
  }
  // Sampling depends only on seed and position, so tokens of the answer may join the prompt.
  submit.set_max_tokens(submit.max_tokens() - std::min(submit.generated(), submit.max_tokens()));
  submit.clear_generated();
  if (std::string wrong = WhatIsWrong(submit, limits_); !wrong.empty()) {
    return Refuse(id, v1::Refused::CODE_INVALID, std::move(wrong));
  }
  if (waiting_.size() >= limits_.max_waiting) {
    return Refuse(
        id, v1::Refused::CODE_BUSY,
        std::to_string(waiting_.size()) + " requests are waiting already; try again later");
  }
  Sequence sequence;
  sequence.submit = std::move(submit);
  sequence.gateway = gateway;
  sequence.tokens.assign(sequence.submit.prompt().begin(), sequence.submit.prompt().end());
  sequence.arrival = arrival;
  const uint32_t blocks = sequence.FutureBlocks(limits_.block_tokens);
  if (!figures_.empty() && !Fits(rank_, blocks, 1 - limits_.headroom, Nothing())) {
    return Refuse(id, v1::Refused::CODE_INVALID,
                  "its " + std::to_string(sequence.reserved_tokens()) + " tokens are " +
                      std::to_string(blocks) + " KV blocks, more than a rank of this layout has " +
                      "room for even without other requests; lower max_tokens");
  }
  ++counters_.arrived;
  counters_.prompt_tokens += sequence.prompt_tokens();
  waiting_.push_back(std::move(sequence));
  by_id_[id] = {&waiting_, std::prev(waiting_.end())};
  return std::nullopt;
}

void Scheduler::Forget(const std::string& request) {
  const auto it = by_id_.find(request);
  const Place place = it->second;
  by_id_.erase(it);
  const std::vector<uint32_t>& blocks = place.at->blocks;
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) blocks_.Unref(*block);
  place.list->erase(place.at);
}

bool Scheduler::Cancel(const std::string& request) {
  if (!Knows(request)) return false;
  Forget(request);
  return true;
}

std::vector<uint64_t> Scheduler::Reserved() const {
  std::vector<uint64_t> out = Nothing();
  for (uint32_t r = 0; r < held_->ranks(); ++r) {
    for (uint32_t h = 0; h < held_->ranks(); ++h) {
      out[r] += uint64_t{held_->PagesPerBlock(h, r)} * figures_[h].reserved_blocks;
    }
  }
  return out;
}

bool Scheduler::Fits(uint32_t home, uint64_t blocks, double share,
                     const std::vector<uint64_t>& reserved) const {
  for (uint32_t r = 0; r < held_->ranks(); ++r) {
    const uint64_t each = held_->PagesPerBlock(home, r);
    if (each > 0 &&
        static_cast<double>(each * blocks + reserved[r]) > figures_[r].total_pages * share) {
      return false;
    }
  }
  return true;
}

bool Scheduler::HasRoom(uint32_t home, uint64_t blocks,
                        const std::vector<uint64_t>& reserved) const {
  const double share = 1 - limits_.headroom;
  return Fits(home, blocks, share, reserved) ||
         (!Fits(home, blocks, share, Nothing()) && Fits(home, blocks, 1, reserved));
}

bool Scheduler::SharesRanks() const {
  for (uint32_t r = 0; r < held_->ranks(); ++r) {
    if (held_->PagesPerBlock(rank_, r) == 0) continue;
    for (uint32_t h = 0; h < held_->ranks(); ++h) {
      if (h != rank_ && held_->PagesPerBlock(h, r) > 0) return true;
    }
  }
  return false;
}

std::vector<uint32_t> Scheduler::SharedPrefix(const Sequence& sequence) const {
  std::vector<uint32_t> out;
  uint32_t parent = HomeBlocks::kRoot;
  // The last position of the prompt is always computed, because its logits are needed.
  const uint32_t most = (sequence.prompt_tokens() - 1) / limits_.block_tokens;
  for (uint32_t b = 0; b < most; ++b) {
    const std::optional<uint32_t> block = blocks_.Find(
        parent,
        std::span(sequence.tokens).subspan(size_t{b} * limits_.block_tokens, limits_.block_tokens),
        sequence.submit.cache_salt());
    if (!block) break;
    out.push_back(*block);
    parent = *block;
  }
  return out;
}

uint32_t Scheduler::ReservedBlocks() const {
  uint32_t out = blocks_.live();
  for (const Sequence& sequence : running_) out += sequence.FutureBlocks(limits_.block_tokens);
  return out;
}

std::vector<int64_t> Scheduler::Lacking(double share) const {
  std::vector<int64_t> out;
  for (uint32_t r = 0; r < held_->ranks(); ++r) {
    int64_t& pages = out.emplace_back(-static_cast<int64_t>(figures_[r].total_pages * share));
    for (uint32_t h = 0; h < held_->ranks(); ++h) {
      const int64_t blocks = int64_t{figures_[h].reserved_blocks} + figures_[h].idle_blocks;
      pages += held_->PagesPerBlock(h, r) * blocks;
    }
  }
  return out;
}

uint32_t Scheduler::IdleToGo(uint32_t home, const std::vector<int64_t>& lacking) const {
  int64_t blocks = 0;
  for (uint32_t r = 0; r < held_->ranks(); ++r) {
    const int64_t each = held_->PagesPerBlock(home, r);
    if (each > 0) blocks = std::max(blocks, (lacking[r] + each - 1) / each);
  }
  return static_cast<uint32_t>(std::min<int64_t>(blocks, figures_[home].idle_blocks));
}

void Scheduler::MakeRoom() {
  if (blocks_.idle() == 0) return;
  std::vector<int64_t> lacking = Lacking(1 - limits_.headroom);
  // All homes compute the same order: the home with the most idle blocks evicts first.
  std::vector<uint32_t> homes(held_->ranks());
  std::iota(homes.begin(), homes.end(), 0);
  std::stable_sort(homes.begin(), homes.end(), [&](uint32_t a, uint32_t b) {
    return figures_[a].idle_blocks > figures_[b].idle_blocks;
  });
  for (const uint32_t home : homes) {
    const uint32_t blocks = IdleToGo(home, lacking);
    if (home == rank_) return blocks_.Evict(blocks);
    for (uint32_t r = 0; r < held_->ranks(); ++r) {
      lacking[r] -= int64_t{held_->PagesPerBlock(home, r)} * blocks;
    }
  }
}

uint64_t Scheduler::IdlePages() const {
  if (held_ == nullptr) return 0;
  uint64_t out = uint64_t{held_->PagesPerBlock(rank_, rank_)} * blocks_.idle();
  for (uint32_t h = 0; h < figures_.size(); ++h) {
    if (h != rank_) out += uint64_t{held_->PagesPerBlock(h, rank_)} * figures_[h].idle_blocks;
  }
  return out;
}

uint64_t Scheduler::reserved_tokens() const {
  return uint64_t{ReservedBlocks()} * limits_.block_tokens;
}

uint32_t Scheduler::Need(const Sequence& sequence, const std::vector<uint32_t>& shared) const {
  const auto live = std::count_if(shared.begin(), shared.end(),
                                  [&](uint32_t block) { return !blocks_.Idle(block); });
  return sequence.FutureBlocks(limits_.block_tokens) - static_cast<uint32_t>(live);
}

bool Scheduler::GrantHeads() {
  std::vector<uint32_t> homes;
  for (uint32_t h = 0; h < figures_.size(); ++h) {
    if (figures_[h].head_blocks > 0) homes.push_back(h);
  }
  if (homes.empty()) return false;
  std::stable_sort(homes.begin(), homes.end(), [&](uint32_t a, uint32_t b) {
    return figures_[a].head_arrival < figures_[b].head_arrival;
  });
  std::vector<uint64_t> reserved = Reserved();
  std::vector<bool> closed(held_->ranks());  // an older head waits for room here
  bool mine = false;
  for (const uint32_t home : homes) {
    HomeFigures& figures = figures_[home];
    bool goes = HasRoom(home, figures.head_blocks, reserved);
    for (uint32_t r = 0; r < held_->ranks(); ++r) {
      goes = goes && !(closed[r] && held_->PagesPerBlock(home, r) > 0);
    }
    for (uint32_t r = 0; r < held_->ranks(); ++r) {
      const uint64_t pages = held_->PagesPerBlock(home, r) * figures.head_blocks;
      if (goes) reserved[r] += pages;
      if (!goes && pages > 0) closed[r] = true;
    }
    if (!goes) continue;
    figures.reserved_blocks += static_cast<uint32_t>(figures.head_blocks);
    if (home == rank_) {
      mine = true;
    } else {
      figures.head_blocks = 0;  // granted once
    }
  }
  return mine;
}

void Scheduler::Admit() {
  if (!accepts() || figures_.size() != held_->ranks()) return;
  const bool shares = SharesRanks();
  const uint64_t granted = shares && GrantHeads() ? figures_[rank_].head_blocks : 0;
  figures_[rank_].head_blocks = 0;
  figures_[rank_].reserved_blocks = ReservedBlocks();
  if (waiting_.empty()) return;
  std::vector<uint64_t> reserved = shares ? Nothing() : Reserved();
  while (!waiting_.empty() && running_.size() < limits_.max_running) {
    Sequence& head = waiting_.front();
    const std::vector<uint32_t> shared = SharedPrefix(head);
    const uint32_t need = Need(head, shared);
    if (!Fits(rank_, need, 1, Nothing())) {
      refused_.push_back({head.gateway, Refuse(head.id(), v1::Refused::CODE_BUSY,
                                               "the layout changed while the request waited, and "
                                               "it needs more KV than the new layout has")});
      Forget(head.id());
      continue;
    }
    if (shares ? need > granted : !HasRoom(rank_, need, reserved)) return;
    for (const uint32_t block : shared) blocks_.Ref(block);
    head.blocks = shared;
    head.computed = static_cast<uint32_t>(shared.size()) * limits_.block_tokens;
    counters_.reused_tokens += head.computed;
    running_.splice(running_.end(), waiting_, waiting_.begin());
    by_id_[running_.back().id()].list = &running_;
    for (uint32_t r = 0; r < held_->ranks(); ++r) {
      reserved[r] += uint64_t{held_->PagesPerBlock(rank_, r)} * need;
    }
    figures_[rank_].reserved_blocks = ReservedBlocks();
    figures_[rank_].idle_blocks = blocks_.idle();
    blocks_.Evict(IdleToGo(rank_, Lacking(1 - limits_.headroom)));
    figures_[rank_].idle_blocks = blocks_.idle();
    const std::vector<int64_t> lacking = Lacking(1);
    running_.back().held =
        std::any_of(lacking.begin(), lacking.end(), [](int64_t pages) { return pages > 0; });
    if (shares) return;
  }
}

std::vector<Chunk> Scheduler::Next() {
  if (held_ != nullptr && figures_.size() == held_->ranks()) {
    MakeRoom();
    // All homes know the requests that were admitted before, and evict for them now.
    for (Sequence& sequence : running_) sequence.held = false;
  }
  Admit();
  std::vector<Chunk> out;
  for (Sequence& sequence : running_) {
    if (sequence.held) continue;
    if (sequence.computed + 1 == sequence.tokens.size()) {
      out.push_back({&sequence, sequence.computed, 1});
    }
  }
  const uint32_t decodes = static_cast<uint32_t>(out.size());
  // A minimum for prefill, so that decodes never starve it.
  const uint32_t least = std::max(1u, limits_.max_batch_tokens / 4);
  uint32_t left =
      limits_.max_batch_tokens > decodes + least ? limits_.max_batch_tokens - decodes : least;
  for (Sequence& sequence : running_) {
    const uint32_t missing = static_cast<uint32_t>(sequence.tokens.size()) - sequence.computed;
    if (missing <= 1 || left == 0 || sequence.held) continue;
    const uint32_t count = std::min(missing, left);
    out.push_back({&sequence, sequence.computed, count});
    left -= count;
  }
  for (const Chunk& chunk : out) {
    Sequence& sequence = *chunk.sequence;
    const uint32_t blocks = sequence.BlocksFor(chunk.start + chunk.count, limits_.block_tokens);
    while (sequence.blocks.size() < blocks) sequence.blocks.push_back(blocks_.Allocate());
  }
  return out;
}

HomeFigures Scheduler::Figures() const {
  HomeFigures out;
  out.idle_blocks = blocks_.idle();
  out.reserved_blocks = ReservedBlocks();
  out.running = static_cast<uint32_t>(running_.size());
  out.waiting = static_cast<uint32_t>(waiting_.size());
  if (!waiting_.empty() && running_.size() < limits_.max_running) {
    const Sequence& head = waiting_.front();
    out.head_arrival = head.arrival;
    out.head_blocks = Need(head, SharedPrefix(head));
  }
  return out;
}

void Scheduler::Computed(const Chunk& chunk) {
  Sequence& sequence = *chunk.sequence;
  sequence.computed = chunk.start + chunk.count;
  const uint32_t prompt =
      std::clamp(sequence.prompt_tokens(), chunk.start, sequence.computed) - chunk.start;
  counters_.prefill_tokens += prompt;
  counters_.decode_tokens += chunk.count - prompt;
  Publish(&sequence, chunk.start, sequence.computed);
}

void Scheduler::Publish(Sequence* sequence, uint32_t start, uint32_t end) {
  const uint32_t size = limits_.block_tokens;
  std::vector<uint32_t>& blocks = sequence->blocks;
  for (uint32_t b = start / size; b < end / size; ++b) {
    const uint32_t same = blocks_.Publish(
        blocks[b], b == 0 ? HomeBlocks::kRoot : blocks[b - 1],
        std::span(sequence->tokens).subspan(size_t{b} * size, size), sequence->submit.cache_salt());
    if (same == blocks[b]) continue;
    blocks_.Ref(same);
    blocks_.Unref(std::exchange(blocks[b], same));
  }
}

v1::Finish Scheduler::Append(Sequence* sequence, uint32_t token) {
  sequence->tokens.push_back(token);
  v1::Finish finish = v1::FINISH_UNSPECIFIED;
  const auto& stops = sequence->submit.stop_tokens();
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
    finish = v1::FINISH_STOP;
  } else if (sequence->tokens.size() >= sequence->reserved_tokens()) {
    finish = v1::FINISH_LENGTH;
  }
  if (finish != v1::FINISH_UNSPECIFIED) {
    ++counters_.finished;
    counters_.output_tokens += sequence->tokens.size() - sequence->prompt_tokens();
    Forget(std::string(sequence->id()));
  }
  return finish;
}

void Scheduler::Measure(uint64_t now, v1::RankTelemetry* out) const {
  uint64_t queued = 0, context = 0, generated = 0, reserved = 0, waiting = 0, oldest = now;
  uint32_t decoding = 0;
  for (const Sequence& sequence : running_) {
    reserved += sequence.reserved_tokens();
    if (sequence.computed < sequence.prompt_tokens()) {
      queued += sequence.tokens.size() - sequence.computed;
      continue;
    }
    ++decoding;
    context += sequence.tokens.size();
    generated += sequence.tokens.size() - sequence.prompt_tokens();
  }
  for (const Sequence& sequence : waiting_) {
    waiting += sequence.reserved_tokens();
    queued += sequence.tokens.size();
    oldest = std::min(oldest, sequence.arrival);
  }
  out->set_decoding(decoding);
  out->set_queued_tokens(queued);
  out->set_context_tokens(context);
  out->set_generated_tokens(generated);
  out->set_reserved_tokens(reserved);
  out->set_waiting_tokens(waiting);
  out->set_queue_age(static_cast<double>(now - oldest) * 1e-6);
  out->set_arrived(counters_.arrived);
  out->set_prompt_tokens(counters_.prompt_tokens);
  out->set_reused_tokens(counters_.reused_tokens);
  out->set_finished(counters_.finished);
  out->set_output_tokens(counters_.output_tokens);
  out->set_prefill_tokens(counters_.prefill_tokens);
  out->set_decode_tokens(counters_.decode_tokens);
}

void Scheduler::TakePrefixes(v1::Prefixes* out) {
  out->set_generation(cached_);
  out->set_block_tokens(limits_.block_tokens);
  blocks_.TakeNews(CachedPrefixes::kNew, CachedPrefixes::kAgain).AddTo(out);
}

std::vector<const Sequence*> Scheduler::All(size_t* running) const {
  std::vector<const Sequence*> out;
  for (const Sequence& sequence : running_) out.push_back(&sequence);
  *running = out.size();
  for (const Sequence& sequence : waiting_) out.push_back(&sequence);
  return out;
}

void Scheduler::Replace(std::vector<Sequence> running, std::vector<Sequence> waiting,
                        uint32_t next_block, const std::vector<Chain>& idle) {
  running_.clear();
  waiting_.clear();
  by_id_.clear();
  blocks_ = HomeBlocks(next_block, limits_.prefix_cache);
  ++cached_;
  for (Sequence& sequence : running) {
    running_.push_back(std::move(sequence));
    Sequence& here = running_.back();
    by_id_[here.id()] = {&running_, std::prev(running_.end())};
    for (const uint32_t block : here.blocks) blocks_.Ref(block);
    here.held = false;  // the plan has room for all
  }
  for (Sequence& sequence : running_) Publish(&sequence, 0, sequence.computed);
  blocks_.Adopt(idle);
  for (Sequence& sequence : waiting) {
    waiting_.push_back(std::move(sequence));
    by_id_[waiting_.back().id()] = {&waiting_, std::prev(waiting_.end())};
  }
}

}  // namespace tangram::engine
