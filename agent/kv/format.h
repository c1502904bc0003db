// The format of an engine's KV in its region, in strides, and the byte moves of a plan in it.
//
// The row of K of (layer, block, head, position) begins at
//   offset + layer * layer_stride + block * block_stride + head * head_stride
//          + position * token_stride
// in the region, and that of V value_offset further. So one description covers pages by head
// (HND), by position (NHD), K and V in halves of a page, in separate regions, or one after the
// other, and latents (MLA: no V). Page numbers of the plan (plan.h) count heads, then blocks, then
// layers: (layer * blocks + block) * heads + head.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "agent/base/status.h"
#include "agent/kv/plan.h"

namespace tangram::kv {

enum class Element : uint32_t { kF32 = 1, kF16, kBf16, kFp8E4m3, kFp8E5m2 };

// Strides and offsets are in bytes.
struct Format {
  uint64_t offset = 0;  // of page 0 in the region
  // 1 layer and 1 head: a pool, in which a page may hold any head of any layer.
  uint32_t layers = 1, blocks = 0, heads = 1;
  uint32_t block_tokens = 0;
  Element element = Element::kF32;
  uint32_t key_width = 0;    // elements of a row of K, or of a latent
  uint32_t value_width = 0;  // of a row of V; 0: latents
  uint64_t layer_stride = 0, block_stride = 0, head_stride = 0;  // unused for a count of 1
  uint64_t token_stride = 0, value_offset = 0;
  // Not 0: the engine has its own order within a page (packed for its kernels, say). Whole pages of
  // this many bytes move, even if partly filled, and the two members above are 0.
  uint64_t whole_page_bytes = 0;

  uint64_t pages() const { return uint64_t{layers} * blocks * heads; }
  uint64_t page(uint32_t layer, uint32_t block, uint32_t head) const {
    return (uint64_t{layer} * blocks + block) * heads + head;
  }
};

// A pool of adjacent pages from the start of the region: K of all positions, then V.
Format PoolOf(const Shape& shape, Element element, uint32_t pages);
// The same for latents: head_token_bytes of the shape are those of one latent.
Format LatentPoolOf(const Shape& shape, Element element, uint32_t pages);

// kInvalid names the wrong member: rows or pages that overlap, or exceed the region; more pages
// than a plan can count.
Status CheckFormat(const Format& format, uint64_t region_bytes);

// `tokens` positions of each of `pages` pages of a rank (source_stride apart, from source_page on)
// into as many of mine. Strides are as those of strips (plan.h).
struct PageCopy {
  uint32_t source_rank = 0;  // old numbering
  uint32_t source_page = 0, source_stride = 1;
  uint32_t target_page = 0, target_stride = 1;
  uint32_t pages = 0;
  uint32_t tokens = 0;
};

struct ByteMove {
  uint32_t source_rank = 0;
  uint64_t source = 0, target = 0;  // offsets in the regions
  uint32_t length = 0;
  bool operator==(const ByteMove&) const = default;
};

// The format of an old rank; null: unknown.
using FormatOf = std::function<const Format*(uint32_t rank)>;

// Passes the bytes of all copies to `tell`, each once, in as few runs as the formats allow: heads,
// positions, layers and blocks that are adjacent on both sides are one. Formats are valid
// (CheckFormat). Time grows with the copies and the runs, memory with neither. kInvalid: a copy is
// not within the pages, or rows of the formats differ; discard all earlier runs then. The first
// error of `tell` ends it.
Status TellMoves(const FormatOf& sources, const Format& target, std::span<const PageCopy> copies,
                 const std::function<Status(const ByteMove&)>& tell);

}  // namespace tangram::kv
