// What of other ranks' KV this one copies while an attempt is staged, into blocks that the engine
// reserves for it (told.h has what ranks tell).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "agent/engine/abi/told.h"
#include "agent/engine/ahead/copies.h"

namespace tangram::engine {

// The engine's blocks.
class BlockRoom {
 public:
  virtual ~BlockRoom() = default;
  virtual BlockLayout Layout() const = 0;
  // So many blocks more for a request that will come; kNoMemory: there are not enough.
  virtual Status Reserve(const std::string& request, std::span<uint32_t> blocks) = 0;
  // It does not come: what is reserved for it is free again.
  virtual void Unreserve(const std::string& request) = 0;
};

class Incoming {
 public:
  // Full blocks that a flip may find not copied.
  static constexpr uint64_t kLeft = 8;

  Incoming(BlockRoom* room, WorldView* world) : room_(room), copies_(world) {}

  // An attempt in whose target this rank is `target`, -1 if it leaves; now it is `rank`.
  void Stage(uint32_t rank, int32_t target);
  // It is over. What is being written is given back when it came.
  void Unstage();
  // At a boundary: takes up what came. As Copies::TakeUp.
  void TakeUp(Between* waits);
  // ... and copies what the board has for this rank.
  void Advance(const Board& board);
  // Whether a flip would find more not copied than it shall.
  bool behind() const { return !copies_.given_up() && left_ > kLeft; }

  // Reserved for requests of others.
  uint32_t blocks() const { return reserved_; }

  // The flip: those that come, as their homes tell them now. What is reserved for others, or is of
  // another generation, goes back; what is left is the flip's to adopt. Waits for what is being
  // written. kUnavailable: that did not end, and nothing may be adopted.
  struct Comes {
    uint32_t source = 0;
    const BlockRequest* request = nullptr;
  };
  Status Settle(const std::map<std::string, Comes>& comes, Between& waits);
  // As Copies::Pull.
  Result<uint64_t> Pull(std::span<const tg_kv_move> moves, Between& between) {
    return copies_.Pull(moves, between);
  }
  // What is reserved for it, and which of these blocks are here; it is adopted now. nullptr: none.
  struct Ready {
    std::vector<uint32_t> mine;
    std::vector<bool> here;
  };
  Ready Take(const std::string& request);

  struct Counts {
    uint64_t pulls = 0, failed = 0, put_off = 0;
    uint64_t bytes = 0;    // copied
    uint64_t in_vain = 0;  // of these, blocks that changed, ended or did not come here
    uint64_t no_room = 0;  // requests for which there were not blocks enough
  };
  Counts counts() const {
    Counts out = counts_;
    out.pulls = copies_.pulls();
    out.failed = copies_.failed();
    out.put_off = copies_.put_off();
    out.bytes = copies_.bytes();
    return out;
  }

 private:
  enum class State : uint8_t { kNot, kWritten, kHere };
  struct Coming {
    uint32_t source = 0;
    uint64_t generation = 0;
    std::vector<uint32_t> theirs, mine;  // the same places in the request
    std::vector<State> state;            // of mine
    bool writing = false, gone = false;  // gone: given back when nothing is written to it
    bool full = false;                   // no more blocks are asked for
  };
  using Entry = std::map<std::string, Coming>::iterator;

  // Gives back what is reserved, now or when it came.
  Entry Discard(Entry entry);
  // Requests of the layout in force come before those that will.
  void MakeRoom();
  // Blocks for all that was told of it.
  void Reserve(const std::string& request, Coming* coming);
  void Begin(const Board& board);

  BlockRoom* const room_;
  Copies copies_;
  uint32_t rank_ = 0;
  int32_t target_ = -1;
  bool staged_ = false;
  bool closed_ =
      false;  // the engine was short of blocks: none are reserved in this attempt any more
  std::map<std::string, Coming> comings_;
  uint32_t reserved_ = 0;
  uint64_t left_ = 0;
  uint64_t block_bytes_ = 0;  // of a block, in all sets
  Counts counts_;
};

}  // namespace tangram::engine
