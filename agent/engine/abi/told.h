// Reports of ranks with engines in other languages while an attempt is staged: full blocks of
// requests, which may be copied. And the homes promised from these reports.
//
// A block is identified by its request, the request's generation and its index there. A full block
// is not written again within a generation. So a copy is valid if the generation reported before
// the copy began is that of the flip.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "agent/engine/abi/manifest.h"

namespace tangram::engine {

// The report of one rank in one step.
struct BlockNews {
  struct Grown {
    std::string request;
    uint64_t generation = 0;
    uint32_t computed = 0, reserved = 0;  // positions
    uint32_t had = 0;                     // blocks reported before, of this generation
    std::vector<uint32_t> blocks;         // full, after those
  };
  uint64_t attempt = 0;
  BlockLayout kv;  // free_blocks includes those that are reserved for others
  std::vector<std::string> ended;
  std::vector<Grown> grown;

  Bytes Encode() const;
  // kInternal: as BlockManifest::Decode. An empty message is a report for no attempt.
  static Result<BlockNews> Decode(const Bytes& bytes, uint32_t layers, uint64_t kv_bytes);
};

// This rank's reports of its requests.
class Teller {
 public:
  static constexpr size_t kBlocks = 1024;  // in one message

  // `turn`: the first value of its part of generations.
  explicit Teller(uint32_t turn = 0) : turn_(turn) {}

  // Starts from scratch.
  void Clear() { requests_.clear(); }
  // The changes of `running` since the last call.
  BlockNews Tell(const std::vector<BlockRequest>& running, uint32_t block_tokens);
  // Another request of this name arrives, or the previous one left.
  void Renewed(const std::string& request);
  // Whether a message did not take all changes.
  bool behind() const { return behind_; }
  // The reported generation, or 0, which no generation has.
  uint64_t GenerationOf(const std::string& request, uint32_t engines) const;

 private:
  struct Known {
    uint32_t turn = 0, engines = 0;  // the generation: ours, and the engine's
    std::vector<uint32_t> blocks;    // as reported
  };
  static uint64_t Join(uint32_t turn, uint32_t engines) { return uint64_t{turn} << 32 | engines; }

  std::map<std::string, Known> requests_;
  std::vector<std::string> ended_;
  uint32_t turn_ = 0;
  bool behind_ = false;
};

// The reports of all ranks for one attempt: the same at all ranks after each step.
class Board {
 public:
  static constexpr int32_t kNowhere = -1;
  struct Told {
    uint64_t generation = 0;
    uint32_t computed = 0, reserved = 0;
    std::vector<uint32_t> blocks;  // full
    int32_t promised = kNowhere;   // rank of the target
  };

  // News of all ranks, by rank.
  void Hear(std::vector<BlockNews> news);
  // Drops the attempt, and later reports for it.
  void Forget(uint64_t attempt);
  // Another epoch.
  void Clear() { *this = {}; }

  // Whether all ranks reported for this attempt in the last step.
  bool All(uint64_t attempt) const { return all_ && attempt == attempt_; }
  // Promises homes to requests that must leave theirs and have no promise yet, by the plan that a
  // flip would make now.
  void Promise(const kv::Shape& shape, uint32_t layers, const Side& from, const Side& to);
  const std::map<std::string, Told>& Of(uint32_t rank) const { return ranks_[rank].requests; }
  // nullptr: not reported, or it ended.
  const Told* Find(uint32_t rank, const std::string& request) const;
  const BlockLayout& LayoutOf(uint32_t rank) const { return ranks_[rank].kv; }
  uint32_t ranks() const { return static_cast<uint32_t>(ranks_.size()); }

 private:
  static constexpr uint32_t kAgain = 16;  // boundaries until a plan that did not fit is tried again

  struct Rank {
    BlockLayout kv;
    std::map<std::string, Told> requests;
  };
  uint64_t attempt_ = 0, over_ = 0;
  bool all_ = false;
  uint32_t pause_ = 0;
  std::vector<Rank> ranks_;
};

}  // namespace tangram::engine
