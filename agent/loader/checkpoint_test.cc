#include "agent/loader/checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <random>

#include "agent/loader/testing/writer.h"

namespace tangram::loader {
namespace {

using testing::MakeTensors;
using testing::ModelShape;
using testing::TempDir;
using testing::Tensors;
using testing::WriteCheckpoint;
using testing::WriteFile;

constexpr uint64_t kPage = 4096;

// Granules by their definition (docs/architecture.md, section 8), element by element: gate rows, up
// rows, then column i of down as row i.
std::string Expected(const Tensors& tensors, const ModelShape& shape, uint32_t layer,
                     uint32_t expert, layout::Run run, uint32_t granule_rows) {
  const std::string prefix =
      "model.layers." + std::to_string(layer) + ".mlp.experts." + std::to_string(expert) + ".";
  const std::string& gate = tensors.at(prefix + "gate_proj.weight").data;
  const std::string& up = tensors.at(prefix + "up_proj.weight").data;
  const std::string& down = tensors.at(prefix + "down_proj.weight").data;
  const uint64_t element = testing::ElementBytes(shape.dtype);
  std::string out;
  for (uint32_t g = run.start; g < run.start + run.count; ++g) {
    for (const std::string* matrix : {&gate, &up}) {
      for (uint32_t i = g * granule_rows; i < (g + 1) * granule_rows; ++i) {
        out += matrix->substr(i * shape.hidden * element, shape.hidden * element);
      }
    }
    for (uint32_t i = g * granule_rows; i < (g + 1) * granule_rows; ++i) {
      for (uint32_t h = 0; h < shape.hidden; ++h) {
        out += down.substr((uint64_t{h} * shape.moe_inner + i) * element, element);
      }
    }
  }
  return out;
}

std::string AsString(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct Case {
  std::string dtype;
  uint32_t shards;
  uint32_t granule_rows;
  bool transformers5;
};
class Reads : public ::testing::TestWithParam<Case> {};

TEST_P(Reads, ReadsEveryGranuleAndDenseTensor) {
  TempDir dir;
  ModelShape shape;
  shape.dtype = GetParam().dtype;
  shape.transformers5 = GetParam().transformers5;
  const Tensors tensors = MakeTensors(shape, 1);
  WriteCheckpoint(dir.path(), shape, tensors, GetParam().shards);
  const auto opened = Checkpoint::Open(dir.path(), GetParam().granule_rows, kPage);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const Checkpoint& checkpoint = **opened;
  const layout::GeometryView& geometry = checkpoint.geometry();
  ASSERT_EQ(geometry.granules(), shape.moe_inner / GetParam().granule_rows);
  ASSERT_EQ(geometry.granule_bytes(),
            3ULL * GetParam().granule_rows * shape.hidden * testing::ElementBytes(shape.dtype));
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (uint32_t expert = 0; expert < shape.experts; ++expert) {
      for (uint32_t start = 0; start < geometry.granules(); ++start) {
        for (uint32_t count = 1; start + count <= geometry.granules(); ++count) {
          std::vector<std::byte> bytes(count * geometry.granule_bytes());
          const Status read = checkpoint.ReadGranules(layer, expert, {start, count}, bytes);
          ASSERT_TRUE(read.ok()) << read.message();
          ASSERT_EQ(AsString(bytes), Expected(tensors, shape, layer, expert, {start, count},
                                              GetParam().granule_rows))
              << "layer " << layer << " expert " << expert << " granules " << start << "+" << count;
        }
      }
    }
  }
  uint64_t next = 0;
  size_t index = 0;
  for (const auto& [name, tensor] : tensors) {  // by name, as in the dense region
    if (name.find(".experts.") != std::string::npos) continue;
    ASSERT_LT(index, checkpoint.dense().size());
    const DenseTensor& dense = checkpoint.dense()[index];
    EXPECT_EQ(dense.name, name);
    EXPECT_EQ(dense.offset, next);
    std::vector<std::byte> bytes(tensor.data.size());
    ASSERT_TRUE(checkpoint.ReadDense(index, bytes).ok());
    EXPECT_EQ(AsString(bytes), tensor.data);
    EXPECT_EQ(geometry.proto().dense_bytes() >= next + bytes.size(), true);
    next = (next + bytes.size() + 255) / 256 * 256;
    ++index;
  }
  EXPECT_EQ(index, checkpoint.dense().size());
  EXPECT_LE(geometry.proto().dense_bytes(), next);
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, Reads,
                         ::testing::Values(Case{"BF16", 1, 8, false}, Case{"BF16", 3, 4, true},
                                           Case{"F32", 1, 24, true}, Case{"F32", 5, 1, false}));

TEST(Checkpoint, RejectsRunsOutOfRange) {
  TempDir dir;
  const ModelShape shape;
  WriteCheckpoint(dir.path(), shape, MakeTensors(shape, 1), 1);
  const auto opened = Checkpoint::Open(dir.path(), 8, kPage);
  ASSERT_TRUE(opened.ok());
  const uint64_t unit = (*opened)->geometry().granule_bytes();
  std::vector<std::byte> bytes(unit);
  EXPECT_EQ((*opened)->ReadGranules(0, 0, {3, 1}, bytes).code(), Code::kInvalid);
  EXPECT_EQ((*opened)->ReadGranules(0, 4, {0, 1}, bytes).code(), Code::kInvalid);
  EXPECT_EQ((*opened)->ReadGranules(2, 0, {0, 1}, bytes).code(), Code::kInvalid);
  EXPECT_EQ((*opened)->ReadGranules(0, 0, {0, 2}, bytes).code(), Code::kInvalid);
  EXPECT_EQ((*opened)->ReadGranules(0, 0, {0xffffffff, 1}, bytes).code(), Code::kInvalid);
  EXPECT_EQ((*opened)->ReadDense(1000, bytes).code(), Code::kInvalid);
}

// Applies `change` to a valid checkpoint and expects a rejection whose message contains all of
// `says`.
void ExpectRefused(const std::function<void(const std::string&, ModelShape&, Tensors&)>& change,
                   Code code, const std::vector<std::string>& says, uint32_t granule_rows = 8) {
  TempDir dir;
  ModelShape shape;
  Tensors tensors = MakeTensors(shape, 1);
  change(dir.path(), shape, tensors);
  if (!std::filesystem::exists(dir.path() + "/config.json")) {
    WriteCheckpoint(dir.path(), shape, tensors, 1);
  }
  const auto opened = Checkpoint::Open(dir.path(), granule_rows, kPage);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), code) << opened.status().message();
  for (const std::string& part : says) {
    EXPECT_NE(opened.status().message().find(part), std::string::npos)
        << "wanted '" << part << "' in: " << opened.status().message();
  }
}

