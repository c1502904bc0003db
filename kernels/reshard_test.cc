// Experts move between whole and sliced, in both slab formats, by lists of strips alone. The
// reference uses matrices and elements, not strips: it computes each byte of a slab from the
// checkpoint (docs/architecture.md, section 8).
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

#include "kernels/slab.h"
#include "kernels/testing/launch.h"

namespace tangram::kernels {
namespace {

using testing::AddressOf;

// A tensor of an expert: [rows, columns] of `size` bytes per element, cut along its first or second
// axis into equal parts, one per granule.
struct Tensor {
  uint64_t rows, columns, size;
  bool by_columns;
};

struct Model {
  const char* name;
  uint64_t granules;
  std::vector<Tensor> tensors;
};

// BF16: gate, up [I, H], down [H, I].
Model Bf16(const char* name, uint64_t hidden, uint64_t inner, uint64_t granule_rows) {
  return {name,
          inner / granule_rows,
          {{inner, hidden, 2, false}, {inner, hidden, 2, false}, {hidden, inner, 2, true}}};
}
// Block FP8: the same with one byte per element, then scales of each 128 x 128 block, of 4 bytes.
Model Fp8(const char* name, uint64_t hidden, uint64_t inner, uint64_t block) {
  const uint64_t h = (hidden + block - 1) / block, i = inner / block;
  return {name,
          i,
          {{inner, hidden, 1, false},
           {inner, hidden, 1, false},
           {hidden, inner, 1, true},
           {i, h, 4, false},
           {i, h, 4, false},
           {h, i, 4, true}}};
}

// The shapes of the models, with H and I divided by 16.
std::vector<Model> Models() {
  Model biased = Bf16("with biases", 180, 96, 4);
  biased.tensors.push_back({96, 1, 2, false});
  biased.tensors.push_back({96, 1, 2, false});
  return {Bf16("Qwen3-235B", 256, 96, 8), Fp8("Qwen3-235B FP8", 256, 96, 8),
          Fp8("DeepSeek-V3 FP8", 448, 128, 8), Bf16("DeepSeek-V3", 448, 128, 8), biased};
}

using Bytes = std::vector<std::byte>;

Bytes Random(const Model& model, std::mt19937* random) {
  uint64_t bytes = 0;
  for (const Tensor& t : model.tensors) bytes += t.rows * t.columns * t.size;
  Bytes out(bytes);
  for (std::byte& byte : out) byte = std::byte((*random)());
  return out;
}

// Granules [first, first + count) of an expert in a slab, computed element by element from the
// checkpoint's tensors, which are stored one after another.
Bytes SlabOf(const Model& model, const Bytes& expert, uint64_t first, uint64_t count,
             bool row_major) {
  Bytes out;
  const auto put = [&](const Tensor& t, uint64_t base, uint64_t row, uint64_t column) {
    for (uint64_t b = 0; b < t.size; ++b) {
      out.push_back(expert.at(base + (row * t.columns + column) * t.size + b));
    }
  };
  // Rows and columns of a tensor that belong to granules [from, to), in the tensor's order.
  const auto part = [&](const Tensor& t, uint64_t base, uint64_t from, uint64_t to) {
    const uint64_t cut = (t.by_columns ? t.columns : t.rows) / model.granules;
    for (uint64_t r = t.by_columns ? 0 : from * cut; r < (t.by_columns ? t.rows : to * cut); ++r) {
      for (uint64_t c = t.by_columns ? from * cut : 0; c < (t.by_columns ? to * cut : t.columns);
           ++c) {
        put(t, base, r, c);
      }
    }
  };
  const uint64_t step = row_major ? count : 1;
  for (uint64_t g = first; g < first + count; g += step) {
    uint64_t base = 0;
    for (const Tensor& t : model.tensors) {
      part(t, base, g, g + step);
      base += t.rows * t.columns * t.size;
    }
  }
  return out;
}

// In a granule-major slab a granule's columns are stored line by line, like sections here.
std::vector<Section> SectionsOf(const Model& model) {
  std::vector<Section> out;
  for (const Tensor& t : model.tensors) {
    const uint64_t bytes = t.rows * t.columns * t.size / model.granules;
    out.push_back(t.by_columns ? Section{t.rows, bytes / t.rows} : Section{1, bytes});
  }
  return out;
}

struct Piece {
  uint64_t first, count;
  Bytes bytes;
};

// The pieces of all positions of g, by the shard rule.
std::vector<Piece> Pieces(const Model& model, uint64_t g, uint64_t expert) {
  std::vector<Piece> out;
  uint64_t at = 0;
  for (uint64_t p = 0; p < g; ++p) {
    const uint64_t more = (p + g - expert % g) % g < model.granules % g ? 1 : 0;
    out.push_back({at, model.granules / g + more, {}});
    at += out.back().count;
  }
  EXPECT_EQ(at, model.granules);
  return out;
}

// Fills the pieces of one layout from those of another, in one launch.
void Reshard(const Model& model, const std::vector<Piece>& from, bool from_row_major,
             std::vector<Piece>* to, bool to_row_major, uint32_t most_blocks) {
  const std::vector<Section> sections = SectionsOf(model);
  std::vector<CopyStrip> strips;
  for (const Piece& target : *to) {
    for (const Piece& source : from) {
      const uint64_t begin = std::max(target.first, source.first),
                     end = std::min(target.first + target.count, source.first + source.count);
      if (begin >= end) continue;
      AppendStrips({AddressOf(target.bytes), target.count, to_row_major}, begin - target.first,
                   {AddressOf(source.bytes), source.count, from_row_major}, begin - source.first,
                   end - begin, sections, &strips);
    }
  }
  const uint64_t units = NumberStrips(strips);
  const CopyStripsParameters parameters{AddressOf(strips), strips.size(), units, units / 3};
  testing::Run("copy_strips", CopyStripsLaunch(parameters, most_blocks), parameters);
}

TEST(Reshard, MovesExpertsBetweenWholeAndSlicedInBothFormats) {
  std::mt19937 random(1);
  for (const Model& model : Models()) {
    const Bytes expert = Random(model, &random);
    for (const uint64_t ranks : {2, 4, 8}) {
      for (const auto& [before, after] : {std::pair<uint64_t, uint64_t>{1, ranks}, {ranks, 1}}) {
        for (int formats = 0; formats < 4; ++formats) {
          const bool from_rows = formats % 2 != 0, to_rows = formats / 2 != 0;
          std::vector<Piece> from = Pieces(model, before, 3), to = Pieces(model, after, 3);
          for (Piece& piece : from) {
            piece.bytes = SlabOf(model, expert, piece.first, piece.count, from_rows);
          }
          std::vector<Bytes> expected;
          for (Piece& piece : to) {
            expected.push_back(SlabOf(model, expert, piece.first, piece.count, to_rows));
            piece.bytes.resize(expected.back().size());
          }
          Reshard(model, from, from_rows, &to, to_rows, 5);
          for (size_t i = 0; i < to.size(); ++i) {
            ASSERT_EQ(to[i].bytes, expected[i])
                << model.name << ", " << before << " to " << after << " ranks, formats " << formats;
          }
        }
      }
    }
  }
}

// From one width to another, where pieces partly overlap.
TEST(Reshard, MovesShardsBetweenDifferentRankCounts) {
  std::mt19937 random(2);
  for (const Model& model : Models()) {
    const Bytes expert = Random(model, &random);
    for (const auto& [before, after] : {std::pair<uint64_t, uint64_t>{8, 3}, {3, 8}, {4, 5}}) {
      std::vector<Piece> from = Pieces(model, before, 1), to = Pieces(model, after, 2);
      for (Piece& piece : from) {
        piece.bytes = SlabOf(model, expert, piece.first, piece.count, true);
      }
      for (Piece& piece : to) {
        piece.bytes.resize(SlabOf(model, expert, piece.first, piece.count, true).size());
      }
      Reshard(model, from, true, &to, true, 2);
      for (const Piece& piece : to) {
        ASSERT_EQ(piece.bytes, SlabOf(model, expert, piece.first, piece.count, true)) << model.name;
      }
    }
  }
}

}  // namespace
}  // namespace tangram::kernels
