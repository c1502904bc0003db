// Kernels `dispatch_count`, `dispatch_choose`, `dispatch_ranks`, `dispatch_slots`: the destination
// of each row, by the rule of dispatch::Choose (agent/dispatch/plan.h): own replica, else replicas
// in turn. So a graph needs no host. A thread scans a chunk of rows for one expert or one rank, and
// adds the counts of the chunks before.
#pragma once

#include "kernels/dispatch.h"

namespace tangram::kernels {

// Begins a pair: sets its flag to the next one of this epoch.
template <typename Memory>
TANGRAM_DEVICE void BeginPair(const DispatchParameters& p, Memory& memory) {
  const uint64_t next = p.table + offsetof(DispatchTable, next);
  const auto number = memory.template Read<uint64_t>(next);
  const auto epoch = memory.template Read<uint64_t>(p.table + offsetof(DispatchTable, epoch));
  memory.template Store<uint64_t>(next, number + 1);
  memory.template Store<uint64_t>(p.pair + offsetof(DispatchPair, flag), FlagOf(epoch, number));
  memory.template Store<uint64_t>(p.pair + offsetof(DispatchPair, wanted), 0);
  memory.template Store<uint64_t>(p.pair + offsetof(DispatchPair, bad_id), UINT64_MAX);
  memory.template Store<uint32_t>(p.pair + offsetof(DispatchPair, kept), 0);
  memory.template Store<uint32_t>(p.pair + offsetof(DispatchPair, wraps), 0);
}

struct Chunk {
  uint32_t number = 0, column = 0;
  uint64_t begin = 0, end = 0;  // of its rows
};

// Calls use(chunk) for this thread's chunks: one for each chunk of `rows` and each of `columns`.
template <typename Memory, typename Use>
TANGRAM_DEVICE void EachChunk(const Where& where, uint32_t rows, uint32_t columns, Memory& memory,
                              Use&& use) {
  const Share share = ShareOf(uint64_t{ChunksOf(rows)} * columns, where.block, where.blocks);
  for (uint64_t u = share.begin + where.thread; u < share.end; u += where.threads) {
    memory.Round();
    const auto number = static_cast<uint32_t>(u / columns);
    const uint64_t begin = uint64_t{number} * kDispatchChunk;
    use(Chunk{number, static_cast<uint32_t>(u % columns), begin,
              Smaller<uint64_t>(begin + kDispatchChunk, rows)});
  }
}

template <typename Memory>
TANGRAM_DEVICE void DispatchCount(const Where& where, const DispatchParameters& p, Memory& memory) {
  if (where.block == 0 && where.thread == 0) BeginPair(p, memory);
  EachChunk(where, p.tokens, p.experts, memory, [&](const Chunk& chunk) {
    uint32_t count = 0;
    for (uint64_t i = chunk.begin * p.top_k; i < chunk.end * p.top_k; ++i)
      count += Word(memory, p.ids, i) == chunk.column ? 1 : 0;
    memory.template Store<uint32_t>(
        p.counts + (uint64_t{chunk.number} * p.experts + chunk.column) * 4, count);
  });
}

// Whether all ranks of a choice (replica) take part.
template <typename Memory>
TANGRAM_DEVICE bool IsThere(World<Memory>& world, const DispatchLayer& layer, uint32_t choice,
                            Memory& memory) {
  const uint32_t end = Word(memory, layer.ranks_begin, choice + 1);
  bool there = true;
  for (uint32_t i = Word(memory, layer.ranks_begin, choice); i < end; ++i)
    there = there && !world.masked(Word(memory, layer.ranks, i));
  return there;
}

// Among the available replicas of an expert: this rank's own one, else the next in turn.
template <typename Memory>
TANGRAM_DEVICE int32_t ChoiceOf(World<Memory>& world, const DispatchLayer& layer, uint32_t expert,
                                uint32_t turn, Memory& memory) {
  const int32_t own = Signed(memory, layer.own, expert);
  if (own >= 0 && IsThere(world, layer, static_cast<uint32_t>(own), memory)) return own;
  const uint32_t first = Word(memory, layer.first, expert);
  const uint32_t end = Word(memory, layer.first, expert + 1);
  uint32_t left = 0;
  for (uint32_t choice = first; choice < end; ++choice)
    left += IsThere(world, layer, choice, memory) ? 1 : 0;
  if (left == 0) return kChoiceNowhere;
  uint32_t before = turn % left;
  // A rank that is masked meanwhile may leave fewer than were counted.
  for (uint32_t choice = first; choice < end; ++choice)
    if (IsThere(world, layer, choice, memory) && before-- == 0) return static_cast<int32_t>(choice);
  return kChoiceNowhere;
}

template <typename Memory>
TANGRAM_DEVICE void DispatchChoose(const Where& where, const DispatchParameters& p,
                                   Memory& memory) {
  World<Memory> world(p, memory);
  const DispatchLayer layer = world.layer();
  EachChunk(where, p.tokens, p.experts, memory, [&](const Chunk& chunk) {
    uint32_t turn = Word(memory, p.turns, uint64_t{p.layer} * p.experts + chunk.column);
    for (uint32_t c = 0; c < chunk.number; ++c)
      turn += Word(memory, p.counts, uint64_t{c} * p.experts + chunk.column);
    for (uint64_t i = chunk.begin * p.top_k; i < chunk.end * p.top_k; ++i) {
      const uint32_t id = Word(memory, p.ids, i);
      if (id == chunk.column) {
        const int32_t choice = ChoiceOf(world, layer, id, turn++, memory);
        memory.template Store<uint32_t>(p.choices + i * 4, static_cast<uint32_t>(choice));
      } else if (chunk.column == 0 && id >= p.experts) {
        memory.template Store<uint32_t>(p.choices + i * 4, static_cast<uint32_t>(kChoiceNowhere));
        memory.Least(p.pair + offsetof(DispatchPair, bad_id), i);
      }
    }
  });
}

template <typename Memory>
TANGRAM_DEVICE bool GoesTo(const DispatchParameters& p, const DispatchLayer& layer, uint64_t row,
                           uint32_t rank, Memory& memory) {
  for (uint32_t k = 0; k < p.top_k; ++k) {
    const int32_t choice = Signed(memory, p.choices, row * p.top_k + k);
    if (choice >= 0 && IsAt(memory, layer, static_cast<uint32_t>(choice), rank)) return true;
  }
  return false;
}

// Also advances the turns.
template <typename Memory>
TANGRAM_DEVICE void DispatchRanks(const Where& where, const DispatchParameters& p, Memory& memory) {
  World<Memory> world(p, memory);
  const DispatchLayer layer = world.layer();
  EachChunk(where, p.tokens, world.ranks(), memory, [&](const Chunk& chunk) {
    uint32_t count = 0;
    for (uint64_t row = chunk.begin; row < chunk.end; ++row)
      count += GoesTo(p, layer, row, chunk.column, memory) ? 1 : 0;
    memory.template Store<uint32_t>(
        p.rank_counts + (uint64_t{chunk.number} * kMostPeers + chunk.column) * 4, count);
  });
  const Share share = ShareOf(p.experts, where.block, where.blocks);
  for (uint64_t e = share.begin + where.thread; e < share.end; e += where.threads) {
    memory.Round();
    uint32_t routed = 0;
    for (uint32_t c = 0; c < ChunksOf(p.tokens); ++c)
      routed += Word(memory, p.counts, uint64_t{c} * p.experts + e);
    const uint64_t turn = p.turns + (uint64_t{p.layer} * p.experts + e) * 4;
    memory.template Store<uint32_t>(turn, memory.template Read<uint32_t>(turn) + routed);
    memory.template Store<uint32_t>(p.routed + e * 4, routed);
  }
}

template <typename Memory>
TANGRAM_DEVICE void DispatchSlots(const Where& where, const DispatchParameters& p, Memory& memory) {
  World<Memory> world(p, memory);
  const DispatchLayer layer = world.layer();
  EachChunk(where, p.tokens, world.ranks(), memory, [&](const Chunk& chunk) {
    const uint32_t rank = chunk.column;
    uint32_t slot = 0;
    for (uint32_t c = 0; c < chunk.number; ++c)
      slot += Word(memory, p.rank_counts, uint64_t{c} * kMostPeers + rank);
    for (uint64_t row = chunk.begin; row < chunk.end; ++row) {
      const bool goes = GoesTo(p, layer, row, rank, memory);
      memory.template Store<uint32_t>(p.slot_of + (row * kMostPeers + rank) * 4,
                                      goes ? slot : UINT32_MAX);
      if (!goes) continue;
      memory.template Store<uint32_t>(p.rows_to + (uint64_t{rank} * p.most_tokens + slot) * 4,
                                      static_cast<uint32_t>(row));
      ++slot;
    }
    if (chunk.number + 1 == ChunksOf(p.tokens))
      memory.template Store<uint32_t>(p.sent + uint64_t{rank} * 4, slot);
  });
}

}  // namespace tangram::kernels
