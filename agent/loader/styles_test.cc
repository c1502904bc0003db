// Checkpoints of every family against the slow reference, and the errors of invalid ones.
#include "agent/loader/styles.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <random>

#include "agent/device/hash.h"
#include "agent/device/runs.h"
#include "agent/loader/checkpoint.h"
#include "agent/loader/testing/reference.h"
#include "agent/loader/testing/writer.h"

namespace tangram::loader {
namespace {

using ::testing::AllOf;
using testing::Family;
using ::testing::HasSubstr;
using testing::MakeTensors;
using testing::ModelShape;
using testing::TempDir;
using testing::Tensors;

constexpr uint64_t kPage = 4096;

// Odd sizes, with partial blocks and partial cache lines.
ModelShape RandomShape(Family family, std::mt19937_64& random, uint32_t* granule_rows) {
  ModelShape shape;
  shape.family = family;
  shape.layers = 1 + static_cast<uint32_t>(random() % 2);
  shape.experts = 2 + static_cast<uint32_t>(random() % 2);
  shape.transformers5 = random() % 2 == 0;
  shape.dtype = random() % 2 == 0 ? "BF16" : "F32";
  shape.scales = random() % 2 == 0 ? "BF16" : "F32";
  shape.first_dense = static_cast<uint32_t>(random() % 2);
  shape.ahead = (family == Family::kDeepSeekV3 || family == Family::kGlm4) && random() % 2 == 0;
  shape.interleave = 1 + static_cast<uint32_t>(random() % 2);
  shape.layers += 1;  // one of them has experts
  if (BlockScaled(family)) {
    *granule_rows = 128 * static_cast<uint32_t>(1 + random() % 2);
    shape.hidden = 1 + static_cast<uint32_t>(random() % 40) + (random() % 3 == 0 ? 120 : 0);
    shape.moe_inner = *granule_rows * static_cast<uint32_t>(1 + random() % 3);
  } else {
    *granule_rows = 1 + static_cast<uint32_t>(random() % 40);
    shape.hidden = shape.query_heads + static_cast<uint32_t>(random() % 90);
    shape.moe_inner = *granule_rows * static_cast<uint32_t>(1 + random() % 6);
  }
  return shape;
}

class Styles : public ::testing::TestWithParam<std::tuple<Family, v1::SlabFormat>> {};

// Takes the read granules out of a slab, and checks that nothing else was written ('#' before).
std::string TakeOut(const Checkpoint::Target& target, uint64_t unit) {
  std::string granules(target.run.count * unit, '\0');
  const auto bytes = std::as_writable_bytes(std::span(granules));
  device::Memory slab = device::Memory::Own(target.out);
  slab.shape = target.shape;
  slab = slab.Part(target.unit * unit, granules.size());
  device::Gather(slab, bytes);
  std::string blank(granules.size(), '#');
  device::CopyStrips(slab, device::Memory::Own(std::as_writable_bytes(std::span(blank))));
  EXPECT_TRUE(std::ranges::all_of(target.out, [](std::byte b) { return b == std::byte{'#'}; }));
  return granules;
}

// Runs as ranks request them, with or without the tail, or the tail alone.
TEST_P(Styles, ReadsRunsAndTailsLikeReference) {
  std::mt19937_64 random(17);
  for (int round = 0; round < 25; ++round) {
    uint32_t rows = 0;
    const auto [family, format] = GetParam();
    const bool row_major = format == v1::SLAB_FORMAT_ROW_MAJOR;
    const ModelShape shape = RandomShape(family, random, &rows);
    TempDir dir;
    WriteCheckpoint(dir.path(), shape, MakeTensors(shape, random()), 1 + round % 3);
    const auto opened = Checkpoint::Open(dir.path(), rows, kPage, format);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    const Checkpoint& checkpoint = **opened;
    const layout::GeometryView& geometry = checkpoint.geometry();
    const testing::Reference reference(dir.path(), rows);
    const uint64_t unit = geometry.granule_bytes(), tail = geometry.tail_bytes();
    const uint32_t any = geometry.proto().moe_layers(0);
    ASSERT_EQ(unit, reference.Granule(any, 0, 0).size());
    ASSERT_EQ(tail, reference.Tail(any, 0).size());
    for (int ask = 0; ask < 40; ++ask) {
      const auto moe = geometry.proto().moe_layers();
      const uint32_t layer =
          moe.Get(static_cast<int>(random() % static_cast<uint64_t>(moe.size())));
      const auto expert = static_cast<uint32_t>(random() % shape.experts);
      // Up to three runs, in order and without overlap.
      std::vector<layout::Run> runs;
      for (uint32_t at = 0; runs.size() < 3;) {
        at += static_cast<uint32_t>(random() % 2);
        if (at > geometry.granules()) break;
        const auto count = static_cast<uint32_t>(random() % (geometry.granules() - at + 1));
        runs.push_back({at, count});
        at += count;
      }
      std::vector<std::string> out, tails;
      std::vector<std::vector<uint64_t>> hashes;
      std::vector<uint64_t> tail_hashes(runs.size(), 0);
      uint64_t bytes = 0;
      for (const layout::Run& run : runs) {
        out.emplace_back(run.count * unit, '\0');
        tails.emplace_back(random() % 2 * tail, '\0');
        hashes.emplace_back(run.count);
        bytes += out.back().size();
      }
      std::vector<Checkpoint::Target> targets;
      std::vector<device::Shape> shapes(runs.size());  // of slabs, which may be wider than the run
      bool any_tail = false;
      for (size_t i = 0; i < runs.size(); ++i) {
        any_tail = any_tail || !tails[i].empty();
        Checkpoint::Target& target = targets.emplace_back();
        target.run = runs[i];
        target.hashes = hashes[i];
        target.tail = std::as_writable_bytes(std::span(tails[i]));
        target.tail_hash = &tail_hashes[i];
        if (row_major && random() % 2 == 0) {
          for (const v1::Section& section : geometry.proto().sections()) {
            shapes[i].planes.push_back({section.lines(), section.bytes()});
          }
          target.unit = random() % 3 / 2;
          shapes[i].units = target.unit + runs[i].count + random() % 3 / 2;
          target.shape = &shapes[i];
          out[i].assign(shapes[i].units * unit, '#');
        }
        target.out = std::as_writable_bytes(std::span(out[i]));
      }
      const auto before = checkpoint.reads().bytes;
      const Status read = checkpoint.ReadRuns(layer, expert, targets);
      ASSERT_TRUE(read.ok()) << read.message();
      EXPECT_EQ(checkpoint.reads().bytes - before, bytes + (any_tail ? tail : 0));
      for (size_t i = 0; i < runs.size(); ++i) {
        if (targets[i].shape != nullptr) out[i] = TakeOut(targets[i], unit);
        for (uint32_t g = 0; g < runs[i].count; ++g) {
          const uint32_t granule = runs[i].start + g;  // row-major: a granule is a slab of one
          const std::string want = row_major ? reference.Rows(layer, expert, granule, 1)
                                             : reference.Granule(layer, expert, granule);
          ASSERT_EQ(out[i].substr(g * unit, unit), want)
              << "round " << round << ", granule " << runs[i].start + g << " of " << rows
              << " rows, H " << shape.hidden << ", " << shape.dtype;
          EXPECT_EQ(hashes[i][g], device::HashOf(std::as_bytes(std::span(want))));
        }
        if (tails[i].empty()) continue;
        EXPECT_EQ(tails[i], reference.Tail(layer, expert));
        EXPECT_EQ(tail_hashes[i], device::HashOf(std::as_bytes(std::span(tails[i]))));
      }
    }
    for (const DenseTensor& dense : checkpoint.dense()) {
      EXPECT_EQ(dense.name.find(".experts."), std::string::npos);
      EXPECT_EQ(dense.name.find(fmt::format(".layers.{}.", shape.layers)), std::string::npos);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Loader, Styles,
    ::testing::Combine(
        ::testing::Values(Family::kQwen3, Family::kQwen3Fp8, Family::kGptOss, Family::kMixtral,
                          Family::kDeepSeekV2, Family::kDeepSeekV3, Family::kGlm4, Family::kLlama4),
        ::testing::Values(v1::SLAB_FORMAT_GRANULE_MAJOR, v1::SLAB_FORMAT_ROW_MAJOR)));

ModelShape Good(Family family) {
  ModelShape shape;
  shape.family = family;
  if (BlockScaled(family)) shape.moe_inner = 384;
  return shape;
}

// Byte counts as docs/architecture.md has them.
TEST(StyleBytes, MatchDocumentedGranuleAndTailSizes) {
  const auto geometry = [](const ModelShape& shape, uint32_t rows) {
    TempDir dir;
    WriteCheckpoint(dir.path(), shape, MakeTensors(shape, 1), 1);
    const auto opened = Checkpoint::Open(dir.path(), rows, kPage);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return (*opened)->geometry().proto();
  };
  ModelShape fp8 = Good(Family::kQwen3Fp8);
  fp8.hidden = 144;  // two columns of blocks
  const v1::Geometry scaled = geometry(fp8, 128);
  EXPECT_EQ(scaled.model(), "qwen3_moe");
  EXPECT_EQ(scaled.dtype(), v1::DTYPE_FP8_E4M3_BLOCK128);
  EXPECT_EQ(scaled.granule_bytes(), 3 * 128 * 144 + 3 * 1 * 2 * 4);
  EXPECT_EQ(scaled.expert_tail_bytes(), 0U);
  fp8.scales = "BF16";
  EXPECT_EQ(geometry(fp8, 384).granule_bytes(), 3 * 384 * 144 + 3 * 3 * 2 * 2);
  const v1::Geometry biased = geometry(Good(Family::kGptOss), 8);
  EXPECT_EQ(biased.model(), "gpt_oss");
  EXPECT_EQ(biased.moe_inner(), 24U);
  EXPECT_EQ(biased.granule_bytes(), 3 * 8 * 16 * 2 + 2 * 8 * 2);
  EXPECT_EQ(biased.expert_tail_bytes(), 16U * 2);
}

// Applies `change` to a valid checkpoint; returns the error of Open.
using Change = std::function<void(ModelShape&, Tensors&)>;
Status Refusal(Family family, const Change& change, uint32_t granule_rows = 0) {
  TempDir dir;
  ModelShape shape = Good(family);
  Tensors tensors = MakeTensors(shape, 1);
  change(shape, tensors);
  WriteCheckpoint(dir.path(), shape, tensors, 1);
  if (granule_rows == 0) granule_rows = BlockScaled(family) ? 128 : 8;
  const auto opened = Checkpoint::Open(dir.path(), granule_rows, kPage);
  return opened.ok() ? Status(Code::kOk, "opened") : opened.status();
}

// Changes shape or type of a tensor, and so its number of bytes.
void Reshape(Tensors& tensors, const std::string& name, const std::vector<uint64_t>& shape,
             const std::string& dtype = "") {
  testing::Tensor& tensor = tensors.at(name);
  if (!dtype.empty()) tensor.dtype = dtype;
  tensor.shape = shape;
  uint64_t bytes = testing::ElementBytes(tensor.dtype);
  for (const uint64_t size : shape) bytes *= size;
  tensor.data.resize(bytes);
}

constexpr char kExpert[] = "model.layers.1.mlp.experts.2.";
constexpr char kStacked[] = "model.layers.1.mlp.experts.";

TEST(BadStyles, RejectsWrongOrMissingScales) {
  const std::string gate = std::string(kExpert) + "gate_proj.weight_scale_inv";
  const std::string down = std::string(kExpert) + "down_proj.weight_scale_inv";
  const auto says = [&](const std::string& name, const std::vector<uint64_t>& shape,
                        const std::string& dtype = "") {
    const Status status = Refusal(
        Family::kQwen3Fp8, [&](auto&, Tensors& tensors) { Reshape(tensors, name, shape, dtype); });
    EXPECT_EQ(status.code(), Code::kBadGeometry) << status.message();
    return status.message();
  };
  EXPECT_THAT(says(gate, {2, 1}), AllOf(HasSubstr(gate), HasSubstr("[2, 1]"), HasSubstr("[3, 1]")));
  EXPECT_THAT(says(gate, {1, 3}), AllOf(HasSubstr("[1, 3]"), HasSubstr("[3, 1]")));
  EXPECT_THAT(says(down, {3, 1}), AllOf(HasSubstr(down), HasSubstr("[3, 1]"), HasSubstr("[1, 3]")));
  EXPECT_THAT(says(down, {1}), AllOf(HasSubstr(down), HasSubstr("[1]"), HasSubstr("[1, 3]")));
  EXPECT_THAT(says(gate, {}), AllOf(HasSubstr("[]"), HasSubstr("[3, 1]")));
  EXPECT_THAT(says(gate, {384, 16}), HasSubstr("[384, 16]")) << "one for each number";
  EXPECT_THAT(says(down, {1, 3}, "BF16"),
              AllOf(HasSubstr(down), HasSubstr("DTYPE_BF16"), HasSubstr("DTYPE_F32")));
  EXPECT_THAT(says("model.layers.0.mlp.experts.0.gate_proj.weight_scale_inv", {3, 1}, "F8_E4M3"),
              HasSubstr("scales are F32 or BF16"));
  const Status missing =
      Refusal(Family::kQwen3Fp8, [&](auto&, Tensors& tensors) { tensors.erase(down); });
  EXPECT_EQ(missing.code(), Code::kBadGeometry);
  EXPECT_THAT(missing.message(), AllOf(HasSubstr(down), HasSubstr("missing")));
}

TEST(BadStyles, RejectsMixedExpertTypesAndUnneededScales) {
  const std::string up = std::string(kExpert) + "up_proj.weight";
  const Status mixed = Refusal(Family::kQwen3Fp8, [&](auto&, Tensors& tensors) {
    Reshape(tensors, up, {384, 16}, "BF16");
  });
  EXPECT_EQ(mixed.code(), Code::kBadGeometry);
  EXPECT_THAT(mixed.message(), AllOf(HasSubstr(up), HasSubstr("FP8"), HasSubstr("BF16")));
  const Status unused = Refusal(Family::kQwen3, [&](auto&, Tensors& tensors) {
    tensors.emplace(up + "_scale_inv", testing::Tensor{"F32", {1, 1}, "1234"});
  });
  EXPECT_EQ(unused.code(), Code::kBadGeometry);
  EXPECT_THAT(unused.message(), HasSubstr(up + "_scale_inv"));
}

TEST(BadStyles, RejectsGranulesNotAlignedToScaleBlocks) {
  for (const uint32_t rows : {64U, 192U, 1U}) {
    const Status status = Refusal(
        Family::kQwen3Fp8, [](auto&, auto&) {}, rows);
    EXPECT_EQ(status.code(), Code::kBadGeometry);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr(fmt::format("granule_rows = {} is not a multiple of 128", rows)),
                      HasSubstr("gate_proj.weight_scale_inv")));
  }
}

TEST(BadStyles, RejectsStackedTensorsOfWrongShape) {
  const auto says = [&](const std::string& name, const std::vector<uint64_t>& shape) {
    const Status status = Refusal(Family::kGptOss, [&](auto&, Tensors& tensors) {
      Reshape(tensors, kStacked + name, shape);
    });
    EXPECT_EQ(status.code(), Code::kBadGeometry) << status.message();
    EXPECT_THAT(status.message(), HasSubstr(kStacked + name));
    return status.message();
  };
  EXPECT_THAT(says("gate_up_proj", {4, 16, 47}),
              AllOf(HasSubstr("[4, 16, 47]"), HasSubstr("[4, 16, 48]")))
      << "an odd axis: no pair at its end";
  EXPECT_THAT(says("gate_up_proj", {4, 48, 16}), HasSubstr("[4, 48, 16]"));
  EXPECT_THAT(says("gate_up_proj", {3, 16, 48}), HasSubstr("[3, 16, 48]"));
  EXPECT_THAT(says("gate_up_proj", {5, 16, 48}), HasSubstr("[5, 16, 48]"));
  EXPECT_THAT(says("gate_up_proj", {4, 16, 24}), HasSubstr("[4, 16, 24]"));
  EXPECT_THAT(says("gate_up_proj_bias", {4, 24}), HasSubstr("[4, 48]"));
  EXPECT_THAT(says("down_proj", {4, 16, 24}), HasSubstr("[4, 24, 16]"));
  EXPECT_THAT(says("down_proj_bias", {4, 17}), HasSubstr("[4, 16]"));
  EXPECT_THAT(says("down_proj_bias", {16}), HasSubstr("[4, 16]"));
}

TEST(BadStyles, RejectsStackedTensorsMissingOrOfWrongType) {
  for (const char* name : {"gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias"}) {
    const Status missing = Refusal(Family::kGptOss, [&](auto&, Tensors& tensors) {
      tensors.erase(std::string(kStacked) + name);
    });
    EXPECT_EQ(missing.code(), Code::kBadGeometry);
    EXPECT_THAT(missing.message(),
                AllOf(HasSubstr(std::string(kStacked) + name + "'"), HasSubstr("missing")));
  }
  const Status mixed = Refusal(Family::kGptOss, [](auto&, Tensors& tensors) {
    Reshape(tensors, std::string(kStacked) + "down_proj_bias", {4, 16}, "F32");
  });
  EXPECT_THAT(mixed.message(), AllOf(HasSubstr("down_proj_bias"), HasSubstr("DTYPE_F32")));
  const Status fp8 = Refusal(Family::kGptOss, [](auto&, Tensors& tensors) {
    Reshape(tensors, "model.layers.0.mlp.experts.gate_up_proj", {4, 16, 48}, "F8_E4M3");
  });
  EXPECT_EQ(fp8.code(), Code::kBadGeometry);
  EXPECT_THAT(fp8.message(),
              AllOf(HasSubstr("gate_up_proj"), HasSubstr("is DTYPE_FP8"),
                    HasSubstr("quantization_config in config.json declares no FP8")));
  const Status packed = Refusal(Family::kGptOss, [](auto&, Tensors& tensors) {
    Reshape(tensors, "model.layers.0.mlp.experts.down_proj", {4, 24, 16}, "U8");
  });
  EXPECT_THAT(packed.message(), AllOf(HasSubstr("U8"), HasSubstr("F8_E4M3")));
}

// A small file that claims many experts costs neither time nor memory.
TEST(BadStyles, RejectsHugeStackedExpertCount) {
  const Status status =
      Refusal(Family::kGptOss, [](ModelShape& shape, auto&) { shape.experts = 1U << 24; });
  EXPECT_EQ(status.code(), Code::kBadGeometry);
  EXPECT_THAT(status.message(), HasSubstr("[16777216, 16, 48]"));
}

// A valid checkpoint with a random change: it is rejected, or reads the same as the slow reference.
TEST(BadStyles, RejectsMutatedCheckpointOrReadsItLikeReference) {
  std::mt19937_64 random(23);
  const auto draw = [&](uint64_t below) { return random() % below; };
  int refused = 0, opened_good = 0;
  for (int round = 0; round < 1500; ++round) {
    const Family family = std::array{Family::kQwen3Fp8, Family::kGptOss, Family::kLlama4,
                                     Family::kDeepSeekV3}[draw(4)];
    ModelShape shape = Good(family);
    shape.layers = 1;
    shape.experts = 2;
    shape.hidden = 5;
    shape.top_k = 1;
    Tensors tensors = MakeTensors(shape, random());
    uint32_t rows = BlockScaled(family) ? 128 : 8;
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors) {
      if (name.find(".experts.") != std::string::npos) names.push_back(name);
    }
    const std::string& name = names[draw(names.size())];
    switch (draw(8)) {
      case 0:
        tensors.erase(name);
        break;
      case 1:
        std::swap(tensors.at(name), tensors.at(names[draw(names.size())]));
        break;
      case 2: {
        std::vector<uint64_t> sizes = tensors.at(name).shape;
        sizes[draw(sizes.size())] = draw(60);
        Reshape(tensors, name, sizes);
        break;
      }
      case 3: {
        std::vector<uint64_t> sizes = tensors.at(name).shape;
        if (draw(2) == 0) {
          sizes.pop_back();
        } else {
          sizes.insert(sizes.begin(), 1 + draw(2));
        }
        Reshape(tensors, name, sizes);
        break;
      }
      case 4:
        Reshape(tensors, name, tensors.at(name).shape,
                std::array{"F32", "BF16", "F8_E4M3", "U8"}[draw(4)]);
        break;
      case 5: {
        testing::Tensor moved = std::move(tensors.at(name));
        tensors.erase(name);
        tensors.emplace(name + (draw(2) == 0 ? "_" : ".1"), std::move(moved));
        break;
      }
      case 6:
        (draw(2) == 0   ? shape.moe_inner
         : draw(2) == 0 ? shape.experts
                        : shape.hidden) +=
            static_cast<uint32_t>(1 + draw(3)) * (draw(2) == 0 ? 128 : 1);
        break;
      default:
        rows = static_cast<uint32_t>(draw(400));
    }
    TempDir dir;
    WriteCheckpoint(dir.path(), shape, tensors, 1);
    const auto opened = Checkpoint::Open(dir.path(), rows, kPage);
    if (!opened.ok()) {
      EXPECT_FALSE(opened.status().message().empty());
      ++refused;
      continue;
    }
    ++opened_good;
    const layout::GeometryView& geometry = (*opened)->geometry();
    const testing::Reference reference(dir.path(), rows);
    for (uint32_t expert = 0; expert < geometry.experts(); ++expert) {
      std::string granules(geometry.granules() * geometry.granule_bytes(), '\0'), want;
      std::string tail(geometry.tail_bytes(), '\0');
      const Checkpoint::Target target{{0, geometry.granules()},
                                      std::as_writable_bytes(std::span(granules)),
                                      {},
                                      std::as_writable_bytes(std::span(tail)),
                                      nullptr};
      ASSERT_TRUE((*opened)->ReadRuns(0, expert, {&target, 1}).ok());
      for (uint32_t g = 0; g < geometry.granules(); ++g) want += reference.Granule(0, expert, g);
      ASSERT_EQ(granules, want) << "round " << round;
      ASSERT_EQ(tail, reference.Tail(0, expert)) << "round " << round;
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(opened_good, 100);
}

TEST(BadStyles, ReportsUnknownModelFamily) {
  const auto style = StyleOf("dbrx", false);
  EXPECT_EQ(style.status().code(), Code::kInvalid);
  EXPECT_THAT(
      style.status().message(),
      AllOf(HasSubstr("dbrx"), HasSubstr("qwen3_moe with block FP8"), HasSubstr("gpt_oss")));
  EXPECT_THAT(StyleOf("db\nrx", false).status().message(), HasSubstr("\"db\\nrx\""));
}

TEST(BadStyles, RejectsRunsAndTailsOutOfRange) {
  TempDir dir;
  const ModelShape shape = Good(Family::kGptOss);
  WriteCheckpoint(dir.path(), shape, MakeTensors(shape, 1), 1);
  const auto opened = Checkpoint::Open(dir.path(), 8, kPage);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const auto code = [&](uint32_t layer, uint32_t expert, layout::Run run, uint64_t tail) {
    std::vector<std::byte> out(run.count * (*opened)->geometry().granule_bytes()), at(tail);
    const Checkpoint::Target target{run, out, {}, at, nullptr};
    return (*opened)->ReadRuns(layer, expert, {&target, 1}).code();
  };
  EXPECT_EQ(code(1, 3, {0, 0}, 32), Code::kOk);
  EXPECT_EQ(code(1, 3, {0, 0}, 31), Code::kInvalid);
  EXPECT_EQ(code(1, 4, {0, 0}, 32), Code::kInvalid);
  EXPECT_EQ(code(2, 0, {0, 0}, 32), Code::kInvalid);
  EXPECT_EQ(code(0, 0, {3, 1}, 32), Code::kInvalid);
}

}  // namespace
}  // namespace tangram::loader
