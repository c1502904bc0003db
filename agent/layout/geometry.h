// A model's geometry with the numbers that follow from it: granules, pitches, banks.
// C++ twin of operator/pkg/geometry; the rules are docs/architecture.md, section 8.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "tangram/v1/layout.pb.h"

namespace tangram::layout {

// A run of granules of one expert.
struct Run {
  uint32_t start = 0;
  uint32_t count = 0;
  bool operator==(const Run&) const = default;
};

// Which granules position `position` of a group of `group` ranks holds of `expert`.
// Sizes differ by at most one; the longer runs rotate with the expert.
Run ShardOf(uint32_t granules, uint32_t group, uint32_t expert, uint32_t position);

// Rows of a granule where nobody says them: the most of at most 128 that give an expert of `inner`
// rows 8 granules or more, so that 8 ranks can share it; else the most that divide it. Multiples of
// the rows that a scale of `dtype` covers, and of 16 if that can be. The twin of
// operator/pkg/geometry's, in tests/golden/granule-rows.json.
uint32_t DefaultGranuleRows(uint32_t inner, v1::DType dtype);

constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Start of every Tensor piece and of every dense tensor, in bytes.
constexpr uint64_t kPieceAlignment = 256;
// Slots of a bank beyond one per expert (redundant experts, pieces in passing).
constexpr uint32_t kSpareSlots = 32;
// Banks of a layout beyond one per MoE layer, at most.
constexpr uint32_t kMostSpareBanks = 4096;
// A page's number in its bank has so many values.
constexpr uint64_t kMostPagesOfABank = 1ULL << 40;

class GeometryView {
 public:
  // Refuses geometries that contradict themselves, or whose numbers of bytes (up to all banks
  // that a layout may have, and the dense weights beside them) reach 2^63: kBadGeometry, naming
  // the field and its value.
  static Result<GeometryView> Make(v1::Geometry geometry);

  const v1::Geometry& proto() const { return proto_; }
  uint32_t granules() const { return granules_; }
  uint32_t experts() const { return proto_.experts(); }
  uint32_t moe_layers() const { return static_cast<uint32_t>(proto_.moe_layers_size()); }
  uint64_t page_bytes() const { return proto_.page_bytes(); }
  uint64_t granule_bytes() const { return proto_.granule_bytes(); }
  uint64_t tail_bytes() const { return proto_.expert_tail_bytes(); }
  // Granules are interleaved in their slab, by Geometry.sections; else they lie one after another.
  bool row_major() const { return proto_.slab_format() == v1::SLAB_FORMAT_ROW_MAJOR; }
  // Bytes of a piece of `count` granules, tail included.
  uint64_t piece_bytes(uint32_t count) const {
    return count * proto_.granule_bytes() + proto_.expert_tail_bytes();
  }
  uint64_t expert_bytes() const { return piece_bytes(granules_); }
  // Bytes from slot to slot in a bank of whole experts.
  uint64_t expert_pitch() const { return expert_pitch_; }
  uint64_t bank_pitch() const { return bank_pitch_; }
  // MoE ordinal of a model layer, or -1.
  int32_t ordinal(uint32_t layer) const { return layer < ordinals_.size() ? ordinals_[layer] : -1; }
  // SHA-256 of the deterministic wire form.
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  GeometryView() = default;

  v1::Geometry proto_;
  uint32_t granules_ = 0;
  uint64_t expert_pitch_ = 0;
  uint64_t bank_pitch_ = 0;
  std::vector<int32_t> ordinals_;
  std::string fingerprint_;
};

// The deterministic wire form of a message.
std::string WireOf(const google::protobuf::MessageLite& message);
std::string Sha256(std::string_view bytes);  // 32 bytes
// SHA-256 of the deterministic wire form of a message.
std::string WireHash(const google::protobuf::MessageLite& message);
std::string Hex(std::string_view bytes);

}  // namespace tangram::layout
