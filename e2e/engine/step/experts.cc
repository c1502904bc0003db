#include "e2e/engine/step/experts.h"

#include <map>
#include <numeric>
#include <string>

#include "e2e/engine/model/fixed.h"

namespace tangram::engine {

void ExpertStage::Dispatch(StepContext& context, const tg_layer_map& map, std::span<const float> n,
                           std::vector<Outgoing>* outgoing) {
  const size_t hidden = geometry_.hidden, top_k = context.model.config().top_k;
  const size_t rows = n.size() / hidden;
  std::vector<uint32_t> experts(rows * top_k);
  std::vector<float> weights(rows * top_k);
  context.model.Route(map.layer, n, experts, weights);
  turns_.resize(uint64_t{geometry_.moe_layers} * geometry_.experts, 0);
  const std::span turns = std::span(turns_).subspan(
      static_cast<uint64_t>(map.moe_ordinal) * geometry_.experts, geometry_.experts);
  std::vector<uint64_t> counts(geometry_.experts, 0);
  for (uint32_t row = 0; row < rows; ++row) {
    for (size_t k = 0; k < top_k; ++k) {
      const uint32_t e = experts[row * top_k + k];
      ++counts[e];
      const tg_expert& expert = map.experts[e];
      const uint32_t alternative = turns[e]++ % expert.replicas;
      for (uint32_t s = 0; s < expert.shards; ++s) {
        const uint32_t piece = alternative * expert.shards + s;
        Outgoing& to = (*outgoing)[expert.pieces[piece].rank];
        if (expert.pieces[piece].granule_count == 0) continue;
        if (to.rows.empty() || to.rows.back() != row) to.rows.push_back(row);
        to.entries.push_back(
            {static_cast<uint32_t>(to.rows.size() - 1), e, piece, weights[row * top_k + k]});
      }
    }
  }
  for (uint32_t e = 0; e < counts.size(); ++e) {
    if (counts[e] > 0) {
      context.world.Count(static_cast<uint32_t>(map.moe_ordinal), e, counts[e]);
    }
  }
}

Status ExpertStage::Compute(StepContext& context, const tg_layer_map& map,
                            const std::vector<Bytes>& asked, std::vector<Bytes>* replies) {
  const size_t hidden = geometry_.hidden;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<model::ExpertRow>> by_piece;
  for (uint32_t r = 0; r < asked.size(); ++r) {
    (*replies)[r].clear();
    if (asked[r].empty()) continue;
    const auto bad = [&](const std::string& what) {
      return Status{Code::kInternal, "experts of layer " + std::to_string(map.layer) +
                                         ", asked by rank " + std::to_string(r) + ": " + what};
    };
    const Result<ExpertMessage> message = ExpertMessage::Decode(asked[r], hidden);
    if (!message.ok()) return bad(message.status().message());
    (*replies)[r].resize(message->rows * hidden * sizeof(int64_t), 0);
    for (const ExpertEntry& entry : message->entries) {
      if (entry.expert >= geometry_.experts) return bad("no such expert");
      const tg_expert& expert = map.experts[entry.expert];
      if (entry.piece >= expert.replicas * expert.shards ||
          expert.pieces[entry.piece].rank != context.rank() ||
          expert.pieces[entry.piece].data == nullptr) {
        return bad("piece " + std::to_string(entry.piece) + " of expert " +
                   std::to_string(entry.expert) + " is not on rank " +
                   std::to_string(context.rank()));
      }
      by_piece[{entry.expert, entry.piece}].push_back(
          {message->x + entry.row * hidden, entry.weight,
           reinterpret_cast<int64_t*>((*replies)[r].data()) + entry.row * hidden});
    }
  }
  std::vector<Reader::Range> ranges;
  for (const auto& [name, rows] : by_piece) {
    const tg_piece& piece = map.experts[name.first].pieces[name.second];
    ranges.push_back({piece.data, piece.granule_count * geometry_.granule_bytes});
  }
  const Result<std::vector<const void*>> bytes = pieces_->Read(ranges);
  if (!bytes.ok()) return bytes.status();
  auto data = bytes->begin();
  for (const auto& [name, rows] : by_piece) {
    context.world.CountExecuted(static_cast<uint32_t>(map.moe_ordinal), name.first, rows.size());
    const tg_piece& piece = map.experts[name.first].pieces[name.second];
    model::ExpertRun run;
    run.data = *data++;
    run.granules = piece.granule_count;
    executed_ += static_cast<uint32_t>(rows.size()) * piece.granule_count;
    run.granule_rows = geometry_.granule_rows;
    run.granule_bytes = geometry_.granule_bytes;
    run.dtype = static_cast<model::DType>(geometry_.dtype);
    run.row_major = geometry_.slab_format == TG_SLAB_ROW_MAJOR;
    TANGRAM_RETURN_IF_ERROR(context.model.ExpertPartial(run, rows));
  }
  return OkStatus();
}

Status ExpertStage::Run(StepContext& context, uint32_t layer, std::span<float> x) {
  const tg_layer_map& map = context.maps.layers[layer];
  const size_t hidden = geometry_.hidden;
  std::vector<float> n(x.size());
  context.model.MlpNorm(layer, x, n);
  std::vector<Outgoing> outgoing(context.comm.size());
  Dispatch(context, map, n, &outgoing);

  std::vector<Bytes> send(context.comm.size()), recv;
  for (uint32_t r = 0; r < outgoing.size(); ++r) {
    if (outgoing[r].rows.empty()) continue;
    send[r] = ExpertMessage::Encode(outgoing[r].rows, n, hidden, outgoing[r].entries);
  }
  std::vector<uint32_t> ranks(context.comm.size());
  std::iota(ranks.begin(), ranks.end(), 0u);
  TANGRAM_RETURN_IF_ERROR(
      context.comm.Exchange(context.step, SequenceOf(layer, Stage::kDispatch), ranks, send, &recv));
  std::vector<Bytes> replies(context.comm.size());
  TANGRAM_RETURN_IF_ERROR(Compute(context, map, recv, &replies));
  TANGRAM_RETURN_IF_ERROR(context.comm.Exchange(context.step, SequenceOf(layer, Stage::kCombine),
                                                ranks, replies, &recv));

  std::vector<int64_t> acc(x.size(), 0);
  for (uint32_t r = 0; r < outgoing.size(); ++r) {
    const size_t expected = outgoing[r].rows.size() * hidden * sizeof(int64_t);
    if (recv[r].size() != expected) {
      return {Code::kInternal, "rank " + std::to_string(r) + " answered " +
                                   std::to_string(recv[r].size()) + " bytes for layer " +
                                   std::to_string(layer) + ", expected " +
                                   std::to_string(expected)};
    }
    const auto* parts = reinterpret_cast<const int64_t*>(recv[r].data());
    for (size_t i = 0; i < outgoing[r].rows.size(); ++i) {
      TANGRAM_RETURN_IF_ERROR(
          model::AddFixed({parts + i * hidden, hidden},
                          std::span(acc).subspan(outgoing[r].rows[i] * hidden, hidden)));
    }
  }
  model::AddToResidual(acc, x);
  return OkStatus();
}

}  // namespace tangram::engine