TEST(BadCheckpoint, RejectsShapesContradictingGeometry) {
  ExpectRefused([](auto&, ModelShape& shape, auto&) { shape.moe_inner = 32; }, Code::kBadGeometry,
                {"model.layers.0.mlp.experts.0.gate_proj.weight", "[24, 16]", "[32, 16]"});
  ExpectRefused([](auto&, ModelShape& shape, auto&) { shape.hidden = 8; }, Code::kBadGeometry,
                {"gate_proj", "[24, 16]", "[24, 8]"});
  // Down is not transposed, which equal sizes would hide: the message has both sizes.
  ExpectRefused(
      [](auto&, auto&, Tensors& tensors) {
        tensors.at("model.layers.1.mlp.experts.2.down_proj.weight").shape = {24, 16};
      },
      Code::kBadGeometry,
      {"model.layers.1.mlp.experts.2.down_proj.weight", "[24, 16]", "[16, 24]"});
}

TEST(BadCheckpoint, RejectsFewerExpertsOrLayersThanDeclared) {
  ExpectRefused([](auto&, ModelShape& shape, auto&) { shape.experts = 5; }, Code::kBadGeometry,
                {"model.layers.0.mlp.experts.4.gate_proj.weight"});
  ExpectRefused([](auto&, ModelShape& shape, auto&) { shape.layers = 3; }, Code::kBadGeometry,
                {"model.layers.2"});
}

// A tensor of a routed expert outside the declared geometry must not pass as a dense weight: every
// rank would hold it.
TEST(BadCheckpoint, RejectsMoreExpertsThanDeclared) {
  ExpectRefused([](auto&, ModelShape& shape, auto&) { shape.experts = 3; }, Code::kBadGeometry,
                {"model.layers.0.mlp.experts.3."});
}

TEST(BadCheckpoint, RejectsExpertsOfTwoTypes) {
  ExpectRefused(
      [](auto&, auto&, Tensors& tensors) {
        auto& tensor = tensors.at("model.layers.0.mlp.experts.1.up_proj.weight");
        tensor.dtype = "F32";
        tensor.data.resize(tensor.data.size() * 2);
      },
      Code::kBadGeometry, {"model.layers.0.mlp.experts.1.up_proj.weight", "F32", "BF16"});
}

