// kv_format.h: agent/kv/format.h behind C structs.
#include "agent/client/include/tangram/kv_format.h"

#include <string>
#include <utility>
#include <vector>

#include "agent/client/abi.h"
#include "agent/client/arrays.h"
#include "agent/client/versioned.h"
#include "agent/kv/format.h"

namespace tangram {
namespace {

Result<kv::Format> ReadFormat(const tg_kv_format* format) {
  auto known = ReadKnown(format, TANGRAM_UP_TO(tg_kv_format, whole_page_bytes), "tg_kv_format");
  if (!known.ok()) return known.status();
  const tg_kv_format& in = *known;
  if (in.reserved != 0) {
    return Status{Code::kInvalid,
                  "tg_kv_format.reserved is " + std::to_string(in.reserved) + ", want 0"};
  }
  kv::Format out;
  out.offset = in.offset;
  out.layers = in.layers;
  out.blocks = in.blocks;
  out.heads = in.heads;
  out.block_tokens = in.block_tokens;
  out.element = static_cast<kv::Element>(in.element);
  out.key_width = in.key_width;
  out.value_width = in.value_width;
  out.layer_stride = in.layer_stride;
  out.block_stride = in.block_stride;
  out.head_stride = in.head_stride;
  out.token_stride = in.token_stride;
  out.value_offset = in.value_offset;
  out.whole_page_bytes = in.whole_page_bytes;
  return out;
}

// The regions of other ranks are not known here: their agents reject ranges outside them.
Result<kv::Format> ReadValid(const tg_kv_format* format) {
  auto out = ReadFormat(format);
  if (out.ok()) TANGRAM_RETURN_IF_ERROR(kv::CheckFormat(*out, UINT64_MAX));
  return out;
}

// The memory that tg_kv_byte_moves points into.
struct Moves : tg_kv_byte_moves {
  std::vector<tg_kv_move> list;
};

Result<std::vector<tg_kv_move>> MovesOf(const tg_kv_format* const* sources, size_t source_count,
                                        const tg_kv_format* target,
                                        const Array<tg_kv_page_copy>& copies) {
  auto mine = ReadValid(target);
  if (!mine.ok()) return mine.status();
  if (source_count > 0 && sources == nullptr) {
    return Status{Code::kInvalid, "sources is null, want " + std::to_string(source_count)};
  }
  std::vector<kv::Format> theirs(source_count);
  for (size_t r = 0; r < source_count; ++r) {
    if (sources[r] == nullptr) continue;
    auto format = ReadValid(sources[r]);
    if (!format.ok()) return format.status();
    theirs[r] = std::move(*format);
  }
  std::vector<kv::PageCopy> pages;
  pages.reserve(copies.count());
  for (size_t i = 0; i < copies.count(); ++i) {
    const tg_kv_page_copy& c = copies[i];
    pages.push_back({c.source_rank, c.source_page, c.source_stride, c.target_page, c.target_stride,
                     c.pages, c.tokens});
  }
  const auto source_of = [&](uint32_t rank) -> const kv::Format* {
    return rank < source_count && sources[rank] != nullptr ? &theirs[rank] : nullptr;
  };
  std::vector<tg_kv_move> out;
  const auto tell = [&](const kv::ByteMove& move) {
    out.push_back({move.source_rank, move.source, move.target, move.length});
    return OkStatus();
  };
  TANGRAM_RETURN_IF_ERROR(kv::TellMoves(source_of, *mine, pages, tell));
  return out;
}

}  // namespace
}  // namespace tangram

extern "C" {

tg_code tg_kv_format_check(const tg_kv_format* format, uint64_t kv_bytes, tg_error* error) {
  return tangram::abi::Guarded(error, [&] {
    auto read = tangram::ReadFormat(format);
    if (!read.ok()) return tangram::abi::Done(read.status(), error);
    return tangram::abi::Done(tangram::kv::CheckFormat(*read, kv_bytes), error);
  });
}

tg_code tg_kv_byte_moves_of(const tg_kv_format* const* sources, size_t source_count,
                            const tg_kv_format* target, const tg_kv_page_copy* copies, size_t count,
                            size_t copy_size, const tg_kv_byte_moves** out, tg_error* error) {
  using tangram::abi::Done;
  using tangram::abi::Fail;
  return tangram::abi::Guarded(error, [&] {
    if (out == nullptr) return Fail(error, TG_INVALID, "out is null");
    auto array = tangram::Array<tg_kv_page_copy>::Of(copies, count, copy_size, "copies");
    if (!array.ok()) return Done(array.status(), error);
    auto list = tangram::MovesOf(sources, source_count, target, *array);
    if (!list.ok()) return Done(list.status(), error);
    auto* moves = new tangram::Moves{};
    moves->list = std::move(*list);
    moves->struct_size = sizeof(tg_kv_byte_moves);
    moves->moves = moves->list.size();
    moves->move = moves->list.data();
    moves->move_size = sizeof(tg_kv_move);
    for (const tg_kv_move& move : moves->list) moves->bytes += move.length;
    *out = moves;
    return Fail(error, TG_OK, "");
  });
}

void tg_kv_byte_moves_free(const tg_kv_byte_moves* moves) {
  delete static_cast<const tangram::Moves*>(moves);
}

}  // extern "C"
