// Continuous batching at one home: which requests run, and which of their positions a step
// computes.
//
// Admission is FIFO and reserves the worst case (prompt + max_tokens) on every rank of the home's
// groups, so a running request is never preempted. Homes that share ranks report the heads of their
// queues in each step's exchange. In the next step all of them compute the same answer: which heads
// have room, the oldest first. So no two homes hand out the same pages. Full prefix blocks that a
// request has computed are shared. After their last request ends they stay (idle) in unreserved
// memory. Admission ignores idle blocks, and they are evicted for admitted requests: a home's
// blocks immediately, those of other homes a step later.
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

// Maximum size of a request's id.
inline constexpr size_t kMaxIdBytes = 256;

struct SchedulerLimits {
  uint32_t block_tokens = 16;
  uint32_t max_batch_tokens = 64;  // rows of a step: all decodes, then prefill in the rest
  uint32_t max_running = 64;
  uint32_t max_waiting = 1024;
  uint32_t max_model_len = 2048;  // prompt + max_tokens
  uint32_t vocabulary = 0;
  // Share of a rank's pages that admission leaves free, for the new pages that a flip needs in
  // addition to the old ones.
  double headroom = 0.25;
  bool prefix_cache = true;  // blocks may be idle
};

// Figures that a home reports to the others in every step's control exchange.
struct HomeFigures {
  uint32_t total_pages = 0;
  uint32_t idle_blocks = 0;
  // Unique live blocks, and blocks that running requests may still need.
  uint32_t reserved_blocks = 0;
  uint32_t running = 0;
  uint32_t waiting = 0;
  // Rows times granules that this rank's experts computed since the last exchange.
  uint32_t executed = 0;
  // The head of the queue: its arrival time, and the blocks it would reserve (0: no candidate).
  uint64_t head_arrival = 0;
  uint64_t head_blocks = 0;
};

// Positions [start, start + count) of a sequence. The last one yields a token if it is the
// sequence's last known position.
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

  // Sets the first or a new layout. Figures of the homes are unknown until the next exchange.
  void SetLayout(const HeldMap* held, uint32_t rank);
  // False: this rank is the home of no request.
  bool accepts() const { return held_ != nullptr && held_->Accepts(rank_); }

  // nullopt: queued. Otherwise the reason of the rejection.
  std::optional<v1::Refused> Submit(const std::string& gateway, v1::Submit submit,
                                    uint64_t arrival);
  // Frees all resources of the request; false if it is not here.
  bool Cancel(const std::string& request);
  bool Knows(const std::string& request) const { return by_id_.contains(request); }

  // Admits requests that have room, then picks the step's chunks and allocates their blocks. The
  // caller may discard a batch without computing it (a flip).
  std::vector<Chunk> Next();
  HomeFigures Figures() const;
  void SetFigures(std::vector<HomeFigures> figures) { figures_ = std::move(figures); }

  // The chunk's KV is written: full blocks become sharable.
  void Computed(const Chunk& chunk);
  // Adds a token; returns its effect on the request. A finished request no longer exists
  // afterwards.
  v1::Finish Append(Sequence* sequence, uint32_t token);

  // Queued requests that no longer fit even alone, because the layout changed.
  std::vector<Refusal> TakeRefused() { return std::exchange(refused_, {}); }
  std::vector<uint32_t> TakeFreed() { return blocks_.TakeFreed(); }
  size_t running() const { return running_.size(); }
  size_t waiting() const { return waiting_.size(); }
  uint64_t reserved_tokens() const;
  // The pending work, and counters of the work done. `now` is on the clock of the arrivals, in
  // microseconds.
  void Measure(uint64_t now, v1::RankTelemetry* out) const;

  uint32_t next_block() const { return blocks_.next(); }
  uint32_t idle_blocks() const { return blocks_.idle(); }
  // Pages of this rank with idle blocks: of this home now, of other homes as of the last exchange.
  uint64_t IdlePages() const;
  // Idle blocks with their ancestors, the least recently used first.
  std::vector<Chain> IdleChains() const { return blocks_.IdleChains(); }
  // For gateways: a bounded part of the blocks that became shared, or are no longer shared, since
  // the last call.
  void TakePrefixes(v1::Prefixes* out);
  // Figures of the homes, by rank, as of the last exchange; empty: unknown.
  const std::vector<HomeFigures>& figures() const { return figures_; }
  // Frees an idle block of this home and its continuations.
  void Evict(uint32_t block) { (void)blocks_.EvictFrom(block); }

  // For a flip: all requests, running ones first (in order), then waiting ones.
  std::vector<const Sequence*> All(size_t* running) const;
  // Replaces everything by the plan's assignment to this home. Block ids from `next_block` on are
  // new.
  void Replace(std::vector<Sequence> running, std::vector<Sequence> waiting, uint32_t next_block,
               const std::vector<Chain>& idle = {});

 private:
  using List = std::list<Sequence>;

  struct Place {
    List* list = nullptr;
    List::iterator at;
  };

  // Whether `blocks` blocks of a home fit next to the reserved pages of each rank. `share`: the
  // share of every rank's pages that may be reserved.
  bool Fits(uint32_t home, uint64_t blocks, double share,
            const std::vector<uint64_t>& reserved) const;
  // The same, without the headroom; requests that never fit without it may use the headroom.
  bool HasRoom(uint32_t home, uint64_t blocks, const std::vector<uint64_t>& reserved) const;
  // [ranks] zeros; pages that running requests of all homes have reserved.
  std::vector<uint64_t> Nothing() const { return std::vector<uint64_t>(held_->ranks()); }
  std::vector<uint64_t> Reserved() const;
  // Whether other homes take pages on ranks on which this home takes pages.
  bool SharesRanks() const;
  // Blocks that a waiting request would reserve. Idle blocks are not reserved yet.
  uint32_t Need(const Sequence& sequence, const std::vector<uint32_t>& shared) const;
  // Grants room to the heads of all homes' queues, as of the last exchange. No head passes an older
  // one that needs the same rank. True: this home's head has room, for head_blocks.
  bool GrantHeads();
  void Admit();
  // Pages that each rank lacks if all reserved pages and all idle blocks are to fit into this share
  // of its pages.
  std::vector<int64_t> Lacking(double share) const;
  // Idle blocks of the home that must be evicted for the lacking pages.
  uint32_t IdleToGo(uint32_t home, const std::vector<int64_t>& lacking) const;
  // Evicts this home's part of the idle blocks in pages that are reserved as of the last exchange,
  // or in a flip's headroom, whose pages are for copies ahead of the flip.
  void MakeRoom();
  // Makes full blocks of positions [start, end) sharable.
  void Publish(Sequence* sequence, uint32_t start, uint32_t end);
  std::vector<uint32_t> SharedPrefix(const Sequence& sequence) const;
  uint32_t ReservedBlocks() const;
  void Forget(const std::string& request);

  SchedulerLimits limits_;
  const HeldMap* held_ = nullptr;
  uint32_t rank_ = 0;
  std::vector<HomeFigures> figures_;  // [ranks], of the last exchange; empty: unknown
  HomeBlocks blocks_;
  uint64_t cached_ = 1;  // number of times that all blocks were renamed
  List running_, waiting_;
  std::map<std::string, Place> by_id_;
  std::vector<Refusal> refused_;
  struct Counters {
    uint64_t arrived = 0, prompt_tokens = 0, reused_tokens = 0, finished = 0, output_tokens = 0,
             prefill_tokens = 0, decode_tokens = 0;
  } counters_;
};

}  // namespace tangram::engine
