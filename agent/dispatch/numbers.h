// The numbers that rows are made of, and what is done with rows of them. Pure.
//
// Products and sums are those of fp32 (or of 64-bit integers), each rounded once and in the order
// that is written down here, so that every build and machine has the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tangram::dispatch {

// kFixed: 64-bit integers of unit 2^-40 (kernels/partial_sums.h), which add up to the same in any
// order. kFp8: e4m3 with an fp32 scale for each 128 numbers of a row (kernels/fp8.h).
enum class Element : uint32_t { kF32 = 1, kBf16 = 2, kFp8 = 3, kFixed = 4 };

constexpr size_t BytesOf(Element element) {
  return element == Element::kFixed  ? 8
         : element == Element::kF32  ? 4
         : element == Element::kBf16 ? 2
                                     : 1;
}
const char* NameOf(Element element);
// Scales of a row: none but for kFp8.
uint32_t ScalesOf(Element element, uint32_t hidden);
// Of a row with its scales, which lie behind its numbers, at a multiple of 4.
size_t RowBytes(Element element, uint32_t hidden);

// A row [hidden] of kF32 or kBf16 as a row of another element (kF32, kBf16, kFp8 with its scales
// behind it). Exact, but to kBf16 (nearest, ties to even) and to kFp8 (by scales of the largest
// number of a block over 448; a block of zeros has scale 1).
void Convert(Element from, const void* row, uint32_t hidden, Element to, void* out);
// A row of kF32, kBf16 or kFp8 with its scales, exactly but for the product with the scale.
void ToFloat(Element from, const void* row, uint32_t hidden, float* out);

// A row of an expert's outputs, and the router's weight of it; so many make a partial sum at most.
constexpr size_t kMostRows = 32;
struct Weighted {
  const void* row;
  float weight;
};
// The sum over k of weight[k] * row[k], in the order of k, rows [hidden] of `outputs` (kF32,
// kBf16), as one row of `sums`: added up in fp32 and rounded once (kF32, kBf16), or each product
// made fixed first (kFixed). False: a product has no place in fixed point, or their sum wraps.
// `next`: rows of the sum that comes next, which are only fetched; of memory that is far larger
// than the caches the next sum waits less for them then.
bool Partial(Element outputs, std::span<const Weighted> rows, uint32_t hidden, Element sums,
             void* out, std::span<const Weighted> next = {});

// to [hidden] of sums = the sum of such rows, in their order, in fp32 where it is no integer,
// rounded once; of no rows it is zero. False: an integer wraps.
bool Sum(Element sums, std::span<const void* const> rows, uint32_t hidden, void* to);

// Copies a row past the caches where there is a way: for memory that is far larger than they are.
// EndStreams before anybody else is told.
void Stream(const void* from, size_t bytes, void* to);
void EndStreams();

}  // namespace tangram::dispatch
