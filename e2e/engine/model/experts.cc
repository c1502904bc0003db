#include "e2e/engine/model/experts.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "e2e/engine/model/fixed.h"
#include "e2e/engine/model/kernels.h"
#include "e2e/engine/model/model.h"

namespace tangram::model {
namespace {

// Bytes of the scales of one of the three matrices; 0: no scales of this dtype.
uint64_t ScaleBytes(DType dtype, uint32_t rows, uint32_t hidden, DType scales) {
  if (dtype != DType::kFp8) return 0;
  return uint64_t{ScaleBlocks(rows)} * ScaleBlocks(hidden) * SizeOf(scales);
}

// Dtype of the scales of a run that passed CheckExperts, derived from the size of a granule.
DType ScalesOf(const ExpertRun& run, uint32_t hidden) {
  const uint64_t matrices = uint64_t{3} * run.granule_rows * hidden;
  const uint64_t wide = ScaleBytes(DType::kFp8, run.granule_rows, hidden, DType::kF32);
  return run.granule_bytes == matrices + 3 * wide ? DType::kF32 : DType::kBf16;
}

// Transposes columns [from, from + rows) of a matrix of `lines` lines, `pitch` bytes each, into
// rows [rows, lines].
void Turn(const std::byte* columns, size_t lines, size_t pitch, size_t rows, size_t element,
          std::vector<std::byte>* out) {
  out->resize(rows * lines * element);
  for (size_t h = 0; h < lines; ++h) {
    for (size_t i = 0; i < rows; ++i) {
      std::memcpy(&(*out)[(i * lines + h) * element], columns + h * pitch + i * element, element);
    }
  }
}

}  // namespace

Status CheckExperts(const ExpertBytes& e) {
  const auto dtype = static_cast<DType>(e.dtype);
  if (dtype != DType::kF32 && dtype != DType::kBf16 && dtype != DType::kFp8) {
    return Status(Code::kInvalid,
                  fmt::format("experts have dtype {} (tangram.v1.DType): only F32, BF16 and block "
                              "FP8 are computed",
                              e.dtype));
  }
  if (dtype == DType::kFp8 && e.granule_rows % kScaleBlock != 0) {
    return Status(Code::kInvalid, fmt::format("granules of {} rows cut the blocks of {} that the "
                                              "scales of FP8 are for",
                                              e.granule_rows, kScaleBlock));
  }
  const uint64_t matrices = uint64_t{3} * e.granule_rows * e.hidden * SizeOf(dtype);
  const auto with = [&](DType scales) {
    return matrices + 3 * ScaleBytes(dtype, e.granule_rows, e.hidden, scales);
  };
  if (e.tail_bytes == 0 && (e.granule_bytes == with(DType::kF32) ||
                            (dtype == DType::kFp8 && e.granule_bytes == with(DType::kBf16)))) {
    return OkStatus();
  }
  return Status(
      Code::kInvalid,
      fmt::format("experts have granules of {} bytes and a tail of {}, three matrices "
                  "[{}, {}] take {} and 0: biases, and scales of other blocks, are not "
                  "computed",
                  e.granule_bytes, e.tail_bytes, e.granule_rows, e.hidden, with(DType::kF32)));
}

Granule GranuleReader::At(const ExpertRun& run, uint32_t g, uint32_t hidden) {
  const uint32_t rows = run.granule_rows, blocks = ScaleBlocks(hidden);
  const DType scales = ScalesOf(run, hidden);
  const size_t element = SizeOf(run.dtype), matrix = size_t{rows} * hidden * element;
  const size_t scale = ScaleBytes(run.dtype, rows, hidden, scales);
  // Part p of a granule's six parts: gate, up, down, and their scales.
  const auto* data = static_cast<const std::byte*>(run.data);
  const size_t units = run.row_major ? run.granules : 1;
  if (!run.row_major) data += g * run.granule_bytes;
  const auto part = [&](size_t p) {
    const size_t before = p < 3 ? p * matrix : 3 * matrix + (p - 3) * scale;
    return data + units * before;
  };
  const size_t own = run.row_major ? g : 0;
  const auto of = [&](size_t p) {
    return Matrix{part(p) + own * matrix,
                  run.dtype,
                  rows,
                  hidden,
                  hidden,
                  {part(p + 3) + own * scale, scales, blocks}};
  };
  Granule out{of(0), of(1), of(2)};
  if (!run.row_major) return out;
  const size_t width = rows * element;
  Turn(part(2) + g * width, hidden, units * width, rows, element, &turned_);
  out.down.data = turned_.data();
  if (scale == 0) return out;
  const size_t scale_width = ScaleBlocks(rows) * SizeOf(scales);
  Turn(part(5) + g * scale_width, blocks, units * scale_width, ScaleBlocks(rows), SizeOf(scales),
       &turned_scales_);
  out.down.scales.data = turned_scales_.data();
  return out;
}

Status Model::ExpertPartial(const ExpertRun& run, std::span<const ExpertRow> rows) const {
  const size_t h = config_.hidden, r = run.granule_rows, m = rows.size();
  thread_local std::vector<float> x, gate, up, y;
  x.resize(m * h);
  gate.resize(m * r);
  up.resize(m * r);
  y.resize(m * h);
  for (size_t i = 0; i < m; ++i) std::copy_n(rows[i].x, h, &x[i * h]);
  thread_local GranuleReader reader;
  for (uint32_t g = 0; g < run.granules; ++g) {
    const Granule granule = reader.At(run, g, config_.hidden);
    MatMul(granule.gate, x.data(), h, m, gate.data(), r);
    MatMul(granule.up, x.data(), h, m, up.data(), r);
    for (size_t i = 0; i < m * r; ++i) gate[i] = Silu(gate[i]) * up[i];
    TransposedMatMul(granule.down, gate.data(), r, m, y.data(), h);
    for (size_t i = 0; i < m; ++i) {
      Scale(rows[i].weight, &y[i * h], h);
      TANGRAM_RETURN_IF_ERROR(AccumulateFixed({&y[i * h], h}, {rows[i].acc, h}, "expert output"));
    }
  }
  return OkStatus();
}

}  // namespace tangram::model
