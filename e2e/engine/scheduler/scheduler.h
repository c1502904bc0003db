// Continuous batching at one home: who runs, and which positions of whom this step computes.
//
// Admission is FIFO and reserves the worst case (prompt + max_tokens) on every rank of the
// home's groups, so that a running request is never preempted. Homes that share ranks tell each
// other of the heads of their queues in each step's exchange. In the next step all find the same:
// which of these have room, the oldest first. So two never give away the same pages. Blocks of a
// full prefix that some request has computed are shared, and stay when the last one that has them
// ended (idle), in what is not reserved: a request is admitted as if there were none, and they go
// for it. A home frees its own at once, those of others a step later.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "e2e/engine/kv/held_map.h"
#include "e2e/engine/kv/home_blocks.h"
#include "e2e/engine/scheduler/sequence.h"
#include "tangram/v1/telemetry.pb.h"

namespace tangram::engine {

// Of a request's id.
inline constexpr size_t kMaxIdBytes = 256;

struct SchedulerLimits {
  uint32_t block_tokens = 16;
  uint32_t max_batch_tokens = 64;  // rows of a step: decodes always, prefill what is left
  uint32_t max_running = 64;
  uint32_t max_waiting = 1024;
  uint32_t max_model_len = 2048;  // prompt + max_tokens
  uint32_t vocabulary = 0;
  // Share of a rank's pages that admission leaves alone, for the new pages that a flip needs
  // beside the old ones.
  double headroom = 0.25;
  bool prefix_cache = true;  // blocks may be idle
};

// What a home tells the others in every step's control exchange.
struct HomeFigures {
  uint32_t total_pages = 0;
  uint32_t idle_blocks = 0;
  uint32_t reserved_blocks = 0;  // unique live blocks and what running requests may ask for
  uint32_t running = 0;
  uint32_t waiting = 0;
  uint32_t executed = 0;  // rows times granules that this rank's experts computed since the last
  // The head of the queue: when it arrived, and what it would reserve (0: none may be admitted).
  uint64_t head_arrival = 0;
  uint64_t head_blocks = 0;
};

// Positions [start, start + count) of a sequence. The last one yields a token when it is the
// last position that is known.
struct Chunk {
  Sequence* sequence = nullptr;
  uint32_t start = 0;
  uint32_t count = 0;
  bool Samples() const { return start + count == sequence->tokens.size(); }
};

struct Refusal {
  std::string gateway;
  v1::Refused refused;
};

class Scheduler {
 public:
  explicit Scheduler(SchedulerLimits limits) : limits_(limits), blocks_(0, limits.prefix_cache) {}

  // A new layout, or the first. Figures of the homes are unknown until the next exchange.
  void SetLayout(const HeldMap* held, uint32_t rank);
  // False: this rank is the home of no request.
  bool accepts() const { return held_ != nullptr && held_->Accepts(rank_); }

  // nullopt: queued. Otherwise why not.
  std::optional<v1::Refused> Submit(const std::string& gateway, v1::Submit submit,
                                    uint64_t arrival);
  // Frees all that the request has; false when it is not here.
  bool Cancel(const std::string& request);
  bool Knows(const std::string& request) const { return by_id_.contains(request); }

  // Admits what has room, then picks the step's chunks and gives them blocks.
  // A batch that is not computed after all (a flip) may simply be forgotten.
  std::vector<Chunk> Next();
  HomeFigures Figures() const;
  void SetFigures(std::vector<HomeFigures> figures) { figures_ = std::move(figures); }

  // The chunk's KV is written: full blocks become sharable.
  void Computed(const Chunk& chunk);
  // Adds a token; what it means for the request. A finished one is gone afterwards.
  v1::Finish Append(Sequence* sequence, uint32_t token);

  // Queued requests that no longer fit even alone, since the layout changed.
  std::vector<Refusal> TakeRefused() { return std::exchange(refused_, {}); }
  std::vector<uint32_t> TakeFreed() { return blocks_.TakeFreed(); }
  size_t running() const { return running_.size(); }
  size_t waiting() const { return waiting_.size(); }
  uint64_t reserved_tokens() const;
  // What there is to do, and the counters of what was done. `now` on the clock of the arrivals, in
  // microseconds.
  void Measure(uint64_t now, v1::RankTelemetry* out) const;

