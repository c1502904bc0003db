#include "agent/vllm/ops/run.h"

#include <algorithm>

#include "agent/vllm/ops/bf16.h"

namespace tangram::experts {
namespace {

// Size of a strip of gate and up, or of down by columns, that stays in the cache next to the core
// (1 MiB and more today) while all tokens pass.
constexpr size_t kStripBytes = 256 << 10;

size_t ElementBytes(const Call& call) { return call.shape.element == TG_EXPERTS_F32 ? 4 : 2; }
uint32_t Rows(const Call& call, size_t piece) {
  return call.pieces[piece].granules * call.shape.granule_rows;
}
const void* At(const void* base, size_t element, size_t bytes) {
  return static_cast<const uint8_t*>(base) + element * bytes;
}

}  // namespace

void Runner::Run(const Call& call) {
  Route(call.pieces, call.ids, call.weights, call.rows, call.top_k, &routes_);
  begin_.resize(call.pieces.size());
  strips_.clear();
  size_t bytes = 0;
  const uint32_t granule = call.shape.granule_rows;
  const bool row_major = call.shape.format == TG_EXPERTS_ROW_MAJOR;
  const auto most = static_cast<uint32_t>(
      std::max<size_t>(kStripBytes / (2 * call.shape.hidden * ElementBytes(call)), 1));
  for (size_t i = 0; i < call.pieces.size(); ++i) {
    begin_[i] = bytes;
    const uint32_t tokens = routes_.Of(i).count, rows = Rows(call, i);
    if (tokens == 0) continue;
    bytes += size_t{tokens} * rows * call.kernel->operand_bytes;
    const uint32_t strip = row_major ? most : granule;
    for (uint32_t first = 0; first < rows; first += strip)
      strips_.push_back({static_cast<uint32_t>(i), first, std::min(strip, rows - first)});
  }
  if (strips_.empty()) return;
  activations_.resize(bytes);
  scratch_.resize(pool_.threads());
  for (std::vector<float>& scratch : scratch_)
    scratch.resize(size_t{4} * ((call.shape.hidden + 31) / 32 * 32));
  if (call.shape.element != TG_EXPERTS_F32) {
    operands_.resize(size_t{call.rows} * call.shape.hidden * call.kernel->operand_bytes);
    call.kernel->operand(call.x, size_t{call.rows} * call.shape.hidden, operands_.data());
  }
  GateUp(call);
  Down(call);
}

// Each thread has its own rows of the weight.
void Runner::Run(const Product& p) {
  const size_t bytes = p.f32 ? 4 : 2;
  const void* x = p.x;
  float* out = static_cast<float*>(p.y);
  size_t out_pitch = p.y_pitch;
  if (!p.f32) {
    const size_t from = size_t{p.rows} * p.k;
    wide_.resize(from + size_t{p.rows} * p.n);
    if (p.kernel->operand_bytes != 2) {
      for (size_t i = 0; i < from; ++i) wide_[i] = FromBf16(static_cast<const uint16_t*>(p.x)[i]);
      x = wide_.data();
    }
    out = wide_.data() + from;
    out_pitch = p.n;
  }
  const uint32_t slice = ((p.n + pool_.threads() - 1) / pool_.threads() + 31) / 32 * 32;
  pool_.Run((p.n + slice - 1) / slice, [&](uint32_t item, uint32_t) {
    const uint32_t begin = item * slice, rows = std::min(p.n - begin, slice);
    p.kernel->linear(At(p.weight, size_t{begin} * p.k, bytes), rows, p.k, x, p.rows, out + begin,
                     out_pitch);
  });
  if (p.f32) return;
  for (uint32_t row = 0; row < p.rows; ++row)
    for (uint32_t j = 0; j < p.n; ++j)
      static_cast<uint16_t*>(p.y)[row * p.y_pitch + j] = ToBf16(out[size_t{row} * p.n + j]);
}

void Runner::GateUp(const Call& call) {
  const uint32_t hidden = call.shape.hidden, granule = call.shape.granule_rows;
  const size_t bytes = ElementBytes(call);
  const void* x =
      call.shape.element == TG_EXPERTS_F32 ? static_cast<const void*>(call.x) : operands_.data();
  pool_.Run(static_cast<uint32_t>(strips_.size()), [&](uint32_t item, uint32_t) {
    const Strip& strip = strips_[item];
    const tg_experts_piece& piece = call.pieces[strip.piece];
    const bool rows = call.shape.format == TG_EXPERTS_ROW_MAJOR;
    const auto gate_of = [&](const Strip& of) {
      const tg_experts_piece& its = call.pieces[of.piece];
      return At(its.gate, of.first * (rows ? size_t{its.row_pitch} : size_t{3} * hidden), bytes);
    };
    const void* const gate = gate_of(strip);
    const size_t pitch = rows ? piece.row_pitch : hidden;
    const void* const up =
        rows ? At(piece.up, strip.first * pitch, bytes) : At(gate, size_t{granule} * hidden, bytes);
    const void* const next = item + 1 < strips_.size() ? gate_of(strips_[item + 1]) : nullptr;
    uint8_t* to =
        activations_.data() + begin_[strip.piece] + strip.first * call.kernel->operand_bytes;
    call.kernel->gate_up(gate, up, next, pitch, strip.rows, hidden, x, routes_.Of(strip.piece), to,
                         Rows(call, strip.piece));
  });
}

// Each thread has its own columns of y, so that no thread waits for another and sums have one
// order.
void Runner::Down(const Call& call) {
  const uint32_t hidden = call.shape.hidden, granule = call.shape.granule_rows;
  const size_t bytes = ElementBytes(call);
  const uint32_t slice = ((hidden + pool_.threads() - 1) / pool_.threads() + 31) / 32 * 32;
  const auto together =
      static_cast<uint32_t>(std::max<size_t>(kStripBytes / (size_t{granule} * hidden * bytes), 1));
  pool_.Run((hidden + slice - 1) / slice, [&](uint32_t item, uint32_t thread) {
    const uint32_t begin = item * slice, end = std::min(hidden, begin + slice);
    for (size_t i = 0; i < call.pieces.size(); ++i) {
      const Tokens tokens = routes_.Of(i);
      if (tokens.count == 0) continue;
      const tg_experts_piece& piece = call.pieces[i];
      const uint32_t rows = Rows(call, i);
      const uint8_t* from = activations_.data() + begin_[i];
      if (call.shape.format == TG_EXPERTS_ROW_MAJOR) {
        call.kernel->down_by_rows(piece.down, piece.down_pitch, rows, hidden, begin, end, from,
                                  rows, tokens, call.y);
        continue;
      }
      for (uint32_t g = 0; g < piece.granules; g += together) {
        const void* down = At(piece.gate, (size_t{3} * g + 2) * granule * hidden, bytes);
        const void* next = g + together < piece.granules
                               ? At(down, size_t{3} * together * granule * hidden, bytes)
                               : nullptr;
        call.kernel->down_by_columns(down, next, std::min(together, piece.granules - g),
                                     size_t{3} * granule * hidden, granule, hidden, begin, end,
                                     from + size_t{g} * granule * call.kernel->operand_bytes, rows,
                                     tokens, call.y, scratch_[thread].data());
      }
    }
  });
}

}  // namespace tangram::experts
