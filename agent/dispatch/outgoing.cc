// Outgoing data of a pair: rows, and the partial sums of received rows.
#include <algorithm>
#include <array>
#include <cstring>

#include "agent/dispatch/exchange.h"

namespace tangram::dispatch {
namespace {

SlotHead HeadFor(const Format& format, Lane lane, uint64_t epoch, uint64_t pair,
                 const Progress& sent, const Cut& cut) {
  SlotHead head;
  head.lane = static_cast<uint32_t>(lane);
  head.epoch = epoch;
  head.pair = pair;
  head.total = sent.total;
  head.metas = cut.metas;
  head.rows = cut.rows;
  head.top_k = format.top_k;
  head.stride = static_cast<uint32_t>(format.stride(lane));
  return head;
}

}  // namespace

void Exchange::Fill(Pair& pair, Lane lane) {
  const uint32_t ranks = links_->ranks(), self = links_->rank();
  // Each rank begins with a different destination.
  for (uint32_t i = 1; i < ranks; ++i) {
    const uint32_t rank = (self + i) % ranks;
    Link* const link = links_->at(rank);
    if (!InPart(pair, rank) || link == nullptr) continue;
    if (lane == Lane::kDispatch) {
      if (!pair.sent[rank].complete()) FillDispatch(pair, rank, *link);
    } else if (!pair.back[rank].sent.complete()) {
      FillCombine(pair, rank, *link);
    }
  }
}

bool Exchange::AllSent(const Pair& pair, Lane lane) const {
  for (uint32_t r = 0; r < links_->ranks(); ++r) {
    if (r == links_->rank() || !InPart(pair, r)) continue;
    const Progress& sent = lane == Lane::kDispatch ? pair.sent[r] : pair.back[r].sent;
    if (!sent.complete()) return false;
  }
  return true;
}

void Exchange::FillDispatch(Pair& pair, uint32_t rank, Link& link) {
  const Outgoing& to = pair.plan.to[rank];
  Progress& sent = pair.sent[rank];
  const size_t top_k = format_.top_k, meta = format_.meta_bytes(Lane::kDispatch);
  const size_t stride = format_.stride(Lane::kDispatch);
  const size_t x_bytes = RowBytes(format_.x, format_.hidden);
  while (!sent.complete()) {
    const size_t want = RowsAt(sent.total - sent.metas, meta) + (sent.total - sent.rows) * stride;
    const std::span<uint8_t> room = link.Room(Lane::kDispatch, want);
    if (room.empty()) return;
    const Cut cut = CutFor(format_, Lane::kDispatch, sent, room.size());
    const SlotHead head = HeadFor(format_, Lane::kDispatch, epoch_, pair.number, sent, cut);
    std::memcpy(room.data(), &head, sizeof head);
    uint8_t* at = room.data() + MetasAt();
    for (uint32_t i = sent.metas; i < sent.metas + cut.metas; ++i, at += meta) {
      std::memcpy(at, to.choices.data() + i * top_k, top_k * sizeof(int32_t));
      std::memcpy(at + top_k * sizeof(int32_t), pair.rows.weights + to.rows[i] * top_k,
                  top_k * sizeof(float));
    }
    at = room.data() + RowsAt(cut.metas, meta);
    for (uint32_t i = sent.rows; i < sent.rows + cut.rows; ++i, at += stride)
      Convert(format_.x, static_cast<const uint8_t*>(pair.rows.x) + to.rows[i] * x_bytes,
              format_.hidden, format_.wire, at);
    link.Publish(Lane::kDispatch, cut.bytes);
    wire_bytes_[0] += cut.bytes;
    sent.begun = true;
    sent.metas += cut.metas;
    sent.rows += cut.rows;
    ++moved_[rank];
  }
}

std::span<const Weighted> Exchange::OutputsOf(const Pair& pair, uint32_t rank, uint32_t i,
                                              std::span<Weighted> into, uint32_t* lacking) const {
  const Incoming& in = pair.in[rank];
  const size_t top_k = format_.top_k, bytes = RowBytes(format_.outputs(), format_.hidden);
  size_t count = 0;
  *lacking = 0;
  for (size_t k = 0; k < top_k; ++k) {
    if (in.choices[i * top_k + k] == kNone) continue;
    const int64_t at = in.at[i * top_k + k];
    if (at < 0) {
      *lacking |= 1u << k;
    } else {
      into[count++] = {static_cast<const uint8_t*>(pair.given) + static_cast<size_t>(at) * bytes,
                       in.weights[i * top_k + k]};
    }
  }
  return into.first(count);
}

uint32_t Exchange::PartialOf(Pair& pair, uint32_t rank, uint32_t i, void* out) {
  const Incoming& in = pair.in[rank];
  if (options_.by_rows) {
    const size_t bytes = RowBytes(format_.sums, format_.hidden);
    std::memcpy(out, static_cast<const uint8_t*>(pair.given) + (in.first + i) * bytes, bytes);
    return 0;
  }
  std::array<Weighted, Format::kMostTopK> here, there;
  uint32_t lacking = 0, unused = 0;
  const std::span rows = OutputsOf(pair, rank, i, here, &lacking);
  std::span<const Weighted> next;
  if (i + 1 < in.came.total) next = OutputsOf(pair, rank, i + 1, there, &unused);
  // A sum that overflows fixed point lacks all of its choices.
  if (!Partial(format_.outputs(), rows, format_.hidden, format_.sums, out, next))
    for (size_t k = 0; k < format_.top_k; ++k) lacking |= 1u << k;
  return lacking;
}

void Exchange::FillCombine(Pair& pair, uint32_t rank, Link& link) {
  Progress& sent = pair.back[rank].sent;
  const size_t meta = format_.meta_bytes(Lane::kCombine), stride = format_.stride(Lane::kCombine);
  while (!sent.complete()) {
    const size_t left = sent.total - sent.rows;
    const std::span<uint8_t> room = link.Room(Lane::kCombine, RowsAt(left, meta) + left * stride);
    if (room.empty()) return;
    const Cut cut = CutFor(format_, Lane::kCombine, sent, room.size());
    const SlotHead head = HeadFor(format_, Lane::kCombine, epoch_, pair.number, sent, cut);
    std::memcpy(room.data(), &head, sizeof head);
    uint8_t* told = room.data() + MetasAt();
    uint8_t* row = room.data() + RowsAt(cut.metas, meta);
    for (uint32_t i = sent.rows; i < sent.rows + cut.rows; ++i, told += meta, row += stride) {
      const uint32_t lacking = PartialOf(pair, rank, i, row);
      std::memcpy(told, &lacking, sizeof lacking);
    }
    link.Publish(Lane::kCombine, cut.bytes);
    wire_bytes_[1] += cut.bytes;
    sent.begun = true;
    sent.metas += cut.metas;
    sent.rows += cut.rows;
    ++moved_[rank];
  }
}

}  // namespace tangram::dispatch