TEST(BadCheckpoint, RejectsGranuleRowsNotDividingInnerSize) {
  ExpectRefused([](auto&, auto&, auto&) {}, Code::kBadGeometry, {"granule_rows", "7", "24"}, 7);
}

TEST(BadCheckpoint, RejectsMissingOrTruncatedFiles) {
  ExpectRefused([](const std::string& dir, const ModelShape& shape,
                   const Tensors&) { WriteFile(dir + "/config.json", testing::ConfigJson(shape)); },
                Code::kInvalid, {"model.safetensors"});
  ExpectRefused(
      [](const std::string& dir, const ModelShape& shape, const Tensors& tensors) {
        WriteCheckpoint(dir, shape, tensors, 1);
        const std::string path = dir + "/model.safetensors";
        std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
      },
      Code::kInvalid, {"model.safetensors", "truncated"});
  ExpectRefused(
      [](const std::string& dir, const ModelShape& shape, const Tensors& tensors) {
        WriteCheckpoint(dir, shape, tensors, 3);
        std::filesystem::remove(dir + "/model-00002-of-00003.safetensors");
      },
      Code::kInvalid, {"model-00002-of-00003.safetensors"});
}

TEST(BadCheckpoint, RejectsInvalidIndex) {
  ExpectRefused(
      [](const std::string& dir, const ModelShape& shape, const Tensors& tensors) {
        WriteCheckpoint(dir, shape, tensors, 2);
        WriteFile(dir + "/model.safetensors.index.json",
                  R"({"weight_map":{"lm_head.weight":"model-00002-of-00002.safetensors"}})");
      },
      Code::kInvalid, {"lm_head.weight", "model-00002-of-00002.safetensors"});
  ExpectRefused(
      [](const std::string& dir, const ModelShape& shape, const Tensors& tensors) {
        WriteCheckpoint(dir, shape, tensors, 2);
        WriteFile(dir + "/model.safetensors.index.json",
                  R"({"weight_map":{"lm_head.weight":"../secret.safetensors"}})");
      },
      Code::kInvalid, {"../secret.safetensors"});
  ExpectRefused(
      [](const std::string& dir, const ModelShape& shape, const Tensors& tensors) {
        WriteCheckpoint(dir, shape, tensors, 2);
        WriteFile(dir + "/model.safetensors.index.json", R"({"weights":1})");
      },
      Code::kInvalid, {"weight_map"});
}

TEST(Checkpoint, DetectsRemovedReplacedOrTruncatedFiles) {
  TempDir dir;
  const ModelShape shape;
  WriteCheckpoint(dir.path(), shape, MakeTensors(shape, 1), 2);
  const auto opened = Checkpoint::Open(dir.path(), 8, kPage);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_TRUE((*opened)->StillReadable().ok());
  const std::string shard = dir.path() + "/model-00002-of-00002.safetensors";
  ASSERT_TRUE(std::filesystem::exists(shard));
  const auto complaint = [&] { return (*opened)->StillReadable().message(); };
  std::filesystem::rename(shard, shard + ".away");
  EXPECT_EQ(complaint(), shard + ": No such file or directory");
  std::filesystem::copy_file(shard + ".away", shard);
  EXPECT_EQ(complaint(), shard + ": the file was replaced");
  std::filesystem::rename(shard + ".away", shard);
  EXPECT_EQ(complaint(), "");
  const auto size = std::filesystem::file_size(shard);
  std::filesystem::resize_file(shard, size - 1);
  EXPECT_EQ(complaint(), fmt::format("{}: has {} bytes, had {} bytes when it was opened", shard,
                                     size - 1, size));
}

TEST(Config, LayersWithoutExpertsAreDense) {
  TempDir dir;
  ModelShape shape;
  shape.mlp_only_layers = {0};
  WriteCheckpoint(dir.path(), shape, MakeTensors(shape, 1), 1);
  const auto opened = Checkpoint::Open(dir.path(), 8, kPage);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ((*opened)->geometry().ordinal(0), -1);
  EXPECT_EQ((*opened)->geometry().ordinal(1), 0);
  const auto& dense = (*opened)->dense();
  EXPECT_TRUE(std::any_of(dense.begin(), dense.end(), [](const DenseTensor& t) {
    return t.name == "model.layers.0.mlp.down_proj.weight";
  }));
}

}  // namespace
}  // namespace tangram::loader
