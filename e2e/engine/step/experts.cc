#include "e2e/engine/step/experts.h"

#include "e2e/engine/model/fixed.h"

namespace tangram::engine {

Result<std::vector<int64_t>> ExpertStage::Compute(StepContext& context,
                                                  const dispatch::LayerRoutes& layer,
                                                  const dispatch::Arrived& arrived) {
  const size_t hidden = geometry_.hidden, top_k = geometry_.top_k;
  std::vector<int64_t> partials(arrived.rows * hidden, 0);
  std::vector<std::vector<model::ExpertRow>> by_piece(layer.pieces.size());
  for (size_t i = 0; i < arrived.choices.size(); ++i) {
    if (arrived.choices[i] == dispatch::kNone) continue;
    const auto choice = static_cast<uint32_t>(arrived.choices[i]);
    const size_t row = i / top_k;
    for (uint32_t p = layer.pieces_begin[choice]; p < layer.pieces_begin[choice + 1]; ++p) {
      by_piece[p].push_back(
          {arrived.x.data() + row * hidden, arrived.weights[i], partials.data() + row * hidden});
    }
  }
  std::vector<Reader::Range> ranges;
  for (size_t p = 0; p < by_piece.size(); ++p) {
    const dispatch::LocalPiece& piece = layer.pieces[p];
    if (by_piece[p].empty()) continue;
    ranges.push_back({piece.data, piece.granule_count * geometry_.granule_bytes});
  }
  const Result<std::vector<const void*>> bytes = pieces_->Read(ranges);
  if (!bytes.ok()) return bytes.status();
  auto data = bytes->begin();
  for (size_t p = 0; p < by_piece.size(); ++p) {
    if (by_piece[p].empty()) continue;
    model::ExpertRun run;
    run.data = *data++;
    run.granules = layer.pieces[p].granule_count;
    executed_ += static_cast<uint32_t>(by_piece[p].size()) * run.granules;
    run.granule_rows = geometry_.granule_rows;
    run.granule_bytes = geometry_.granule_bytes;
    run.dtype = static_cast<model::DType>(geometry_.dtype);
    run.row_major = geometry_.slab_format == TG_SLAB_ROW_MAJOR;
    TANGRAM_RETURN_IF_ERROR(context.model.ExpertPartial(run, by_piece[p]));
  }
  return partials;
}

Status ExpertStage::Run(StepContext& context, uint32_t layer, std::span<float> x) {
  const auto ordinal = static_cast<uint32_t>(context.maps.layers[layer].moe_ordinal);
  const size_t rows = x.size() / geometry_.hidden;
  std::vector<float> n(x.size()), weights(rows * geometry_.top_k);
  std::vector<uint32_t> experts(weights.size());
  context.model.MlpNorm(layer, x, n);
  context.model.Route(layer, n, experts, weights);
  const std::vector<int32_t> chosen(experts.begin(), experts.end());
  TANGRAM_RETURN_IF_ERROR(
      exchange_.Dispatch(context.comm, context.step, SequenceOf(layer, Stage::kDispatch), ordinal,
                         {static_cast<uint32_t>(rows), n.data(), chosen.data(), weights.data()}));
  context.world.CountRows(ordinal, exchange_.routed(), exchange_.executed());

  const Result<std::vector<int64_t>> partials =
      Compute(context, exchange_.routes().Layer(ordinal), exchange_.arrived());
  if (!partials.ok()) return partials.status();
  std::vector<int64_t> sums(x.size());
  TANGRAM_RETURN_IF_ERROR(exchange_.Combine(partials->data(), sums.data()));
  model::AddToResidual(sums, x);
  return OkStatus();
}

}  // namespace tangram::engine
