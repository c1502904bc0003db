// Kernels `combine_send` and `combine_reduce`. The rank that has experts sums a row over its
// choices there, in their order, weighted, and writes the sum directly into the memory of the row's
// home. The home adds these sums in the order of ranks. The bits are those of Partial and Add
// (agent/dispatch/numbers.h).
#pragma once

#include "kernels/arithmetic.h"
#include "kernels/dispatch.h"
#include "kernels/partial_sums.h"

namespace tangram::kernels {

// A number of a row of sums during the addition: fp32, or an integer of unit 2^-40.
template <uint32_t kSums>
struct Accumulator {
  float sum = 0;
};
template <>
struct Accumulator<kRowFixed> {
  int64_t sum = 0;
};

// Overflow: both operands have one sign, and the sum has the other.
TANGRAM_DEVICE bool AddFixed(int64_t number, int64_t* sum) {
  const auto next =
      static_cast<int64_t>(static_cast<uint64_t>(*sum) + static_cast<uint64_t>(number));
  const bool good = ((*sum ^ next) & (number ^ next)) >= 0;
  *sum = next;
  return good;
}

// Loads `kNumbers` adjacent numbers of an element by one access of 16, 8, 4 or 2 bytes.
template <uint32_t kElement, uint32_t kNumbers, typename Memory>
TANGRAM_DEVICE void LoadNumbers(Memory& memory, uint64_t at, uint64_t (&out)[kNumbers]) {
  constexpr uint32_t kBytes = kElement == kRowFixed ? 8 : kElement == kRowF32 ? 4 : 2;
  constexpr uint32_t kBits = 8 * kBytes;
  uint64_t low = 0, high = 0;
  if constexpr (kNumbers * kBytes == 16) {
    const auto word = memory.template Load<Word16>(at);
    low = word.low;
    high = word.high;
  } else if constexpr (kNumbers * kBytes == 8) {
    low = memory.template Load<uint64_t>(at);
  } else if constexpr (kNumbers * kBytes == 4) {
    low = memory.template Load<uint32_t>(at);
  } else {
    low = memory.template Load<uint16_t>(at);
  }
  TANGRAM_UNROLL
  for (uint32_t n = 0; n < kNumbers; ++n) {
    const uint64_t word = n * kBits < 64 ? low : high;
    if constexpr (kElement == kRowFixed) {
      out[n] = word;
    } else if constexpr (kElement == kRowF32) {
      out[n] = word >> (n * kBits % 64) & 0xffffffff;
    } else {
      out[n] = (word >> (n * kBits % 64) & 0xffff) << 16;  // as fp32
    }
  }
}
template <uint32_t kElement, uint32_t kNumbers, typename Memory>
TANGRAM_DEVICE void StoreNumbers(Memory& memory, uint64_t at,
                                 const Accumulator<kElement> (&sums)[kNumbers]) {
  constexpr uint32_t kBytes = kElement == kRowFixed ? 8 : kElement == kRowF32 ? 4 : 2;
  uint64_t words[2] = {};
  TANGRAM_UNROLL
  for (uint32_t n = 0; n < kNumbers; ++n) {
    uint64_t bits = 0;
    if constexpr (kElement == kRowFixed) {
      bits = static_cast<uint64_t>(sums[n].sum);
    } else if constexpr (kElement == kRowF32) {
      bits = BitsOf(sums[n].sum);
    } else {
      bits = ToBf16(sums[n].sum);
    }
    words[n * kBytes / 8] |= bits << (n * kBytes % 8 * 8);
  }
  if constexpr (kNumbers * kBytes == 16) {
    memory.template Store<Word16>(at, Word16{words[0], words[1]});
  } else if constexpr (kBytes == 8) {
    memory.template Store<uint64_t>(at, words[0]);
  } else if constexpr (kBytes == 4) {
    memory.template Store<uint32_t>(at, static_cast<uint32_t>(words[0]));
  } else {
    memory.template Store<uint16_t>(at, static_cast<uint16_t>(words[0]));
  }
}

// Units of a row: the numbers that 16 bytes of a sum hold, or single numbers if rows are not
// aligned. A thread works on `kBatch` units concurrently.
constexpr uint64_t kSumTile = 4096;
constexpr uint32_t kSumBatch = 2;

template <uint32_t kSums>
TANGRAM_DEVICE constexpr uint32_t NumbersOfUnit() {
  return kSums == kRowFixed ? 2 : kSums == kRowF32 ? 4 : 8;
}

// The sums that are sent back to one rank.
template <uint32_t kOutputs, uint32_t kSums, uint32_t kNumbers, typename Memory>
class Partials {
 public:
  TANGRAM_DEVICE Partials(const DispatchParameters& p, uint32_t rank, uint64_t in, uint64_t out,
                          Memory& memory)
      : p_(p),
        memory_(memory),
        in_(in),
        out_(out),
        place_(p.place + uint64_t{rank} * p.most_tokens * p.top_k * 4),
        units_(p.hidden / kNumbers) {}

