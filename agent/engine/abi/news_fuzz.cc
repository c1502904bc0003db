// Messages of another rank while an attempt is staged: decoded, or an error. A decoded one survives
// a round trip, and so do its effects on the board. Requested blocks are in both regions, none is
// reserved twice, and all are free when the attempt has ended.
#include <cstdlib>

#include "agent/engine/abi/testing/fakes.h"

using namespace tangram::engine;

namespace {

constexpr uint32_t kLayers = 3, kTokens = 16, kBlocks = 24;
constexpr uint64_t kBytes = 1 << 16;
constexpr uint64_t kAttempt = 7;
const tangram::kv::Shape kShape{4, 2, kTokens, 8};

BlockLayout Mine() {
  return {{{kLayers, 0, kBlocks * 128, 128, 128}, {1, 3 * kBlocks * 128, 0, 32, 32}}, kBlocks, 0};
}

void Check(const FakeWorld& world, const FakeRoom& room, const Incoming& incoming) {
  for (const tg_kv_move& move : world.under_way) {
    if (move.source_offset + move.length > kBytes || move.target_offset + move.length > kBytes) {
      std::abort();
    }
  }
  size_t reserved = 0;
  for (const auto& [request, blocks] : room.reserved) reserved += blocks.size();
  if (reserved != incoming.blocks() || reserved + room.free.size() != kBlocks) std::abort();
}

}  // namespace

// Messages one after another, each after its length (a byte, times 4) and an event at this rank.
// Bits: 0 the copies end, 1 they fail, 2 the engine is short of blocks, 3 the attempt ends and
// begins again.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FakeWorld world;
  FakeRoom room(Mine());
  Incoming incoming(&room, &world);
  Board board;
  incoming.Stage(1, 0);
  const Side from = DataParallel({"p", "q"}, kLayers), to = DataParallel({"q"}, kLayers);
  while (size >= 2) {
    const uint8_t events = data[1];
    const size_t length = std::min<size_t>(data[0] * size_t{4}, size - 2);
    auto came = BlockNews::Decode({data + 2, data + 2 + length}, kLayers, kBytes);
    data += 2 + length;
    size -= 2 + length;
    if (!came.ok()) continue;
    // An empty message is a report for no attempt; Encode does not make it.
    if (length > 0 && !BlockNews::Decode(came->Encode(), kLayers, kBytes).ok()) std::abort();
    if (came->attempt % 2 == 1) came->attempt = kAttempt;  // else it is for another one
    BlockNews mine;
    mine.attempt = kAttempt;
    mine.kv = room.Layout();
    mine.kv.free_blocks += incoming.blocks();
    board.Hear({*came, mine});
    if (board.All(kAttempt)) board.Promise(kShape, kLayers, from, to);
    world.lands = (events & 1) != 0;
    world.fails = (events & 2) != 0;
    if ((events & 8) != 0) {
      incoming.Stage(1, 0);
      board.Clear();
      continue;
    }
    incoming.TakeUp(nullptr);
    if (board.All(kAttempt)) incoming.Advance(board);
    Check(world, room, incoming);
  }
  incoming.Unstage();
  world.lands = true;
  incoming.TakeUp(nullptr);
  if (room.free.size() != kBlocks || incoming.blocks() != 0) std::abort();
  return 0;
}
