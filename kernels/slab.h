// The strips by which granules of an expert move between slabs of any widths, in both slab formats
// (docs/architecture.md, section 8): the expert reshard as a list for `copy_strips`.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/parameters.h"

namespace tangram::kernels {

// The part of a tensor of an expert in one granule: `lines` lines of `bytes` bytes. Rows are one
// line, columns one line per row; scales and biases are sections like any other.
struct Section {
  uint64_t lines = 0, bytes = 0;
};

// Granules of one expert as stored in a piece.
struct Slab {
  uint64_t address = 0;
  uint64_t granules = 0;   // their number
  bool row_major = false;  // else granule-major
};

// Appends the strips that copy `count` granules, from number from_first of `from` on, to those from
// to_first of `to` on. Between slabs of one format a strip covers all of them.
void AppendStrips(const Slab& to, uint64_t to_first, const Slab& from, uint64_t from_first,
                  uint64_t count, std::span<const Section> sections,
                  std::vector<CopyStrip>* strips);

}  // namespace tangram::kernels