  TANGRAM_DEVICE void Add(const Where& where, uint64_t tile, uint64_t rows) {
    const auto end = static_cast<uint32_t>(Smaller((tile + 1) * kSumTile, rows * units_));
    for (auto u = static_cast<uint32_t>(tile * kSumTile) + where.thread; u < end;
         u += kSumBatch * where.threads) {
      memory_.Round();
      AddBatch(u, where.threads, end);
    }
  }

 private:
  TANGRAM_DEVICE void AddBatch(uint32_t first, uint32_t step, uint32_t end) {
    Accumulator<kSums> sums[kSumBatch][kNumbers];
    bool some[kSumBatch], good[kSumBatch];
    for (uint32_t b = 0; b < kSumBatch; ++b) some[b] = false, good[b] = true;
    for (uint32_t k = 0; k < p_.top_k; ++k) {
      uint64_t numbers[kSumBatch][kNumbers];
      int32_t at[kSumBatch];
      TANGRAM_UNROLL
      for (uint32_t b = 0; b < kSumBatch; ++b) {
        const uint32_t u = first + b * step;
        at[b] = u < end ? Signed(memory_, place_, uint64_t{u / units_} * p_.top_k + k) : -1;
        memory_.Request((k + 1) * kSumBatch + b);
        if (at[b] >= 0)
          LoadNumbers<kOutputs>(
              memory_,
              p_.given + (static_cast<uint64_t>(at[b]) * p_.hidden + u % units_ * kNumbers) *
                             BytesOfNumber(kOutputs),
              numbers[b]);
      }
      TANGRAM_UNROLL
      for (uint32_t b = 0; b < kSumBatch; ++b) {
        if (at[b] < 0) continue;
        const uint64_t row = (first + b * step) / units_;
        const float weight = OfBits(Word(memory_, in_ + p_.inbox.weights, row * p_.top_k + k));
        for (uint32_t n = 0; n < kNumbers; ++n) {
          const float product = Product(weight, OfBits(static_cast<uint32_t>(numbers[b][n])));
          if constexpr (kSums == kRowFixed) {
            int64_t fixed = 0;
            good[b] = ToFixed(BitsOf(product), &fixed) && good[b];
            good[b] = AddFixed(fixed, &sums[b][n].sum) && good[b];
          } else {
            sums[b][n].sum = some[b] ? Sum(sums[b][n].sum, product) : product;
          }
        }
        some[b] = true;
      }
    }
    for (uint32_t b = 0; b < kSumBatch; ++b) {
      const uint32_t u = first + b * step;
      if (u >= end) continue;
      const uint64_t row = u / units_;
      const uint32_t unit = u % units_;
      memory_.Request((p_.top_k + 1) * kSumBatch + b);
      StoreNumbers<kSums>(memory_,
                          out_ + p_.inbox.rows[1] + row * p_.inbox.stride[1] +
                              uint64_t{unit} * kNumbers * BytesOfNumber(kSums),
                          sums[b]);
      // Every thread that finds an overflow in a row stores the same value.
      if (!good[b])
        memory_.template Store<uint64_t>(
            out_ + p_.inbox.unfit + row * 8,
            memory_.template Read<uint64_t>(p_.pair + offsetof(DispatchPair, flag)));
      if (unit == 0) Tell(row);
    }
  }

