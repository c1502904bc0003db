#include "kernels/dispatch_layout.h"

#include <algorithm>

namespace tangram::kernels {
namespace {

constexpr uint64_t kLine = 128;
uint64_t Lines(uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }
uint64_t Stride(uint64_t bytes) { return (bytes + 15) / 16 * 16; }

// Assigns offsets, one after another.
class Places {
 public:
  explicit Places(uint64_t at) : at_(at) {}
  uint64_t Take(uint64_t bytes) {
    const uint64_t out = at_;
    at_ += Lines(bytes);
    return out;
  }
  uint64_t at() const { return at_; }

 private:
  uint64_t at_;
};

uint64_t HalfOf(const DispatchParameters& p, Places* places, DispatchInbox* out) {
  const uint64_t rows = p.most_tokens, entries = rows * p.top_k * 4;
  out->stride[0] = Stride(BytesOfRow(p.wire, p.hidden));
  out->stride[1] = Stride(BytesOfRow(p.sums, p.hidden));
  // All data of a lane is one range: for ranks that do not reach each other's memory it is one
  // message.
  out->flags[0] = places->Take(kLine);
  out->total = out->flags[0] + 8;
  out->choices = places->Take(entries);
  out->weights = places->Take(entries);
  out->rows[0] = places->Take(rows * out->stride[0]);
  out->flags[1] = places->Take(kLine);
  out->lacking = places->Take(rows * 4);
  out->unfit = places->Take(rows * 8);
  out->rows[1] = places->Take(rows * out->stride[1]);
  return places->at();
}

}  // namespace

uint64_t InboxBytes(const DispatchParameters& shape) {
  Places places(kLine);
  DispatchInbox half;
  HalfOf(shape, &places, &half);
  return HalfOf(shape, &places, &half);
}

DispatchInbox InboxOf(const DispatchParameters& shape, uint32_t half) {
  Places places(kLine);
  DispatchInbox out;
  for (uint32_t h = 0; h <= half; ++h) HalfOf(shape, &places, &out);
  out.beat = 0;
  return out;
}

uint64_t PutScratch(uint64_t at, DispatchParameters* p) {
  Places places(at);
  const uint64_t rows = p->most_tokens, entries = rows * p->top_k, peers = kMostPeers;
  const uint64_t chunks = ChunksOf(p->most_tokens);
  p->pair = places.Take(sizeof(DispatchPair));
  p->wait = places.Take(sizeof(DispatchWait));
  p->sent = places.Take(peers * 4);
  p->came = places.Take(peers * 4);
  p->summed = places.Take(peers * 4);
  p->choices = places.Take(entries * 4);
  p->counts = places.Take(chunks * p->experts * 4);
  p->rank_counts = places.Take(chunks * peers * 4);
  p->rows_to = places.Take(peers * rows * 4);
  p->slot_of = places.Take(rows * peers * 4);
  p->routed = places.Take(uint64_t{p->experts} * 4);
  p->missing = places.Take(rows * 4);
  p->totals = places.Take(peers * chunks * 4);
  p->tally = places.Take(peers * chunks * p->most_locals * 4);
  p->local_counts = places.Take(uint64_t{p->most_locals} * 4);
  p->local_offsets = places.Take((uint64_t{p->most_locals} + 1) * 4);
  p->place = places.Take(peers * entries * 4);
  p->from = places.Take(p->capacity * 8);
  p->packed = places.Take(p->capacity * p->hidden * BytesOfNumber(p->wire));
  p->scales = places.Take(p->capacity * ScalesOfRow(p->wire, p->hidden) * 4);
  return places.at() - at;
}

Launch DispatchLaunch(std::string_view kernel, const DispatchParameters& p, uint32_t most_blocks) {
  const auto of = [&](uint64_t units, uint64_t per_block, uint32_t threads) {
    const uint64_t blocks = (units + per_block - 1) / per_block;
    return Launch{static_cast<uint32_t>(std::clamp<uint64_t>(blocks, 1, std::max(most_blocks, 1u))),
                  threads};
  };
  constexpr uint32_t kThreads = 256;
  constexpr uint64_t kTile = 64 << 10;  // bytes
  if (kernel == "dispatch_flag") return {1, kMostPeers};
  if (kernel == "dispatch_wait") return {1, 32};
  if (kernel == "dispatch_send" || kernel == "dispatch_pack" || kernel == "combine_send" ||
      kernel == "combine_reduce")
    return of(uint64_t{p.most_tokens} * p.top_k * BytesOfRow(p.x, p.hidden), kTile, kMostThreads);
  if (kernel == "dispatch_count" || kernel == "dispatch_choose")
    return of(uint64_t{ChunksOf(p.tokens)} * p.experts, kThreads, kThreads);
  if (kernel == "dispatch_ranks" || kernel == "dispatch_slots")
    return of(uint64_t{ChunksOf(p.tokens)} * kMostPeers + p.experts, kThreads, kThreads);
  return of(uint64_t{kMostPeers} * ChunksOf(p.most_tokens) * p.most_locals, kThreads, kThreads);
}

}  // namespace tangram::kernels
