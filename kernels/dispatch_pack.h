// Kernels `dispatch_totals`, `dispatch_tally`, `dispatch_offsets`, `dispatch_place`,
// `dispatch_pack`: received rows, packed for the experts here. The order is that of choices (so of
// experts), then of ranks and of their rows, as Exchange (agent/dispatch) packs it. Counts and
// offsets are computed where they are needed. If there is too little room, the last rows are left
// out.
#pragma once

#include "kernels/arithmetic.h"
#include "kernels/dispatch.h"
#include "kernels/lines.h"

namespace tangram::kernels {

// A chunk of the rows of one rank.
struct CameChunk {
  uint32_t rank = 0;
  uint64_t begin = 0, end = 0;  // among the rank's rows
};
template <typename Memory>
TANGRAM_DEVICE CameChunk CameChunkOf(const DispatchParameters& p, uint64_t number, Memory& memory) {
  const uint32_t of = ChunksOf(p.most_tokens);
  CameChunk chunk;
  chunk.rank = static_cast<uint32_t>(number / of);
  const uint64_t came = Word(memory, p.came, chunk.rank);
  chunk.begin = Smaller(number % of * kDispatchChunk, came);
  chunk.end = Smaller(chunk.begin + kDispatchChunk, came);
  return chunk;
}

// Index, among the choices here, of an entry of a rank; -1: none, or an invalid entry.
template <typename Memory>
TANGRAM_DEVICE int32_t LocalOf(const DispatchParameters& p, const DispatchLayer& layer, uint64_t in,
                               uint64_t entry, Memory& memory) {
  const auto choice = Word(memory, in + p.inbox.choices, entry);
  if (choice >= layer.choices) return -1;
  const int32_t local = Signed(memory, layer.local, choice);
  return static_cast<uint32_t>(local) < p.most_locals ? local : -1;
}

template <typename Memory>
TANGRAM_DEVICE void DispatchTotals(const Where& where, const DispatchParameters& p,
                                   Memory& memory) {
  World<Memory> world(p, memory);
  const DispatchLayer layer = world.layer();
  const uint64_t chunks = uint64_t{world.ranks()} * ChunksOf(p.most_tokens);
  const Share share = ShareOf(chunks, where.block, where.blocks);
  for (uint64_t u = share.begin + where.thread; u < share.end; u += where.threads) {
    memory.Round();
    const CameChunk chunk = CameChunkOf(p, u, memory);
    const uint64_t in = world.in(chunk.rank);
    uint32_t total = 0;
    for (uint64_t i = chunk.begin * p.top_k; i < chunk.end * p.top_k; ++i)
      total += LocalOf(p, layer, in, i, memory) >= 0 ? 1 : 0;
    memory.template Store<uint32_t>(p.totals + u * 4, total);
  }
}

// Calls use(entry, local) for the entries of a chunk that fit, in order; `before`: entries of all
// chunks before. local -1: the entry is left out.
template <typename Memory, typename Use>
TANGRAM_DEVICE void EachEntry(const DispatchParameters& p, const DispatchLayer& layer, uint64_t in,
                              const CameChunk& chunk, uint64_t before, Memory& memory, Use&& use) {
  for (uint64_t i = chunk.begin * p.top_k; i < chunk.end * p.top_k; ++i) {
    int32_t local = LocalOf(p, layer, in, i, memory);
    if (local >= 0 && before++ >= p.capacity) local = -1;
    use(i, local);
  }
}

// One thread per chunk and choice here.
template <typename Memory, typename Use>
TANGRAM_DEVICE void EachCameChunk(const Where& where, const DispatchParameters& p,
                                  const DispatchLayer& layer, World<Memory>& world, Memory& memory,
                                  Use&& use) {
  const uint32_t locals = layer.locals == 0 ? 1 : layer.locals;
  const uint64_t chunks = uint64_t{world.ranks()} * ChunksOf(p.most_tokens);
  const Share share = ShareOf(chunks * locals, where.block, where.blocks);
  for (uint64_t u = share.begin + where.thread; u < share.end; u += where.threads) {
    memory.Round();
    const uint64_t number = u / locals;
    uint64_t before = 0;
    const CameChunk chunk = CameChunkOf(p, number, memory);
    if (chunk.begin < chunk.end)
      for (uint64_t c = 0; c < number; ++c) before += Word(memory, p.totals, c);
    use(chunk, number, static_cast<int32_t>(u % locals), before);
  }
}

template <typename Memory>
TANGRAM_DEVICE uint64_t TallyAt(const DispatchParameters& p, uint64_t chunk, uint64_t local) {
  return p.tally + (chunk * p.most_locals + local) * 4;
}

template <typename Memory>
TANGRAM_DEVICE void DispatchTally(const Where& where, const DispatchParameters& p, Memory& memory) {
  World<Memory> world(p, memory);
  const DispatchLayer layer = world.layer();
  EachCameChunk(where, p, layer, world, memory,
                [&](const CameChunk& chunk, uint64_t number, int32_t mine, uint64_t before) {
                  uint32_t count = 0;
                  EachEntry(p, layer, world.in(chunk.rank), chunk, before, memory,
                            [&](uint64_t, int32_t local) { count += local == mine ? 1 : 0; });
                  memory.template Store<uint32_t>(
                      TallyAt<Memory>(p, number, static_cast<uint64_t>(mine)), count);
                });
}

// Replaces the tally of each chunk by the sum of all chunks before it.
template <typename Memory>
TANGRAM_DEVICE void DispatchOffsets(const Where& where, const DispatchParameters& p,
                                    Memory& memory) {
  World<Memory> world(p, memory);
  const DispatchLayer layer = world.layer();
  const uint64_t chunks = uint64_t{world.ranks()} * ChunksOf(p.most_tokens);
  const Share share = ShareOf(layer.locals, where.block, where.blocks);
  for (uint64_t l = share.begin + where.thread; l < share.end; l += where.threads) {
    memory.Round();
    uint32_t sum = 0;
    for (uint64_t c = 0; c < chunks; ++c) {
      const uint64_t at = TallyAt<Memory>(p, c, l);
      const auto count = memory.template Read<uint32_t>(at);
      memory.template Store<uint32_t>(at, sum);
      sum += count;
    }
    memory.template Store<uint32_t>(p.local_counts + l * 4, sum);
  }
  if (where.block != 0 || where.thread != 0) return;
  uint64_t wanted = 0;
  for (uint64_t c = 0; c < chunks; ++c) wanted += Word(memory, p.totals, c);
  memory.template Store<uint64_t>(p.pair + offsetof(DispatchPair, wanted), wanted);
  memory.template Store<uint32_t>(p.pair + offsetof(DispatchPair, kept),
                                  static_cast<uint32_t>(Smaller(wanted, p.capacity)));
}

template <typename Memory>
TANGRAM_DEVICE void DispatchPlace(const Where& where, const DispatchParameters& p, Memory& memory) {
  World<Memory> world(p, memory);
  const DispatchLayer layer = world.layer();
  EachCameChunk(
      where, p, layer, world, memory,
      [&](const CameChunk& chunk, uint64_t number, int32_t mine, uint64_t before) {
        uint32_t first = 0;
        for (int32_t l = 0; l < mine; ++l)
          first += Word(memory, p.local_counts, static_cast<uint64_t>(l));
        if (number == 0 && layer.locals > 0) {
          memory.template Store<uint32_t>(p.local_offsets + static_cast<uint64_t>(mine) * 4, first);
          if (static_cast<uint32_t>(mine) + 1 == layer.locals)
            memory.template Store<uint32_t>(
                p.local_offsets + (static_cast<uint64_t>(mine) + 1) * 4,
                first + Word(memory, p.local_counts, static_cast<uint64_t>(mine)));
        }
        if (chunk.begin == chunk.end) return;
        const uint64_t in = world.in(chunk.rank), row_in = in + p.inbox.rows[0];
        uint32_t at = first + (layer.locals == 0 ? 0
                                                 : memory.template Read<uint32_t>(TallyAt<Memory>(
                                                       p, number, static_cast<uint64_t>(mine))));
        EachEntry(p, layer, in, chunk, before, memory, [&](uint64_t entry, int32_t local) {
          const uint64_t place =
              p.place + (uint64_t{chunk.rank} * p.most_tokens * p.top_k + entry) * 4;
          if (local == mine) {
            memory.template Store<uint64_t>(p.from + uint64_t{at} * 8,
                                            row_in + entry / p.top_k * p.inbox.stride[0]);
            memory.template Store<uint32_t>(place, at++);
          } else if (local < 0 && mine == 0) {
            memory.template Store<uint32_t>(place, UINT32_MAX);
          }
        });
      });
}

// Lines at a list of addresses.
template <typename Memory>
struct PackedLines {
  using Grid = Radices<2>;
  uint64_t from, to;
  uint64_t bytes, lines;
  Memory& memory;