  // Stores which of the row's choices here are missing in the sum.
  TANGRAM_DEVICE void Tell(uint64_t row) {
    uint32_t lacking = 0;
    for (uint32_t k = 0; k < p_.top_k; ++k) {
      const uint64_t entry = row * p_.top_k + k;
      if (Signed(memory_, in_ + p_.inbox.choices, entry) != kChoiceElsewhere &&
          Signed(memory_, place_, entry) < 0)
        lacking |= 1u << k;
    }
    memory_.template Store<uint32_t>(out_ + p_.inbox.lacking + row * 4, lacking);
  }

  const DispatchParameters& p_;
  Memory& memory_;
  const uint64_t in_, out_, place_;
  const uint32_t units_;  // per row; all rows together have fewer than 2^32
};

template <uint32_t kOutputs, uint32_t kSums, uint32_t kNumbers, typename Memory>
TANGRAM_DEVICE void SendPartials(const Where& where, const DispatchParameters& p, Memory& memory) {
  World<Memory> world(p, memory);
  const auto rows_of = [&](uint32_t r) -> uint64_t { return Word(memory, p.came, r); };
  EachTile(
      where, world.ranks(), world.self(),
      [&](uint32_t r) { return (rows_of(r) * (p.hidden / kNumbers) + kSumTile - 1) / kSumTile; },
      [&](uint32_t r, uint64_t tile) {
        Partials<kOutputs, kSums, kNumbers, Memory>(p, r, world.in(r), world.out(r), memory)
            .Add(where, tile, rows_of(r));
      });
}

template <uint32_t kOutputs, uint32_t kSums, typename Memory>
TANGRAM_DEVICE void SendPartials(const Where& where, const DispatchParameters& p, Memory& memory) {
  constexpr uint32_t kNumbers = NumbersOfUnit<kSums>();
  if (p.hidden % kNumbers == 0 && (p.given | p.hidden * uint64_t{BytesOfNumber(kOutputs)}) %
                                          (kNumbers * BytesOfNumber(kOutputs)) ==
                                      0) {
    SendPartials<kOutputs, kSums, kNumbers>(where, p, memory);
  } else {
    SendPartials<kOutputs, kSums, 1>(where, p, memory);
  }
}

template <typename Memory>
TANGRAM_DEVICE void CombineSend(const Where& where, const DispatchParameters& p, Memory& memory) {
  if (p.sums == kRowFixed) {
    SendPartials<kRowF32, kRowFixed>(where, p, memory);
  } else if (p.sums == kRowBf16) {
    SendPartials<kRowBf16, kRowBf16>(where, p, memory);
  } else if (p.outputs == kRowBf16) {
    SendPartials<kRowBf16, kRowF32>(where, p, memory);
  } else {
    SendPartials<kRowF32, kRowF32>(where, p, memory);
  }
}

// Adds the sums of all ranks for this rank's rows.
template <uint32_t kSums, uint32_t kNumbers, typename Memory>
class Homecoming {
 public:
  TANGRAM_DEVICE Homecoming(const DispatchParameters& p, Memory& memory)
      : p_(p), memory_(memory), world_(p, memory), units_(p.hidden / kNumbers) {
    ranks_ = world_.ranks();
  }

  TANGRAM_DEVICE void Run(const Where& where) {
    const uint32_t units = p_.tokens * units_;
    const Share share =
        ShareOf((uint64_t{units} + kSumTile - 1) / kSumTile, where.block, where.blocks);
    const auto end = static_cast<uint32_t>(Smaller<uint64_t>(share.end * kSumTile, units));
    for (auto u = static_cast<uint32_t>(share.begin * kSumTile) + where.thread; u < end;
         u += where.threads) {
      memory_.Round();
      Add(u / units_, u % units_);
    }
  }

