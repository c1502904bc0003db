// A model's geometry and derived numbers: granules, pitches, banks. C++ twin of
// operator/pkg/geometry; the rules are in docs/architecture.md, section 8.
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

// The granules of `expert` that position `position` of a group of `group` ranks holds. Counts
// differ by at most one; the ranks with the longer runs rotate with the expert.
Run ShardOf(uint32_t granules, uint32_t group, uint32_t expert, uint32_t position);

// Default rows of a granule: the largest number up to 128 that gives an expert of `inner` rows at
// least 8 granules, so that 8 ranks can share it; else the largest that divides it. A multiple of
// the rows per scale of `dtype`, and of 16 if possible. Twin: operator/pkg/geometry; both in
// tests/golden/granule-rows.json.
uint32_t DefaultGranuleRows(uint32_t inner, v1::DType dtype);

constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Alignment of every Tensor piece and of every dense tensor, in bytes.
constexpr uint64_t kPieceAlignment = 256;
// Slots of a bank beyond one per expert (redundant experts, pieces in transit).
constexpr uint32_t kSpareSlots = 32;
// Maximum number of banks of a layout beyond one per MoE layer.
constexpr uint32_t kMostSpareBanks = 4096;
// Upper bound of the page numbers in a bank.
constexpr uint64_t kMostPagesOfABank = 1ULL << 40;

class GeometryView {
 public:
  // Rejects contradictory geometries, and byte counts (up to all banks of a layout plus the dense
  // weights) that reach 2^63: kBadGeometry, with the field and its value.
  static Result<GeometryView> Make(v1::Geometry geometry);

  const v1::Geometry& proto() const { return proto_; }
  uint32_t granules() const { return granules_; }
  uint32_t experts() const { return proto_.experts(); }
  uint32_t moe_layers() const { return static_cast<uint32_t>(proto_.moe_layers_size()); }
  uint64_t page_bytes() const { return proto_.page_bytes(); }
  uint64_t granule_bytes() const { return proto_.granule_bytes(); }
  uint64_t tail_bytes() const { return proto_.expert_tail_bytes(); }
  // Granules are interleaved in their slab, by Geometry.sections; otherwise they are consecutive.
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
