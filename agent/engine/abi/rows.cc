// Rows of experts to and from C (rows/rows.h).
#include <cstddef>
#include <string>
#include <type_traits>

#include "agent/engine/abi/called.h"

namespace tangram::engine {
namespace {

using dispatch::LocalPiece;

// Sequence numbers of the kit's own exchanges of rows in a step: far beyond those of an engine.
constexpr uint64_t kRowsSequence = 2ull << 32;

// A LocalPiece has the layout of tge_piece and is returned in place.
static_assert(std::is_standard_layout_v<LocalPiece> && sizeof(LocalPiece) == sizeof(tge_piece) &&
              offsetof(LocalPiece, data) == offsetof(tge_piece, data) &&
              offsetof(LocalPiece, choice) == offsetof(tge_piece, replica) &&
              offsetof(LocalPiece, expert) == offsetof(tge_piece, expert) &&
              offsetof(LocalPiece, granule_start) == offsetof(tge_piece, granule_start) &&
              offsetof(LocalPiece, granule_count) == offsetof(tge_piece, granule_count));

// The layer's ordinal among those with experts.
Result<uint32_t> OrdinalOf(const Epoch* epoch, const tg_model& model, uint32_t layer) {
  if (epoch == nullptr) return Status{Code::kInvalid, "this rank is in no layout"};
  if (layer >= model.layers || epoch->maps->layers[layer].moe_ordinal < 0)
    return Status{Code::kInvalid, "layer " + std::to_string(layer) + " has no experts"};
  return static_cast<uint32_t>(epoch->maps->layers[layer].moe_ordinal);
}

}  // namespace

Status Called::Pieces(uint32_t layer, const tge_piece** out, size_t* count,
                      size_t* piece_size) const {
  const auto ordinal = OrdinalOf(epoch_, world_->model(), layer);
  if (!ordinal.ok()) return ordinal.status();
  const std::span<const LocalPiece> pieces = routes_->Layer(*ordinal).pieces;
  *out = reinterpret_cast<const tge_piece*>(pieces.data());
  *count = pieces.size();
  *piece_size = sizeof(tge_piece);
  return OkStatus();
}

Result<ExpertRows*> Called::ExchangeOf(const tge_rows& rows) {
  if (rows.element != TGE_F32 && rows.element != TGE_BF16)
    return Status{Code::kInvalid,
                  "tge_rows: element is " + std::to_string(rows.element) + ": F32 (1) or BF16 (2)"};
  const auto element = static_cast<dispatch::Element>(rows.element);
  const dispatch::Format format{.hidden = world_->model().hidden,
                                .top_k = rows.top_k,
                                .experts = world_->model().experts,
                                .x = element,
                                .wire = element,
                                .sums = dispatch::Element::kF32};
  if (!experts_) {
    format_ = format;
    TANGRAM_RETURN_IF_ERROR(format.Check());
    experts_.emplace(format);
    experts_->Enter(routes_);
  }
  if (format != format_)
    return Status{Code::kInvalid, "tge_rows: top_k " + std::to_string(rows.top_k) +
                                      " and element " + std::to_string(rows.element) +
                                      ", but earlier calls had " + std::to_string(format_.top_k) +
                                      " and " + std::to_string(static_cast<uint32_t>(format_.x)) +
                                      "; they must be the same in all calls"};
  return &*experts_;
}

Status Called::Dispatch(const tge_rows& rows, tge_dispatched* arrived) {
  if (input_ == nullptr) return {Code::kInvalid, "tge_dispatch called outside of a step"};
  if (lost_) return StepLost();
  const auto ordinal = OrdinalOf(epoch_, world_->model(), rows.layer);
  if (!ordinal.ok()) return ordinal.status();
  const Result<ExpertRows*> exchange = ExchangeOf(rows);
  if (!exchange.ok()) return exchange.status();
  ExpertRows& experts = **exchange;
  std::span<const uint8_t> active;
  if (rows.active != nullptr) active = {rows.active, input_->comm.size()};
  const Status done =
      experts.Dispatch(input_->comm, input_->step, kRowsSequence + 2 * uint64_t{*ordinal}, *ordinal,
                       {rows.rows, rows.x, rows.expert, rows.weights}, active);
  lost_ = lost_ || !done.ok();
  if (!done.ok()) return done;
  world_->CountRows(*ordinal, experts.routed(), experts.executed());
  const dispatch::Arrived& came = experts.arrived();
  arrived->rows = came.rows;
  arrived->top_k = rows.top_k;
  arrived->x = came.x.data();
  arrived->replicas = came.choices.data();
  arrived->weights = came.weights.data();
  return OkStatus();
}

Status Called::Combine(const float* results, float* y) {
  if (input_ == nullptr || !experts_) {
    return {Code::kInvalid, "tge_combine called outside of a step"};
  }
  if (lost_) return StepLost();
  Status done = experts_->Combine(results, y);
  lost_ = lost_ || !done.ok();
  return done;
}

}  // namespace tangram::engine
