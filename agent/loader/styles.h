// What the experts of each family of models are made of, as tables: which tensors there are, which
// way the inner size I lies in them, and what of them makes a granule and the tail
// (docs/architecture.md, section 8, "Granule-major" and "Row-major").
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "tangram/v1/layout.pb.h"

namespace tangram::loader {

// How a tensor of an expert lies. b: 128 for scales, else 1; H / b is rounded up.
enum class Lies {
  kRows,     // [ways * I / b, H / b]: a granule's part is rows
  kColumns,  // [H / b, ways * I / b]: a granule's part is columns, and (granule-major) becomes rows
  kInner,    // [ways * I]: a granule's part is one column of numbers, as of a matrix of one row
  kTail,     // [H]: all of it is the expert's tail
};

struct TensorRule {
  const char*
      name;  // behind the prefix of its expert, or of its layer's experts if they are stacked
  Lies lies;
  // So many matrices alternate along I, element by element; in a granule of a granule-major slab
  // each is by itself.
  uint32_t ways = 1;
  bool scale = false;  // one number for each block of 128 x 128, of the scales' own type
  // The tensor has so many matrices one after another along I, of which this is one. Of kRows and
  // kColumns, in stacked tensors.
  uint32_t of = 1, part = 0;
};

struct Style {
  const char* model;  // model_type in config.json
  bool fp8;           // its weights are F8_E4M3, else BF16 or F32
  bool stacked;       // one tensor for all experts of a layer: another axis before the others
  std::span<const TensorRule> tensors;   // in the order of their parts of a granule; the tail last
  const char* layers = "model.layers.";  // names of tensors begin so; the layer's number follows,
  const char* experts = "mlp.experts.";  // then this, and (not stacked) the expert's number

  // What names of tensors of an expert, or of a layer's experts, begin with.
  std::string Prefix(uint32_t layer, uint32_t expert) const;
};

constexpr uint32_t kScaleBlock = 128;

// kInvalid: `model` is none that is supported, and the message names those.
Result<const Style*> StyleOf(const std::string& model, bool fp8);

// How transformers 5 writes the experts of such a model in its own format: stacked, as in memory,
// where `StyleOf` has a tensor for each expert; nullptr: the format does not differ.
const Style* StackedStyleOf(const std::string& model, bool fp8);

// The shape that the tensor has in a checkpoint of the geometry (hidden, moe_inner, experts).
std::vector<uint64_t> ShapeOf(const Style& style, const TensorRule& rule, const v1::Geometry& g);

// What one tensor gives to each granule: `along` numbers of the inner axis by `across` of the
// other.
struct Section {
  bool columns = false;
  uint32_t ways = 1;
  uint64_t element = 0;  // bytes of a number
  uint64_t along = 0, across = 0;
  uint64_t inner = 0;  // numbers of the whole inner axis of the tensor
  uint64_t at = 0;     // of its bytes in the granule
  uint64_t bytes() const { return along * across * element; }
  // Row-major: a granule's part in one row of the tensor, where that is not all of the tensor.
  uint64_t narrow() const { return along * element; }
};

// Sections by tensor (without the tail's), and what they make of the geometry, of which
// `slab_format` is known: granule_bytes, expert_tail_bytes and, row-major, sections. `scales`: the
// type of the scales, if there are any. kBadGeometry: granule_rows is no whole number of blocks.
Result<std::vector<Section>> SectionsOf(const Style& style, v1::DType scales, v1::Geometry* g);

}  // namespace tangram::loader
