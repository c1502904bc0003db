// What ranks of engines in other languages tell each other while an attempt is staged: which blocks
// of which requests are full, and so may be copied, and where each request will go.
//
// A block is known by its request, that one's generation and its place in it. As long as a request
// has its generation a block of it that is full is not written, so a copy is good if the generation
// that was told before the copy began is that of the flip.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "agent/engine/abi/manifest.h"

namespace tangram::engine {

// Of one rank, in one step.
struct BlockNews {
  struct Grown {
    std::string request;
    uint64_t generation = 0;
    uint32_t computed = 0, reserved = 0;  // positions
    uint32_t had = 0;                     // blocks told before, of this generation
    std::vector<uint32_t> blocks;         // full, from that one on
  };
  uint64_t attempt = 0;
  BlockLayout kv;  // free_blocks: those that are reserved for others, too
  std::vector<std::string> ended;
  std::vector<Grown> grown;

  Bytes Encode() const;
  // kInternal: as BlockManifest::Decode. Nothing at all is news of no attempt.
  static Result<BlockNews> Decode(const Bytes& bytes, uint32_t layers, uint64_t kv_bytes);
};

// What this rank has told of its requests.
class Teller {
 public:
  static constexpr size_t kBlocks = 1024;  // of one message

  // `turn`: where its part of generations begins.
  explicit Teller(uint32_t turn = 0) : turn_(turn) {}

  // Begins anew.
  void Clear() { requests_.clear(); }
  // Of `running`, what is new since the last call.
  BlockNews Tell(const std::vector<BlockRequest>& running, uint32_t block_tokens);
  // Another request of this name comes, or the one there was went.
  void Renewed(const std::string& request);
  // Whether there is more to tell than a message took.
  bool behind() const { return behind_; }
  // What was told of it, or 0, which no generation is.
  uint64_t GenerationOf(const std::string& request, uint32_t engines) const;

 private:
  struct Known {
    uint32_t turn = 0, engines = 0;  // the generation: ours, and the engine's
    std::vector<uint32_t> blocks;    // that were told
  };
  static uint64_t Join(uint32_t turn, uint32_t engines) { return uint64_t{turn} << 32 | engines; }

  std::map<std::string, Known> requests_;
  std::vector<std::string> ended_;
  uint32_t turn_ = 0;
  bool behind_ = false;
};

// What all told, of one attempt: the same at all ranks after each step.
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
  // Nothing of the attempt is wanted any more, whoever tells of it.
  void Forget(uint64_t attempt);
  // Another epoch.
  void Clear() { *this = {}; }

  // Whether all told of this attempt in the last step.
  bool All(uint64_t attempt) const { return all_ && attempt == attempt_; }
  // Promises homes to those that must leave theirs and have none; by the plan that a flip would
  // make now.
  void Promise(const kv::Shape& shape, uint32_t layers, const Side& from, const Side& to);
  const std::map<std::string, Told>& Of(uint32_t rank) const { return ranks_[rank].requests; }
  // nullptr: not told, or it ended.
  const Told* Find(uint32_t rank, const std::string& request) const;
  const BlockLayout& LayoutOf(uint32_t rank) const { return ranks_[rank].kv; }
  uint32_t ranks() const { return static_cast<uint32_t>(ranks_.size()); }

 private:
  static constexpr uint32_t kAgain = 16;  // boundaries until one that fits nowhere is asked again

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
