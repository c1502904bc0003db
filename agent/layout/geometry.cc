#include "agent/layout/geometry.h"

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <openssl/sha.h>

#include <algorithm>

namespace tangram::layout {

namespace {

uint32_t BlockRows(v1::DType dtype) {
  if (dtype == v1::DTYPE_FP8_E4M3_BLOCK128) return 128;
  return dtype == v1::DTYPE_MXFP4 ? 32 : 1;
}

// The largest number of rows up to `most` that gives at least `granules` granules; 0: none.
uint32_t RowsFor(uint32_t inner, uint32_t block, uint32_t granules, uint32_t most) {
  for (const uint32_t unit : {16U, 8U, 4U, 2U, 1U}) {
    for (uint32_t rows = std::min(most, inner); rows > 0; --rows) {
      const bool divides = inner % rows == 0 && rows % block == 0 && rows % unit == 0;
      if (divides && inner / rows >= granules) return rows;
    }
  }
  return 0;
}

}  // namespace

uint32_t DefaultGranuleRows(uint32_t inner, v1::DType dtype) {
  const uint32_t block = BlockRows(dtype);
  if (const uint32_t rows = RowsFor(inner, block, 8, 128); rows > 0) return rows;
  return std::max(RowsFor(inner, block, 1, 128), 1U);
}

Run ShardOf(uint32_t granules, uint32_t group, uint32_t expert, uint32_t position) {
  const uint32_t base = granules / group;
  const uint32_t extra = granules % group;
  const uint32_t shift = expert % group;
  // Positions from `shift` on, `extra` of them in a circle, have one granule more.
  const auto longer_before = [&](uint32_t p) {
    const uint32_t from_shift = p > shift ? std::min(p - shift, extra) : 0;
    const uint32_t wrapped = shift + extra > group ? std::min(p, shift + extra - group) : 0;
    return from_shift + wrapped;
  };
  const uint32_t before = longer_before(position);
  return {position * base + before, base + longer_before(position + 1) - before};
}

std::string WireOf(const google::protobuf::MessageLite& message) {
  std::string wire;
  {
    google::protobuf::io::StringOutputStream stream(&wire);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  return wire;
}

std::string Sha256(std::string_view bytes) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

std::string WireHash(const google::protobuf::MessageLite& message) {
  return Sha256(WireOf(message));
}

std::string Hex(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const unsigned char c : bytes) out += fmt::format("{:02x}", c);
  return out;
}

namespace {

Status Bad(std::string message) { return {Code::kBadGeometry, "geometry: " + std::move(message)}; }

Status CheckLayers(const v1::Geometry& g) {
  int64_t last = -1;
  for (const uint32_t layer : g.moe_layers()) {
    if (layer >= g.layers() || static_cast<int64_t>(layer) <= last) {
      return Bad(
          fmt::format("moe_layers must ascend below layers = {}, found {}", g.layers(), layer));
    }
    last = layer;
  }
  return OkStatus();
}

// Numbers derived from a geometry stay below this, so that a sum of two of them, or one of them
// rounded up, stays below 2^63.
constexpr uint64_t kMostBytes = 1ULL << 61;

// *out = a * b; the error names the field.
Status Multiply(const char* field, uint64_t a, uint64_t b, uint64_t* out) {
  if (__builtin_mul_overflow(a, b, out) || *out > kMostBytes) {
    return Bad(fmt::format("{} = {} * {} bytes, more than 2^61", field, a, b));
  }
  return OkStatus();
}

// In a row-major slab the sections make up a granule. Other slabs have no sections.
Status CheckSections(const v1::Geometry& g) {
  if (g.slab_format() != v1::SLAB_FORMAT_ROW_MAJOR) {
    if (g.sections().empty()) return OkStatus();
    return Bad(fmt::format("{} sections, and slab_format is not row-major", g.sections_size()));
  }
  uint64_t left = g.granule_bytes();
  for (int i = 0; i < g.sections_size(); ++i) {
    const uint64_t lines = g.sections(i).lines(), bytes = g.sections(i).bytes();
    if (lines == 0 || bytes == 0 || bytes > left / lines) {
      return Bad(
          fmt::format("section {} of {} lines of {} bytes, {} of granule_bytes = {} are left "
                      "for it",
                      i, lines, bytes, left, g.granule_bytes()));
    }
    left -= lines * bytes;
  }
  if (left == 0) return OkStatus();
  return Bad(fmt::format("sections leave {} bytes of granule_bytes = {}", left, g.granule_bytes()));
}

}  // namespace

Result<GeometryView> GeometryView::Make(v1::Geometry geometry) {
  const v1::Geometry& g = geometry;
  // Far above any real model; keeps loops short, and an expert's bytes below 2^61. Products that
  // may be larger are checked individually below.
  constexpr uint32_t kMost = 1U << 20;
  if (g.layers() == 0 || g.layers() > 4096) return Bad(fmt::format("layers = {}", g.layers()));
  TANGRAM_RETURN_IF_ERROR(CheckLayers(g));
  if (g.hidden() == 0 || g.hidden() > kMost) return Bad(fmt::format("hidden = {}", g.hidden()));
  if (g.moe_inner() == 0 || g.moe_inner() > kMost)
    return Bad(fmt::format("moe_inner = {}", g.moe_inner()));
  if (g.experts() == 0 || g.experts() > 65536) return Bad(fmt::format("experts = {}", g.experts()));
  if (g.granule_rows() == 0 || g.moe_inner() % g.granule_rows() != 0) {
    return Bad(fmt::format("granule_rows = {} does not divide moe_inner = {}", g.granule_rows(),
                           g.moe_inner()));
  }
  if (g.granule_bytes() == 0 || g.granule_bytes() > (1ULL << 40) ||
      g.expert_tail_bytes() > (1ULL << 40)) {
    return Bad(fmt::format("granule_bytes = {}, expert_tail_bytes = {}", g.granule_bytes(),
                           g.expert_tail_bytes()));
  }
  TANGRAM_RETURN_IF_ERROR(CheckSections(g));
  if (g.query_heads() == 0 || g.kv_heads() == 0 || g.query_heads() % g.kv_heads() != 0) {
    return Bad(fmt::format("{} query heads are not a multiple of {} KV heads", g.query_heads(),
                           g.kv_heads()));
  }
  const uint64_t page = g.page_bytes();
  if (page < 256 || page > (1ULL << 40) || (page & (page - 1)) != 0)
    return Bad(fmt::format("page_bytes = {} is no power of two from 256 to 2^40", page));
  if (g.dense_bytes() > kMostBytes) return Bad(fmt::format("dense_bytes = {}", g.dense_bytes()));

  GeometryView view;
  view.granules_ = g.moe_inner() / g.granule_rows();
  uint64_t product = 0;
  view.ordinals_.assign(g.layers(), -1);
  for (int i = 0; i < g.moe_layers_size(); ++i) view.ordinals_[g.moe_layers(i)] = i;
  view.fingerprint_ = WireHash(g);
  view.proto_ = std::move(geometry);
  const uint64_t bytes = view.expert_bytes();
  const uint64_t paged = RoundUp(bytes, page);
  // Whole pages let an expert change place by remapping, if they waste at most 3 %.
  view.expert_pitch_ = (paged - bytes) * 100 <= bytes * 3 ? paged : RoundUp(bytes, kPieceAlignment);
  TANGRAM_RETURN_IF_ERROR(Multiply("bank_pitch = (experts + spare slots) * expert_pitch",
                                   uint64_t{view.experts()} + kSpareSlots, view.expert_pitch_,
                                   &product));
  view.bank_pitch_ = RoundUp(product, page);
  if (view.bank_pitch_ / page > kMostPagesOfABank) {
    return Bad(fmt::format("bank_pitch = {} bytes is {} pages of page_bytes = {}, more than 2^40",
                           view.bank_pitch_, view.bank_pitch_ / page, page));
  }
  TANGRAM_RETURN_IF_ERROR(Multiply("all banks = (moe_layers + spare banks) * bank_pitch",
                                   uint64_t{view.moe_layers()} + kMostSpareBanks, view.bank_pitch_,
                                   &product));
  return view;
}

}  // namespace tangram::layout
