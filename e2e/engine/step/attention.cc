#include "e2e/engine/step/attention.h"

#include <algorithm>
#include <string>

#include "e2e/engine/model/fixed.h"

namespace tangram::engine {
namespace {

// Page lists of the rows of several homes, for the KV heads that this rank holds.
class RowTables {
 public:
  RowTables(const StepContext& context, uint32_t layer) : context_(context), layer_(layer) {}

  Status Add(uint32_t home) {
    const kv::Heads held = context_.held.At(home, context_.rank(), layer_);
    const uint32_t count = kv::CountOf(held);
    for (const BatchItem& item : context_.batches[home].items) {
      std::vector<std::vector<uint32_t>> by_head(count);
      for (const uint32_t block : item.blocks) {
        uint32_t found = 0;
        for (const kv::Strip& strip : context_.pages.Find(home, block)) {
          if (layer_ < strip.layer || layer_ - strip.layer >= strip.layers) continue;
          by_head[strip.kv_head - held.first].push_back(strip.page + (layer_ - strip.layer));
          ++found;
        }
        if (found != count) {
          return {Code::kInternal, "block " + std::to_string(block) + " of home " +
                                       std::to_string(home) + " has no pages on rank " +
                                       std::to_string(context_.rank())};
        }
      }
      std::vector<const uint32_t*>& heads = heads_.emplace_back();
      for (std::vector<uint32_t>& list : by_head) {
        lists_.push_back(std::move(list));
        heads.push_back(lists_.back().data());  // moving a vector keeps its storage
      }
      for (uint32_t i = 0; i < item.count; ++i) {
        rows_.push_back({item.start + i, std::span<const uint32_t* const>(heads)});
      }
    }
    return OkStatus();
  }
  std::span<const model::AttentionRow> rows() const { return rows_; }

 private:
  const StepContext& context_;
  uint32_t layer_;
  std::vector<std::vector<uint32_t>> lists_;
  std::vector<std::vector<const uint32_t*>> heads_;
  std::vector<model::AttentionRow> rows_;
};

Status WrongSize(uint32_t rank, uint32_t layer, size_t got, size_t expected) {
  return {Code::kInternal, "rank " + std::to_string(rank) + " sent " + std::to_string(got) +
                               " bytes for the attention of layer " + std::to_string(layer) +
                               ", expected " + std::to_string(expected)};
}

}  // namespace

Status AttentionStage(StepContext& context, uint32_t layer, std::span<float> x) {
  const uint32_t me = context.rank();
  const size_t hidden = context.geometry.hidden;
  const tg_layer_map& map = context.maps.layers[layer];
  const tg_attention_group* group = nullptr;
  uint32_t position = 0;
  for (uint32_t g = 0; g < map.attention_groups; ++g) {
    for (uint32_t p = 0; p < map.attention[g].size; ++p) {
      if (map.attention[g].ranks[p] != me) continue;
      group = &map.attention[g];
      position = p;
    }
  }
  if (group == nullptr) return OkStatus();  // home of no request, holds no heads
  const std::span<const uint32_t> ranks(group->ranks, group->size);
  std::vector<uint32_t> first_row(group->size + 1, 0);
  for (uint32_t p = 0; p < group->size; ++p) {
    first_row[p + 1] = first_row[p] + context.batches[ranks[p]].Rows();
  }
  const size_t all_rows = first_row.back();
  if (all_rows == 0) return OkStatus();

  std::vector<float> mine(x.size());
  context.model.AttentionNorm(layer, x, mine);
  std::vector<float> n(all_rows * hidden);
  const auto rows_of = [&](uint32_t p) { return first_row[p + 1] - first_row[p]; };
  std::copy(mine.begin(), mine.end(), n.begin() + first_row[position] * hidden);
  std::vector<Bytes> send(context.comm.size()), recv;
  if (ranks.size() > 1) {
    const auto* raw = reinterpret_cast<const uint8_t*>(mine.data());
    for (const uint32_t rank : ranks) {
      if (rank != me) send[rank].assign(raw, raw + mine.size() * sizeof(float));
    }
    TANGRAM_RETURN_IF_ERROR(
        context.comm.Exchange(context.step, SequenceOf(layer, Stage::kRows), ranks, send, &recv));
    for (uint32_t p = 0; p < group->size; ++p) {
      if (ranks[p] == me) continue;
      const Bytes& rows = recv[ranks[p]];
      const size_t expected = rows_of(p) * hidden * sizeof(float);
      if (rows.size() != expected) return WrongSize(ranks[p], layer, rows.size(), expected);
      if (expected > 0) std::memcpy(n.data() + first_row[p] * hidden, rows.data(), expected);
    }
  }

  const uint32_t begin = group->query_head_bounds[position];
  const uint32_t end = group->query_head_bounds[position + 1];
  std::vector<int64_t> acc(all_rows * hidden, 0);
  if (begin < end) {
    RowTables tables(context, layer);
    for (const uint32_t home : ranks) TANGRAM_RETURN_IF_ERROR(tables.Add(home));
    TANGRAM_RETURN_IF_ERROR(
        context.model.AttentionPartial(layer, begin, end, n, tables.rows(), context.kv, acc));
  }

  const std::span<int64_t> own =
      std::span(acc).subspan(first_row[position] * hidden, rows_of(position) * hidden);
  if (ranks.size() > 1) {
    for (uint32_t p = 0; p < group->size; ++p) {
      if (ranks[p] == me) continue;
      const auto* raw = reinterpret_cast<const uint8_t*>(acc.data() + first_row[p] * hidden);
      send[ranks[p]].assign(raw, raw + rows_of(p) * hidden * sizeof(int64_t));
    }
    TANGRAM_RETURN_IF_ERROR(
        context.comm.Exchange(context.step, SequenceOf(layer, Stage::kHeads), ranks, send, &recv));
    std::vector<int64_t> part(own.size());
    for (const uint32_t rank : ranks) {
      if (rank == me) continue;
      const size_t expected = own.size_bytes();
      if (recv[rank].size() != expected) {
        return WrongSize(rank, layer, recv[rank].size(), expected);
      }
      if (expected > 0) std::memcpy(part.data(), recv[rank].data(), expected);
      TANGRAM_RETURN_IF_ERROR(model::AddFixed(part, own));
    }
  }
  model::AddToResidual(own, x);
  return OkStatus();
}

}  // namespace tangram::engine