  uint32_t next_block() const { return blocks_.next(); }
  uint32_t idle_blocks() const { return blocks_.idle(); }
  // Pages of this rank with idle blocks of any home: as of the last exchange, but for its own.
  uint64_t IdlePages() const;
  // Idle blocks and what they continue, the least recently used ones first.
  std::vector<Chain> IdleChains() const { return blocks_.IdleChains(); }
  // Of the blocks that come to be shared, and are no more, for gateways: a bounded part of what is
  // new since the last call.
  void TakePrefixes(v1::Prefixes* out);
  // Of the homes, by rank, as of the last exchange; empty: unknown.
  const std::vector<HomeFigures>& figures() const { return figures_; }
  // An idle block of this home, and what continues it, goes.
  void Evict(uint32_t block) { (void)blocks_.EvictFrom(block); }

  // For a flip: all requests, running first (in order), then waiting.
  std::vector<const Sequence*> All(size_t* running) const;
  // Replaces everything by what the plan gave this home. Blocks ids from `next_block` are new.
  void Replace(std::vector<Sequence> running, std::vector<Sequence> waiting, uint32_t next_block,
               const std::vector<Chain>& idle = {});

 private:
  using List = std::list<Sequence>;

  struct Place {
    List* list = nullptr;
    List::iterator at;
  };

  // Do so many blocks of a home fit beside what is reserved (pages of each rank)? `share`: of every
  // rank's pages, what may be reserved.
  bool Fits(uint32_t home, uint64_t blocks, double share,
            const std::vector<uint64_t>& reserved) const;
  // The same, with the headroom left alone, but by requests that are larger.
  bool HasRoom(uint32_t home, uint64_t blocks, const std::vector<uint64_t>& reserved) const;
  // [ranks] nothing is reserved; what running requests of all homes have reserved.
  std::vector<uint64_t> Nothing() const { return std::vector<uint64_t>(held_->ranks()); }
  std::vector<uint64_t> Reserved() const;
  // Do other homes take pages on ranks that this home takes pages on?
  bool SharesRanks() const;
  // Blocks that a request which waits would reserve. What is idle is not reserved yet.
  uint32_t Need(const Sequence& sequence, const std::vector<uint32_t>& shared) const;
  // Grants room to the heads of all homes' queues, as they were in the last exchange; no head
  // passes an older one that needs a rank of its own. True: this home's head has room, for
  // head_blocks.
  bool GrantHeads();
  void Admit();
  // Pages that each rank lacks if all comes that is reserved, beside what is idle, in this share of
  // its pages.
  std::vector<int64_t> Lacking(double share) const;
  // Blocks of the home that have to go for that, of those that are idle.
  uint32_t IdleToGo(uint32_t home, const std::vector<int64_t>& lacking) const;
  // Frees this home's part of the idle blocks in whose place the last exchange wants others. Those
  // of a flip's headroom are wanted, too: copies ahead of it find free pages.
  void MakeRoom();
  // Full blocks of positions [start, end) become sharable.
  void Publish(Sequence* sequence, uint32_t start, uint32_t end);
  std::vector<uint32_t> SharedPrefix(const Sequence& sequence) const;
  uint32_t ReservedBlocks() const;
  void Forget(const std::string& request);

  SchedulerLimits limits_;
  const HeldMap* held_ = nullptr;
  uint32_t rank_ = 0;
  std::vector<HomeFigures> figures_;  // [ranks], of the last exchange; empty: unknown
  HomeBlocks blocks_;
  uint64_t cached_ = 1;  // counts the times that all blocks got other names
  List running_, waiting_;
  std::map<std::string, Place> by_id_;
  std::vector<Refusal> refused_;
  struct Counters {
    uint64_t arrived = 0, prompt_tokens = 0, reused_tokens = 0, finished = 0, output_tokens = 0,
             prefill_tokens = 0, decode_tokens = 0;
  } counters_;
};

}  // namespace tangram::engine