  TANGRAM_DEVICE Grid GridOf(uint64_t words) const { return {{words}}; }
  TANGRAM_DEVICE uint64_t From(const Grid::Place& place) const {
    return memory.template Read<uint64_t>(from + place.digit[1] * 8);
  }
  TANGRAM_DEVICE uint64_t To(const Grid::Place& place, uint32_t) const {
    return to + place.digit[1] * bytes;
  }
  TANGRAM_DEVICE constexpr uint32_t Targets() const { return 1; }
};

template <typename Memory>
TANGRAM_DEVICE void DispatchPack(const Where& where, const DispatchParameters& p, Memory& memory) {
  const uint64_t rows = memory.template Read<uint32_t>(p.pair + offsetof(DispatchPair, kept));
  const uint64_t bytes = uint64_t{p.hidden} * BytesOfNumber(p.wire);
  const PackedLines<Memory> lines{p.from, p.packed, bytes, rows, memory};
  const uint32_t width = AccessOf(p.packed | bytes);
  const Share share = ShareOf(TilesOf(rows, bytes, width), where.block, where.blocks);
  for (uint64_t tile = share.begin; tile < share.end; ++tile) {
    memory.Round();
    CopyTile(where, lines, width, tile, memory);
  }
  const uint64_t scales = ScalesOfRow(p.wire, p.hidden);
  const Share of = ShareOf(rows * scales, where.block, where.blocks);
  for (uint64_t i = of.begin + where.thread; i < of.end; i += where.threads) {
    memory.Round();
    const auto row = memory.template Read<uint64_t>(p.from + i / scales * 8);
    StoreFloat(memory, p.scales + i * 4,
               LoadFloat(memory, row + ScalesAt(p.hidden) + i % scales * 4));
  }
}

}  // namespace tangram::kernels
