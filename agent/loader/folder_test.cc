// Folders as users have them: each is read as the same checkpoint, or rejected with the reason.
#include "agent/loader/folder.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "agent/device/hash.h"
#include "agent/loader/checkpoint.h"
#include "agent/loader/testing/writer.h"

namespace tangram::loader {
namespace {

using testing::Family;
using ::testing::HasSubstr;
using testing::MakeTensors;
using testing::ModelShape;
using testing::Serialize;
using testing::TempDir;
using testing::Tensors;
using testing::WriteCheckpoint;
using testing::WriteFile;

constexpr char kOne[] = "model-00001-of-00002.safetensors";
constexpr char kTwo[] = "model-00002-of-00002.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr char kPointer[] =
    "version https://git-lfs.github.com/spec/v1\noid sha256:3d74974cebb7\nsize 4302350824\n";

uint32_t RowsOf(const ModelShape& shape) { return testing::BlockScaled(shape.family) ? 128 : 8; }

// A hash of the folder's content, dense tensors by name and then each expert; or the reason of the
// rejection.
std::string ContentOf(const std::string& directory, const ModelShape& shape) {
  const auto opened = Checkpoint::Open(directory, RowsOf(shape), 4096);
  if (!opened.ok()) return opened.status().message();
  const Checkpoint& checkpoint = **opened;
  std::string out;
  for (size_t i = 0; i < checkpoint.dense().size(); ++i) {
    std::string bytes(checkpoint.dense()[i].info.bytes, '\0');
    EXPECT_TRUE(checkpoint.ReadDense(i, std::as_writable_bytes(std::span(bytes))).ok());
    out += checkpoint.dense()[i].name + bytes;
  }
  const layout::GeometryView& geometry = checkpoint.geometry();
  for (const uint32_t layer : geometry.proto().moe_layers()) {
    for (uint32_t expert = 0; expert < geometry.experts(); ++expert) {
      std::string bytes(geometry.granules() * geometry.granule_bytes(), '\0');
      EXPECT_TRUE(checkpoint
                      .ReadGranules(layer, expert, {0, geometry.granules()},
                                    std::as_writable_bytes(std::span(bytes)))
                      .ok());
      out += bytes;
    }
  }
  return fmt::format("{} bytes that hash to {:016x}", out.size(),
                     device::HashOf(std::as_bytes(std::span(out))));
}

class Folder : public ::testing::Test {
 protected:
  void SetUp() override {
    TempDir base;
    WriteCheckpoint(base.path(), shape_, tensors_, 1);
    want_ = ContentOf(base.path(), shape_);
    ASSERT_THAT(want_, HasSubstr("bytes that hash to"));
    WriteCheckpoint(dir_.path(), shape_, tensors_, 2);
  }
  std::string At(const std::string& name) const { return dir_.path() + "/" + name; }
  std::string Content() const { return ContentOf(dir_.path(), shape_); }
  void Remove(const std::string& name) const { std::filesystem::remove(At(name)); }
  void WriteConfig(const std::function<void(nlohmann::json&)>& change) const {
    nlohmann::json config = nlohmann::json::parse(testing::ConfigJson(shape_));
    change(config);
    WriteFile(At("config.json"), config.dump());
  }

