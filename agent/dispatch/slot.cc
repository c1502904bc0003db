#include "agent/dispatch/slot.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace tangram::dispatch {
namespace {

bool IsIn(Element element, std::initializer_list<Element> allowed) {
  return std::ranges::find(allowed, element) != allowed.end();
}

}  // namespace

Status Format::Check() const {
  const auto bad = [](const std::string& what) {
    return Status{Code::kInvalid, "format of rows: " + what};
  };
  if (hidden == 0 || hidden > 1u << 20)
    return bad("hidden is " + std::to_string(hidden) + ": 1 to 1048576");
  if (top_k == 0 || top_k > kMostTopK)
    return bad("top_k is " + std::to_string(top_k) + ": 1 to " + std::to_string(kMostTopK));
  if (experts == 0) return bad("no experts");
  if (!IsIn(x, {Element::kF32, Element::kBf16}))
    return bad(std::string("x is ") + NameOf(x) + ": F32 or BF16");
  if (wire != x && wire != Element::kFp8)
    return bad(std::string("rows travel as ") + NameOf(wire) + ": as x (" + NameOf(x) + ") or FP8");
  if (!IsIn(sums, {Element::kF32, Element::kBf16, Element::kFixed}))
    return bad(std::string("sums are ") + NameOf(sums) + ": F32, BF16 or fixed point");
  return OkStatus();
}

size_t Format::stride(Lane lane) const {
  return (RowBytes(lane == Lane::kDispatch ? wire : sums, hidden) + 7) / 8 * 8;
}

size_t Format::meta_bytes(Lane lane) const {
  return lane == Lane::kDispatch ? top_k * (sizeof(int32_t) + sizeof(float)) : sizeof(uint32_t);
}

size_t LeastSlot(const Format& format) {
  return std::max(WholeSlot(format, Lane::kDispatch, 1), WholeSlot(format, Lane::kCombine, 1));
}

size_t WholeSlot(const Format& format, Lane lane, uint64_t rows) {
  return RowsAt(rows, format.meta_bytes(lane)) + rows * format.stride(lane);
}

Cut CutFor(const Format& format, Lane lane, const Progress& sent, size_t room) {
  const size_t meta = format.meta_bytes(lane), stride = format.stride(lane);
  if (room < sizeof(SlotHead)) return {};
  Cut cut;
  cut.metas = static_cast<uint32_t>(
      std::min<size_t>(sent.total - sent.metas, (room - sizeof(SlotHead)) / meta));
  if (sent.metas + cut.metas == sent.total || lane == Lane::kCombine) {
    // In combine, a sum and its metadata must be in one slot.
    if (lane == Lane::kCombine) {
      while (cut.metas > 0 && RowsAt(cut.metas, meta) + cut.metas * stride > room) {
        const size_t over = RowsAt(cut.metas, meta) + cut.metas * stride - room;
        cut.metas -=
            static_cast<uint32_t>(std::clamp<size_t>(over / (stride + meta), 1, cut.metas));
      }
      cut.rows = cut.metas;
    } else if (RowsAt(cut.metas, meta) <= room) {
      cut.rows = static_cast<uint32_t>(
          std::min<size_t>(sent.total - sent.rows, (room - RowsAt(cut.metas, meta)) / stride));
    }
  }
  if (cut.metas == 0 && cut.rows == 0 && sent.total > 0) return {};
  cut.bytes = cut.rows == 0 ? sizeof(SlotHead) + cut.metas * meta
                            : RowsAt(cut.metas, meta) + cut.rows * stride;
  return cut;
}

Result<SlotHead> HeadOf(std::span<const uint8_t> slot) {
  SlotHead head;
  if (slot.size() < sizeof head)
    return Status{Code::kInternal, "a slot of " + std::to_string(slot.size()) + " bytes"};
  std::memcpy(&head, slot.data(), sizeof head);
  if (head.magic != SlotHead::kMagic || head.lane >= kLanes)
    return Status{Code::kInternal, "what came is no slot"};
  return head;
}

Status Follows(const Format& format, const SlotHead& head, size_t bytes, const Progress& came) {
  const auto lane = static_cast<Lane>(head.lane);
  const auto bad = [&](const std::string& what) {
    return Status{Code::kInternal, "a slot of pair " + std::to_string(head.pair) + ": " + what};
  };
  const auto of = [](uint64_t a, uint64_t b) {
    return std::to_string(a) + " of " + std::to_string(b);
  };
  if (head.top_k != format.top_k || head.stride != format.stride(lane))
    return bad("rows of " + std::to_string(head.stride) + " bytes with " +
               std::to_string(head.top_k) + " experts each; here they have " +
               std::to_string(format.stride(lane)) + " and " + std::to_string(format.top_k));
  if (came.begun && head.total != came.total)
    return bad("it is of " + std::to_string(head.total) + " rows, and before of " +
               std::to_string(came.total));
  if (format.most_tokens != 0 && head.total > format.most_tokens)
    return bad(std::to_string(head.total) + " rows, and the most are " +
               std::to_string(format.most_tokens));
  if (head.metas > head.total - came.metas)
    return bad("it announces " + of(uint64_t{came.metas} + head.metas, head.total) + " rows");
  if (head.rows > came.metas + head.metas - came.rows)
    return bad("it has rows that were not announced: " +
               of(uint64_t{came.rows} + head.rows, uint64_t{came.metas} + head.metas));
  // Rows have no place before all metadata is known: they would be waited for forever.
  if (lane == Lane::kDispatch && head.rows > 0 && came.metas + head.metas != head.total)
    return bad("it has rows before all are announced: " +
               of(uint64_t{came.metas} + head.metas, head.total));
  const size_t meta = format.meta_bytes(lane);
  const size_t size = head.rows == 0
                          ? sizeof(SlotHead) + uint64_t{head.metas} * meta
                          : RowsAt(head.metas, meta) + uint64_t{head.rows} * format.stride(lane);
  if (size != bytes) return bad("it has " + of(bytes, size) + " bytes");
  return OkStatus();
}

}  // namespace tangram::dispatch
