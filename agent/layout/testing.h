// Simple valid layouts for tests.
#pragma once

#include <random>
#include <set>
#include <string>
#include <vector>

#include "agent/layout/layout.h"

namespace tangram::layout::testing {

inline v1::Geometry SmallGeometry(uint32_t layers, uint32_t experts, uint32_t granules) {
  v1::Geometry g;
  g.set_model("test");
  g.set_layers(layers);
  for (uint32_t l = 0; l < layers; ++l) g.add_moe_layers(l);
  g.set_hidden(16);
  g.set_moe_inner(granules * 8);
  g.set_experts(experts);
  g.set_top_k(2);
  g.set_query_heads(12);
  g.set_kv_heads(4);
  g.set_head_dim(8);
  g.set_granule_rows(8);
  g.set_granule_bytes(3 * 8 * 16 * 2);
  g.set_dtype(v1::DTYPE_BF16);
  g.set_slab_format(v1::SLAB_FORMAT_GRANULE_MAJOR);
  g.set_page_bytes(4096);
  g.set_dense_bytes(10000);
  g.set_kv_head_token_bytes(64);
  return g;
}

// The same with row-major slabs.
inline v1::Geometry RowMajor(v1::Geometry g) {
  g.set_slab_format(v1::SLAB_FORMAT_ROW_MAJOR);
  const uint64_t element = 2;
  for (const uint64_t lines : {uint64_t{1}, uint64_t{1}, uint64_t{g.hidden()}}) {
    v1::Section& section = *g.add_sections();
    section.set_lines(lines);
    section.set_bytes(g.granule_rows() * g.hidden() * element / lines);
  }
  return g;
}

// The distinct pages that the pieces touch, counted one by one; key = bank << 40 | page.
inline std::set<uint64_t> PagesOf(const std::vector<PlacedPiece>& pieces,
                                  const GeometryView& geometry) {
  std::set<uint64_t> pages;
  for (const PlacedPiece& piece : pieces) {
    const uint64_t last = (piece.offset + piece.bytes - 1) / geometry.page_bytes();
    for (uint64_t page = piece.offset / geometry.page_bytes(); page <= last; ++page) {
      pages.insert(uint64_t{piece.bank} << 40 | page);
    }
  }
  return pages;
}

// P ranks, per layer a random g of {1, P}; g = 1 deals experts in random order.
inline v1::Layout RandomLayout(const GeometryView& geometry, uint32_t ranks, uint32_t spare_banks,
                               std::mt19937_64& random) {
  v1::Layout out;
  out.set_world("test");
  out.set_epoch(1);
  out.set_geometry_fingerprint(geometry.fingerprint());
  out.set_banks(geometry.moe_layers() + spare_banks);
  for (uint32_t r = 0; r < ranks; ++r) {
    out.add_members()->set_id("pod-" + std::to_string(r) + "/0/1");
    out.mutable_dense()->add_ranks(r);
  }
  const int32_t offset = random() % 2 == 0 ? 0 : static_cast<int32_t>(spare_banks);
  for (uint32_t l = 0; l < geometry.proto().layers(); ++l) {
    v1::LayerLayout* layer = out.add_layers();
    layer->set_layer(l);
    layer->set_bank_offset(offset);
    const bool tensor = ranks > 1 && ranks <= geometry.granules() && random() % 2 == 0;
    layer->set_expert_group_size(tensor ? ranks : 1);
    std::vector<uint32_t> experts(geometry.experts());
    for (uint32_t e = 0; e < experts.size(); ++e) experts[e] = e;
    std::shuffle(experts.begin(), experts.end(), random);
    if (tensor) {
      v1::ExpertGroup* group = layer->add_experts();
      for (uint32_t r = 0; r < ranks; ++r) group->add_ranks(r);
      for (const uint32_t e : experts) group->add_slots(e + 1);
    } else {
      for (uint32_t r = 0; r < ranks; ++r) {
        v1::ExpertGroup* group = layer->add_experts();
        group->add_ranks(r);
        for (uint32_t i = r; i < experts.size(); i += ranks) group->add_slots(experts[i] + 1);
      }
    }
    layer->set_attention_group_size(1);
    for (uint32_t r = 0; r < ranks; ++r) {
      v1::AttentionGroup* group = layer->add_attention();
      group->add_ranks(r);
      group->add_query_head_bounds(0);
      group->add_query_head_bounds(geometry.proto().query_heads());
    }
  }
  return out;
}

}  // namespace tangram::layout::testing
