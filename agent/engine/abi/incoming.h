// Copies KV of other ranks while an attempt is staged, into blocks that the engine reserves for it
// (told.h has the ranks' reports).
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
  // Reserves this many more blocks for a request that will move here; kNoMemory: too few are free.
  virtual Status Reserve(const std::string& request, std::span<uint32_t> blocks) = 0;
  // The request does not move here: its reserved blocks are free again.
  virtual void Unreserve(const std::string& request) = 0;
};

class Incoming {
 public:
  // Full blocks that may be left for a flip to copy.
  static constexpr uint64_t kLeft = 8;

  Incoming(BlockRoom* room, WorldView* world) : room_(room), copies_(world) {}

  // An attempt in whose target this rank is `target`, -1 if it leaves; now it is `rank`.
  void Stage(uint32_t rank, int32_t target);
  // The attempt has ended. Blocks that are still being written are freed when that has ended.
  void Unstage();
  // At a boundary: collects finished copies. As Copies::TakeUp.
  void TakeUp(Between* waits);
  // ... and copies the blocks on the board that move here.
  void Advance(const Board& board);
  // Whether a flip would find more blocks not copied than kLeft.
  bool behind() const { return !copies_.given_up() && left_ > kLeft; }

  // Blocks reserved for requests of other ranks.
  uint32_t blocks() const { return reserved_; }

  // In the flip: the requests that move here, as in their homes' manifests. Frees blocks reserved
  // for others, or for another generation; the flip adopts the rest. Waits for a copy in progress.
  // kUnavailable: the copy did not end, and no block may be adopted.
  struct Comes {
    uint32_t source = 0;
    const BlockRequest* request = nullptr;
  };
  Status Settle(const std::map<std::string, Comes>& comes, Between& waits);
  // As Copies::Pull.
  Result<uint64_t> Pull(std::span<const tg_kv_move> moves, Between& between) {
    return copies_.Pull(moves, between);
  }
  // The blocks reserved for a request, and which of them have their KV; it is adopted now. Empty:
  // none.
  struct Ready {
    std::vector<uint32_t> mine;
    std::vector<bool> here;
  };
  Ready Take(const std::string& request);

  struct Counts {
    uint64_t pulls = 0, failed = 0, put_off = 0;
    uint64_t bytes = 0;    // copied
    uint64_t in_vain = 0;  // of these, blocks that changed, ended or did not move here
    uint64_t no_room = 0;  // requests for which too few blocks were free
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
    std::vector<uint32_t> theirs, mine;  // the same positions of the request
    std::vector<State> state;            // of mine
    bool writing = false, gone = false;  // gone: freed when no copy writes to it
    bool full = false;                   // no more blocks are requested
  };
  using Entry = std::map<std::string, Coming>::iterator;

  // Frees the reserved blocks, now or when the copy into them ends.
  Entry Discard(Entry entry);
  // Requests of the active layout take precedence over incoming ones.
  void MakeRoom();
  // Reserves blocks for all reported blocks of it.
  void Reserve(const std::string& request, Coming* coming);
  void Begin(const Board& board);

  BlockRoom* const room_;
  Copies copies_;
  uint32_t rank_ = 0;
  int32_t target_ = -1;
  bool staged_ = false;
  bool closed_ = false;  // the engine was short of blocks: reserves no more in this attempt
  std::map<std::string, Coming> comings_;
  uint32_t reserved_ = 0;
  uint64_t left_ = 0;
  uint64_t block_bytes_ = 0;  // of a block, in all sets
  Counts counts_;
};

}  // namespace tangram::engine