 private:
  TANGRAM_DEVICE void Add(uint64_t row, uint32_t unit) {
    Accumulator<kSums> sums[kNumbers] = {};
    bool good = true;
    uint32_t missing = unit == 0 ? Nowhere(row) : 0;
    for (uint32_t r = 0; r < ranks_; ++r) {
      const int32_t slot = Signed(memory_, p_.slot_of, row * kMostPeers + r);
      if (slot < 0) continue;
      const bool came = Word(memory_, p_.summed, r) != 0;
      const uint64_t in = world_.in(r), at = static_cast<uint64_t>(slot);
      if (unit == 0) missing |= Missing(row, r, came, in, at);
      if (!came) continue;
      memory_.Request(r + 1);
      uint64_t numbers[kNumbers];
      LoadNumbers<kSums>(memory_,
                         in + p_.inbox.rows[1] + at * p_.inbox.stride[1] +
                             uint64_t{unit} * kNumbers * BytesOfNumber(kSums),
                         numbers);
      TANGRAM_UNROLL
      for (uint32_t n = 0; n < kNumbers; ++n) {
        if constexpr (kSums == kRowFixed) {
          good = AddFixed(static_cast<int64_t>(numbers[n]), &sums[n].sum) && good;
        } else {
          sums[n].sum = Sum(sums[n].sum, OfBits(static_cast<uint32_t>(numbers[n])));
        }
      }
    }
    memory_.Request(ranks_ + 1);
    StoreNumbers<kSums>(
        memory_,
        p_.y + (row * p_.hidden + uint64_t{unit} * kNumbers) * uint64_t{BytesOfNumber(kSums)},
        sums);
    if (!good) memory_.template Store<uint32_t>(p_.pair + offsetof(DispatchPair, wraps), 1);
    if (unit == 0) memory_.template Store<uint32_t>(p_.missing + row * 4, missing);
  }

  TANGRAM_DEVICE uint32_t Nowhere(uint64_t row) {
    uint32_t out = 0;
    for (uint32_t k = 0; k < p_.top_k; ++k)
      if (Signed(memory_, p_.choices, row * p_.top_k + k) < 0) out |= 1u << k;
    return out;
  }
  // Returns a row's choices at a rank that are missing in the sum which it sent.
  TANGRAM_DEVICE uint32_t Missing(uint64_t row, uint32_t rank, bool came, uint64_t in,
                                  uint64_t slot) {
    uint32_t lacking = UINT32_MAX;
    if (came && memory_.template Read<uint64_t>(in + p_.inbox.unfit + slot * 8) !=
                    memory_.template Read<uint64_t>(p_.pair + offsetof(DispatchPair, flag)))
      lacking = Word(memory_, in + p_.inbox.lacking, slot);
    if (lacking == 0) return 0;
    const DispatchLayer layer = world_.layer();
    uint32_t out = 0;
    for (uint32_t k = 0; k < p_.top_k; ++k) {
      const int32_t choice = Signed(memory_, p_.choices, row * p_.top_k + k);
      if ((lacking >> k & 1) != 0 && choice >= 0 &&
          IsAt(memory_, layer, static_cast<uint32_t>(choice), rank))
        out |= 1u << k;
    }
    return out;
  }

  const DispatchParameters& p_;
  Memory& memory_;
  World<Memory> world_;
  const uint32_t units_;
  uint32_t ranks_ = 0;
};

template <uint32_t kSums, typename Memory>
TANGRAM_DEVICE void Reduce(const Where& where, const DispatchParameters& p, Memory& memory) {
  constexpr uint32_t kNumbers = NumbersOfUnit<kSums>();
  if (p.hidden % kNumbers == 0 && p.y % 16 == 0) {
    Homecoming<kSums, kNumbers, Memory>(p, memory).Run(where);
  } else {
    Homecoming<kSums, 1, Memory>(p, memory).Run(where);
  }
}

template <typename Memory>
TANGRAM_DEVICE void CombineReduce(const Where& where, const DispatchParameters& p, Memory& memory) {
  if (p.sums == kRowFixed) {
    Reduce<kRowFixed>(where, p, memory);
  } else if (p.sums == kRowBf16) {
    Reduce<kRowBf16>(where, p, memory);
  } else {
    Reduce<kRowF32>(where, p, memory);
  }
}

}  // namespace tangram::kernels