  TempDir dir_;
  ModelShape shape_;
  const Tensors tensors_ = MakeTensors(shape_, 1);
  std::string want_;
};

TEST_F(Folder, ReportsGitLfsPointers) {
  const std::string pointer =
      " is a Git LFS pointer, not the weights (83 bytes here, 4302350824 in "
      "the pointer); run git lfs pull where it was cloned";
  WriteFile(At(kTwo), kPointer);
  EXPECT_EQ(Content(), At(kTwo) + pointer);
  WriteFile(At("model.safetensors"), kPointer);
  EXPECT_EQ(Content(), At("model.safetensors") + pointer);
  Remove("model.safetensors");
  WriteFile(At(kIndex), kPointer);
  EXPECT_THAT(Content(), HasSubstr(At(kIndex) + " is a Git LFS pointer, not the file (83 bytes"));
  WriteFile(At("config.json"), kPointer);
  EXPECT_THAT(Content(), HasSubstr(At("config.json") + " is a Git LFS pointer, not the file (83"));
  WriteFile(At("config.json"), "version https://git-lfs.github.com/spec/v1");
  EXPECT_THAT(Content(), HasSubstr("(42 bytes here, nothing in the pointer)"));
}

TEST_F(Folder, PrefersSingleFileOverIndex) {
  Remove(kOne);
  WriteFile(At("model.safetensors"), Serialize(tensors_));
  EXPECT_EQ(Content(), want_);
  Remove(kTwo);
  EXPECT_EQ(Content(), want_);
}

TEST_F(Folder, AcceptsCompleteShardsWithoutIndex) {
  Remove(kIndex);
  EXPECT_EQ(Content(), want_);
  WriteFile(At("model-00001-of-00003.safetensors.bak"), "another");
  WriteFile(At("consolidated-00001-of-00003.safetensors"), "another");
  EXPECT_EQ(Content(), want_);
  WriteFile(At("model-00001-of-00003.safetensors"), "another");
  EXPECT_THAT(Content(), HasSubstr("shards but no index, and they are of 2 and of 3 files"));
  Remove("model-00001-of-00003.safetensors");
  Remove(kOne);
  EXPECT_EQ(Content(), dir_.path() + ": shards but no index, and " + kOne +
                           " is not in the folder (1 of 2 shards are missing): download the "
                           "checkpoint again");
  Remove(kTwo);
  EXPECT_THAT(Content(), HasSubstr(dir_.path() + ": no weights: neither model.safetensors nor"));
}

TEST_F(Folder, ReportsShardsOfIndexMissingFromFolder) {
  Remove(kTwo);
  EXPECT_EQ(Content(), At(kIndex) + ": names " + kTwo +
                           ", which is not in the folder (1 of 2 shards are missing): download the "
                           "checkpoint again, or remove an index of other files");
  std::filesystem::create_symlink("gone", At(kTwo));
  EXPECT_EQ(Content(),
            "cannot open " + At(kTwo) + ": it is a symbolic link to gone, which does not exist");
  WriteFile(At(kIndex), R"({"weight_map": {}})");
  EXPECT_THAT(Content(), HasSubstr(At(kIndex) + ": no weight_map"));
}

TEST_F(Folder, RejectsFileNamesWithControlCharacters) {
  WriteFile(At(kIndex), R"({"weight_map": {"lm_head.weight": "\u0000\nmodel"}})");
  EXPECT_EQ(
      Content(),
      At(kIndex) + R"(: maps tensor lm_head.weight to \u0000\nmodel, which is not a file name)");
}

TEST_F(Folder, SelectsDuplicateTensorByIndex) {
  const std::string twice = std::next(tensors_.begin())->first;  // a tensor of the second shard
  Tensors more;
  for (size_t i = 0; const auto& [name, tensor] : tensors_) {
    if (i++ % 2 == 0) more.emplace(name, tensor);
  }
  ASSERT_TRUE(more.emplace(twice, testing::Tensor{"F32", {1}, "1234"}).second);
  WriteFile(At(kOne), Serialize(more));
  EXPECT_EQ(Content(), want_);
  Remove(kIndex);
  EXPECT_EQ(Content(), At(kTwo) + ": tensor '" + twice + "' is also in " + At(kOne) +
                           ", and no index selects one of them");
}

TEST_F(Folder, IgnoresFilesAbsentFromIndex) {
  WriteFile(At("consolidated.safetensors"), "another");
  WriteFile(At(std::string(kIndex) + ".bak"), "{}");
  EXPECT_EQ(Content(), want_);
}

TEST_F(Folder, ReportsPathsWithoutDoubleSlash) {
  Remove(kTwo);
  const auto opened = Checkpoint::Open(dir_.path() + "/", 8, 4096);
  EXPECT_THAT(opened.status().message(), HasSubstr(At(kIndex) + ": names"));
  WriteFile(At("config.json"), "x");
  WriteCheckpoint(dir_.path(), shape_, tensors_, 1);
  WriteFile(At("config.json"), "x");
  EXPECT_EQ(Checkpoint::Open(dir_.path() + "//", 8, 4096).status().message(),
            At("config.json") + ": not a JSON object");
}

TEST_F(Folder, SkipsTensorsIgnoredByTransformers) {
  Tensors more = tensors_;
  more.emplace("model.layers.0.self_attn.rotary_emb.inv_freq", testing::Tensor{"F32", {1}, "1234"});
  for (const auto& [name, tensor] : tensors_) {
    if (!name.starts_with("model.layers.1.")) continue;
    more.emplace("model.layers.2." + name.substr(15), tensor);
    more.emplace("model.layers.17." + name.substr(15), tensor);
  }
  WriteFile(At("model.safetensors"), Serialize(more));
  EXPECT_EQ(Content(), want_);
  for (const char* said : {"0", "null", "1", "2"}) {
    WriteConfig([&](auto& c) { c["num_nextn_predict_layers"] = nlohmann::json::parse(said); });
    EXPECT_EQ(Content(), want_) << said;
  }
  const auto tie = [](nlohmann::json& config) { config["tie_word_embeddings"] = true; };
  WriteConfig(tie);
  const std::string tied = Content();
  EXPECT_THAT(tied, HasSubstr("bytes that hash to"));
  EXPECT_NE(tied, want_);
  more.erase("lm_head.weight");
  WriteFile(At("model.safetensors"), Serialize(more));
  EXPECT_EQ(Content(), tied) << "lm_head.weight is not used";
}

// As transformers 5 has them in memory: gate before up, experts stacked.
Tensors Stacked(const Tensors& tensors, const ModelShape& shape) {
  const bool mixtral = shape.family == Family::kMixtral;
  Tensors out = tensors;
  const auto join = [&](const std::string& to, const std::string& from,
                        const std::vector<std::string>& parts, const std::string& suffix) {
    testing::Tensor all;
    for (uint32_t e = 0; e < shape.experts; ++e) {
      for (const std::string& part : parts) {
        const auto it = out.find(from + std::to_string(e) + "." + part + suffix);
        if (it == out.end()) return;
        if (all.shape.empty()) {
          all.shape = {shape.experts, parts.size() * it->second.shape[0], it->second.shape[1]};
        }
        all.dtype = it->second.dtype;
        all.data += it->second.data;
        out.erase(it);
      }
    }
    out.emplace(to, all);
  };
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    const std::string to = at + "mlp.experts.";
    const std::string from = mixtral ? at + "block_sparse_moe.experts." : to;
    for (const std::string suffix : {"", "_scale_inv"}) {
      join(to + "gate_up_proj" + suffix, from,
           mixtral ? std::vector<std::string>{"w1", "w3"}
                   : std::vector<std::string>{"gate_proj", "up_proj"},
           ".weight" + suffix);
      join(to + "down_proj" + suffix, from, {mixtral ? "w2" : "down_proj"}, ".weight" + suffix);
    }
  }
  return out;
}

class StackedExperts : public ::testing::TestWithParam<Family> {};

TEST_P(StackedExperts, MatchUnstackedExperts) {
  ModelShape shape;
  shape.family = GetParam();
  shape.hidden = 150;
  if (testing::BlockScaled(shape.family)) shape.moe_inner = 384;
  const Tensors tensors = MakeTensors(shape, 3);
  TempDir dir, stacked;
  WriteCheckpoint(dir.path(), shape, tensors, 1);
  const Tensors joined = Stacked(tensors, shape);
  ASSERT_LT(joined.size(), tensors.size());
  WriteCheckpoint(stacked.path(), shape, joined, 2);
  const std::string want = ContentOf(dir.path(), shape);
  ASSERT_THAT(want, HasSubstr("bytes that hash to"));
  EXPECT_EQ(ContentOf(stacked.path(), shape), want);
  // The error names a layer without the tensor.
  Tensors cut = joined;
  cut.erase("model.layers.1.mlp.experts.down_proj");
  WriteCheckpoint(stacked.path(), shape, cut, 1);
  EXPECT_THAT(ContentOf(stacked.path(), shape),
              HasSubstr("tensor 'model.layers.1.mlp.experts.down_proj' is missing"));
}

INSTANTIATE_TEST_SUITE_P(Loader, StackedExperts,
                         ::testing::Values(Family::kQwen3, Family::kQwen3Fp8, Family::kMixtral,
                                           Family::kDeepSeekV2, Family::kDeepSeekV3,
                                           Family::kGlm4));

}  // namespace
}  // namespace tangram::loader
