#include "tests/gpu/virtual_ranks.h"

#include <cstring>
#include <span>

#include "tests/gpu/draw.h"

namespace tangram::gpu {
namespace {

using kernels::DispatchParameters;

constexpr uint64_t kLine = 256;
uint64_t Lines(uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

DispatchParameters ShapeOf(const VirtualShape& shape) {
  DispatchParameters p;
  p.hidden = shape.hidden;
  p.top_k = shape.top_k;
  p.experts = shape.experts;
  p.most_tokens = p.tokens = shape.tokens;
  p.x = shape.x;
  p.wire = shape.wire;
  p.sums = shape.sums;
  p.outputs = shape.outputs();
  p.most_locals = (shape.experts * shape.copies + shape.ranks - 1) / shape.ranks + 1;
  // Room for the rows of all ranks: half more than in an even distribution.
  p.capacity = uint64_t{shape.tokens} * shape.top_k * 3 / 2 + 64;
  p.timeout = 200'000'000;
  p.inbox = kernels::InboxOf(p, 0);
  return p;
}

// Offsets in data, for all ranks; the first one is 0.
struct Data {
  uint64_t inboxes = 0, turns = 0, x = 0, packed = 0, scales = 0, given = 0, y = 0, bytes = 0;
  uint64_t inbox = 0, of_packed = 0, of_scales = 0, of_given = 0, of_x = 0, of_y = 0, of_turns = 0;
};
Data DataOf(const VirtualShape& shape) {
  const DispatchParameters p = ShapeOf(shape);
  Data data;
  const auto take = [&](uint64_t each, uint64_t count, uint64_t* of) {
    *of = Lines(each);
    const uint64_t at = data.bytes;
    data.bytes += count * *of;
    return at;
  };
  const uint64_t ranks = shape.ranks;
  // Half an inbox, because there is one pair at a time.
  data.inboxes = take(kernels::InboxOf(p, 1).flags[0], ranks * ranks, &data.inbox);
  data.turns = take(uint64_t{shape.experts} * 4, ranks, &data.of_turns);
  data.x = take(shape.tokens * kernels::BytesOfRow(p.x, p.hidden), ranks, &data.of_x);
  data.packed =
      take(p.capacity * p.hidden * kernels::BytesOfNumber(p.wire), ranks, &data.of_packed);
  data.scales =
      take(p.capacity * kernels::ScalesOfRow(p.wire, p.hidden) * 4, ranks, &data.of_scales);
  data.given = take(p.capacity * kernels::BytesOfRow(p.outputs, p.hidden), ranks, &data.of_given);
  data.y = take(shape.tokens * kernels::BytesOfRow(p.sums, p.hidden), ranks, &data.of_y);
  return data;
}

template <typename T>
std::vector<std::byte> BytesOf(const std::vector<T>& items) {
  const auto bytes = std::as_bytes(std::span(items));
  return {bytes.begin(), bytes.end()};
}

// Expert e is on rank e % ranks, its replicas on the following ranks; each rank uses its own
// replica.
kernels::DispatchLayer LayerOf(const VirtualShape& shape, uint32_t rank,
                               const VirtualRanks::Append& append) {
  std::vector<uint32_t> first{0}, ranks_begin{0}, ranks;
  std::vector<int32_t> local, own;
  kernels::DispatchLayer layer;
  for (uint32_t e = 0; e < shape.experts; ++e) {
    own.push_back(-1);
    for (uint32_t c = 0; c < shape.copies; ++c) {
      const uint32_t at = (e + c) % shape.ranks;
      if (at == rank && shape.copies > 1) own.back() = static_cast<int32_t>(local.size());
      local.push_back(at == rank ? static_cast<int32_t>(layer.locals++) : -1);
      ranks.push_back(at);
      ranks_begin.push_back(static_cast<uint32_t>(ranks.size()));
    }
    first.push_back(static_cast<uint32_t>(local.size()));
  }
  layer.choices = static_cast<uint32_t>(local.size());
  layer.first = append(BytesOf(first));
  layer.ranks_begin = append(BytesOf(ranks_begin));
  layer.ranks = append(BytesOf(ranks));
  layer.own = append(BytesOf(own));
  layer.local = append(BytesOf(local));
  return layer;
}

}  // namespace

uint64_t VirtualRanks::DataBytes(const VirtualShape& shape) { return DataOf(shape).bytes; }

const std::vector<VirtualRanks::Phase>& VirtualRanks::Phases() {
  static const std::vector<Phase> phases{{{"dispatch_count", "dispatch_choose", "dispatch_ranks",
                                           "dispatch_slots", "dispatch_send", "dispatch_flag"},
                                          0},
                                         {{"dispatch_wait", "dispatch_totals", "dispatch_tally",
                                           "dispatch_offsets", "dispatch_place", "dispatch_pack"},
                                          0},
                                         {{"combine_send", "dispatch_flag"}, 1},
                                         {{"dispatch_wait", "combine_reduce"}, 1}};
  return phases;
}

VirtualRanks::VirtualRanks(const VirtualShape& shape, uint64_t base, const Append& append) {
  const Data data = DataOf(shape);
  x_at_ = data.x;
  x_bytes_ = shape.ranks * data.of_x;
  given_at_ = data.given;
  given_bytes_ = shape.ranks * data.of_given;
  y_at_ = data.y;
  y_bytes_ = shape.ranks * data.of_y;
  turns_at_ = data.turns;
  for (uint32_t r = 0; r < shape.ranks; ++r) {
    Draw draw(shape.seed + r);
    DispatchParameters p = ShapeOf(shape);
    DispatchParameters sized = p;
    (void)kernels::PutScratch(0, &sized);
    std::vector<std::byte> zeros(sized.packed);  // later parts are in data
    // A packed row that a kernel forgot also needs a valid source.
    const uint64_t somewhere = base + data.inboxes + p.inbox.rows[0];
    for (uint64_t i = 0; i < p.capacity; ++i)
      std::memcpy(&zeros[sized.from + i * 8], &somewhere, sizeof somewhere);
    (void)kernels::PutScratch(append(zeros), &p);
    std::vector<uint32_t> ids;
    std::vector<float> weights(uint64_t{shape.tokens} * shape.top_k, 0.5f);
    for (uint32_t token = 0; token < shape.tokens; ++token) {
      // As from a router: no expert twice in a row.
      const uint64_t start = draw.Below(shape.experts), step = 1 + draw.Below(3);
      for (uint32_t k = 0; k < shape.top_k; ++k)
        ids.push_back(static_cast<uint32_t>((start + k * step) % shape.experts));
    }
    p.ids = append(BytesOf(ids));
    p.weights = append(BytesOf(weights));
    kernels::DispatchTable table;
    table.epoch = 1;
    table.ranks = shape.ranks;
    table.self = r;
    table.layers = append(BytesOf(std::vector{LayerOf(shape, r, append)}));
    for (uint32_t s = 0; s < shape.ranks; ++s) {
      table.peers[s].in = base + data.inboxes + (r * shape.ranks + s) * data.inbox;
      table.peers[s].out = base + data.inboxes + (s * shape.ranks + r) * data.inbox;
    }
    p.table = append(BytesOf(std::vector{table}));
    p.turns = base + data.turns + r * data.of_turns;
    p.rows = base + data.x + r * data.of_x;
    p.packed = base + data.packed + r * data.of_packed;
    p.scales = base + data.scales + r * data.of_scales;
    p.given = base + data.given + r * data.of_given;
    p.y = base + data.y + r * data.of_y;
    ranks_.push_back(p);
  }
}

}  // namespace tangram::gpu
