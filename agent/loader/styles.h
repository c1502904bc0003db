// Tables of the experts of each family of models: their tensors, the axis of the inner size I in
// them, and the parts that form a granule and the tail (docs/architecture.md, section 8,
// "Granule-major" and "Row-major").
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "tangram/v1/layout.pb.h"

namespace tangram::loader {

// Orientation of a tensor of an expert. b: 128 for scales, else 1; H / b is rounded up.
enum class Lies {
  kRows,     // [ways * I / b, H / b]: a granule's part is rows
  kColumns,  // [H / b, ways * I / b]: a granule's part is columns, and (granule-major) becomes rows
  kInner,    // [ways * I]: a granule's part is one column of numbers, like a matrix of one row
  kTail,     // [H]: the whole tensor is the expert's tail
};

struct TensorRule {
  const char* name;  // after the prefix of its expert, or of its layer's experts if stacked
  Lies lies;
  // This many matrices alternate along I, element by element. A granule of a granule-major slab has
  // each separately.
  uint32_t ways = 1;
  bool scale = false;  // one number per block of 128 x 128, of the scales' own type
  // The tensor has `of` matrices one after another along I, and this is number `part`. For kRows
  // and kColumns, in stacked tensors.
  uint32_t of = 1, part = 0;
};

struct Style {
  const char* model;  // model_type in config.json
  bool fp8;           // weights are F8_E4M3, else BF16 or F32
  bool stacked;       // one tensor for all experts of a layer, with the expert as the first axis
  std::span<const TensorRule> tensors;   // in the order of their parts in a granule; the tail last
  const char* layers = "model.layers.";  // start of the tensors' names, before the layer's number
  const char* experts = "mlp.experts.";  // after it; then (not stacked) the expert's number

  // Start of the names of an expert's tensors, or if stacked of those of a layer's experts.
  std::string Prefix(uint32_t layer, uint32_t expert) const;
};

constexpr uint32_t kScaleBlock = 128;

// kInvalid: `model` is not supported; the message names the supported ones.
Result<const Style*> StyleOf(const std::string& model, bool fp8);

// The style in which transformers 5 writes such a model in its own format: stacked, where `StyleOf`
// has a tensor per expert. nullptr: the format does not differ.
const Style* StackedStyleOf(const std::string& model, bool fp8);

// The tensor's shape in a checkpoint of the geometry (hidden, moe_inner, experts).
std::vector<uint64_t> ShapeOf(const Style& style, const TensorRule& rule, const v1::Geometry& g);

// The part of one tensor in each granule: `along` numbers of the inner axis by `across` of the
// other.
struct Section {
  bool columns = false;
  uint32_t ways = 1;
  uint64_t element = 0;  // bytes per number
  uint64_t along = 0, across = 0;
  uint64_t inner = 0;  // numbers of the whole inner axis of the tensor
  uint64_t at = 0;     // offset of its bytes in the granule
  uint64_t bytes() const { return along * across * element; }
  // Row-major: bytes of a granule in one row of the tensor, if it has only a part of the row.
  uint64_t narrow() const { return along * element; }
};

// Sections by tensor (without the tail's). Also sets in the geometry, from its `slab_format`:
// granule_bytes, expert_tail_bytes and, if row-major, sections. `scales`: the type of the scales,
// if there are any. kBadGeometry: granule_rows is not a whole number of blocks.
Result<std::vector<Section>> SectionsOf(const Style& style, v1::DType scales, v1::Geometry* g);

}  // namespace tangram::loader
