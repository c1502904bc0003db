// The elements of rows, and operations on rows. Pure.
//
// Products and sums are those of fp32 (or of 64-bit integers), each rounded once and in the order
// stated here, so every build and machine has the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tangram::dispatch {

// kFixed: 64-bit integers of unit 2^-40 (kernels/partial_sums.h), whose sum does not depend on the
// order. kFp8: e4m3 with an fp32 scale per 128 numbers of a row (kernels/fp8.h).
enum class Element : uint32_t { kF32 = 1, kBf16 = 2, kFp8 = 3, kFixed = 4 };

constexpr size_t BytesOf(Element element) {
  return element == Element::kFixed  ? 8
         : element == Element::kF32  ? 4
         : element == Element::kBf16 ? 2
                                     : 1;
}
const char* NameOf(Element element);
// Scales per row: 0 except for kFp8.
uint32_t ScalesOf(Element element, uint32_t hidden);
// Bytes of a row with its scales, which follow the numbers, at a multiple of 4.
size_t RowBytes(Element element, uint32_t hidden);

// Converts a row [hidden] of kF32 or kBf16 to another element (kF32, kBf16, or kFp8 followed by its
// scales). Exact, except to kBf16 (nearest, ties to even) and to kFp8 (a scale is the largest
// magnitude of a block over 448; a block of zeros has scale 1).
void Convert(Element from, const void* row, uint32_t hidden, Element to, void* out);
// Converts a row of kF32, kBf16 or kFp8 with its scales to F32: exact except for the product with
// the scale.
void ToFloat(Element from, const void* row, uint32_t hidden, float* out);

// A row of an expert's outputs, and its router weight; kMostRows is the maximum per partial sum.
constexpr size_t kMostRows = 32;
struct Weighted {
  const void* row;
  float weight;
};
// The sum over k of weight[k] * row[k], in the order of k, rows [hidden] of `outputs` (kF32,
// kBf16), as one row of `sums`: added up in fp32 and rounded once (kF32, kBf16), or with each
// product first converted to fixed point (kFixed). False: a product or the sum overflows fixed
// point. `next`: rows of the next sum, which are only prefetched; this saves waiting if memory is
// far larger than the caches.
bool Partial(Element outputs, std::span<const Weighted> rows, uint32_t hidden, Element sums,
             void* out, std::span<const Weighted> next = {});

// to [hidden] of sums = the sum of such rows, in their order: in fp32 and rounded once, or as
// integers; without rows it is zero. False: an integer overflows.
bool Sum(Element sums, std::span<const void* const> rows, uint32_t hidden, void* to);

// Copies a row past the caches if the processor can: for memory that is far larger than they are.
// Call EndStreams before you publish the copy.
void Stream(const void* from, size_t bytes, void* to);
void EndStreams();

}  // namespace tangram::dispatch
