// No split of the work may change a bit.
#include "e2e/engine/model/oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "e2e/engine/model/test_checkpoint.h"

namespace tangram::model {
namespace {

class Bits : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto dir = TestCheckpoint(GetParam());
    ASSERT_TRUE(dir.ok()) << dir.status().message();
    auto checkpoint = Checkpoint::Open(*dir, TestGranuleRows(GetParam()));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    checkpoint_ = std::move(*checkpoint);
    auto oracle = Oracle::Create(*checkpoint_);
    ASSERT_TRUE(oracle.ok()) << oracle.status().message();
    oracle_ = std::move(*oracle);
    std::mt19937 rng(5);
    for (uint32_t length : {1u, 17u, 70u, 131u}) {
      OracleRequest r;
      for (uint32_t i = 0; i < length; ++i) r.prompt.push_back(rng() % 256);
      r.max_tokens = 8;
      r.sampling.temperature = length % 2 ? 0.8f : 0.0f;
      r.sampling.top_p = 0.9f;
      r.sampling.seed = length;
      requests_.push_back(r);
    }
    for (const OracleRequest& r : requests_) plain_.push_back(Run({&r, 1}, {})[0]);
  }

  std::vector<Generated> Run(std::span<const OracleRequest> requests,
                             const OracleOptions& options) {
    auto result = oracle_.Run(requests, options);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() ? *result : std::vector<Generated>(requests.size());
  }
  void ExpectPlain(const OracleOptions& options) {
    const auto all = Run(requests_, options);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].tokens, plain_[i].tokens) << i;
      EXPECT_EQ(all[i].hashes, plain_[i].hashes) << i;
    }
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  Oracle oracle_;
  std::vector<OracleRequest> requests_;
  std::vector<Generated> plain_;  // each request alone, with the whole prompt in one step
};

TEST_P(Bits, RequestsDiffer) {
  for (size_t i = 1; i < plain_.size(); ++i) EXPECT_NE(plain_[i].hashes, plain_[0].hashes);
  for (const Generated& g : plain_) EXPECT_EQ(g.hashes.size(), 8u);
}

TEST_P(Bits, PrefillChunksAndBatchesChangeNothing) {
  for (uint32_t chunk : {0u, 1u, 3u, 7u, 64u}) {
    OracleOptions options;
    options.prefill_chunk = chunk;
    SCOPED_TRACE(chunk);
    ExpectPlain(options);
  }
}

TEST_P(Bits, PrefillEqualsDecode) {
  // A prompt that includes the generated tokens gives the last hash of decoding.
  const OracleRequest& r = requests_[2];
  OracleRequest again{r.prompt, 1, {}, {}};
  again.prompt.insert(again.prompt.end(), plain_[2].tokens.begin(), plain_[2].tokens.end() - 1);
  EXPECT_EQ(Run({&again, 1}, {})[0].hashes[0], plain_[2].hashes.back());
}

TEST_P(Bits, BlockSizeChangesNothing) {
  for (uint32_t tokens : {1u, 5u, 128u}) {
    OracleOptions options;
    options.block_tokens = tokens;
    SCOPED_TRACE(tokens);
    ExpectPlain(options);
  }
}

// A part of a granule: numbers [rows, lines]; in a row-major slab the rows of a matrix, or (turned)
// its columns.
struct Part {
  size_t rows, lines, element;
  bool turned;
};

// The same granules as matrices: gate [n r, H], up [n r, H], down [H, n r], and their scales
// likewise.
std::vector<std::byte> RowMajorOf(const ExpertRun& run, uint32_t hidden) {
  const size_t r = run.granule_rows, element = SizeOf(run.dtype), n = run.granules;
  std::vector<Part> parts;
  for (const bool down : {false, false, true}) parts.push_back({r, hidden, element, down});
  if (run.dtype == DType::kFp8) {
    for (const bool down : {false, false, true}) {
      parts.push_back({r / kScaleBlock, ScaleBlocks(hidden), sizeof(float), down});
    }
  }
  std::vector<std::byte> out(n * run.granule_bytes);
  size_t at = 0;
  for (const Part& part : parts) {
    const size_t size = part.rows * part.lines * part.element;
    for (size_t g = 0; g < n; ++g) {
      const std::byte* from = static_cast<const std::byte*>(run.data) + g * run.granule_bytes + at;
      std::byte* to = &out[n * at];
      if (!part.turned) std::copy_n(from, size, to + g * size);
      for (size_t i = 0; part.turned && i < part.rows * part.lines; ++i, from += part.element) {
        const size_t row = i / part.lines, line = i % part.lines;
        std::copy_n(from, part.element, to + ((line * n + g) * part.rows + row) * part.element);
      }
    }
    at += size;
  }
  EXPECT_EQ(at, run.granule_bytes);
  return out;
}

TEST_P(Bits, RowMajorSlabsChangeNothing) {
  const auto model = Model::Bind(checkpoint_->config(), checkpoint_->dense());
  ASSERT_TRUE(model.ok()) << model.status().message();
  const uint32_t hidden = checkpoint_->config().hidden, granules = checkpoint_->granules();
  const auto& moe = checkpoint_->config().moe_layer;
  const auto layer = static_cast<uint32_t>(std::find(moe.begin(), moe.end(), true) - moe.begin());
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  std::vector<float> x(3 * hidden);
  for (float& value : x) value = normal(rng);
  for (uint32_t begin = 0; begin < granules; ++begin) {
    ExpertRun run = checkpoint_->Run(layer, begin % 4, begin, granules - begin);
    const std::vector<std::byte> slab = RowMajorOf(run, hidden);
    std::vector<int64_t> sums[2];
    for (std::vector<int64_t>& sum : sums) {
      sum.assign(x.size(), 0);
      std::vector<ExpertRow> rows;
      for (size_t i = 0; i < 3; ++i) rows.push_back({&x[i * hidden], 0.5f, &sum[i * hidden]});
      ASSERT_TRUE(model->ExpertPartial(run, rows).ok());
      run.data = slab.data();
      run.row_major = true;
    }
    EXPECT_EQ(sums[0], sums[1]) << begin;
    EXPECT_NE(sums[0], std::vector<int64_t>(x.size(), 0));
  }
}

TEST_P(Bits, HeadAndGranuleSplitsInAnyOrderChangeNothing) {
  std::mt19937 rng(11);
  const uint32_t heads = checkpoint_->config().query_heads, granules = checkpoint_->granules();
  auto cuts = [&rng](uint32_t size, uint32_t parts) {
    std::vector<uint32_t> out = {0, size};
    while (out.size() <= parts) out.push_back(rng() % (size + 1));  // parts may be empty
    std::sort(out.begin(), out.end());
    return out;
  };
  for (int i = 0; i < 6; ++i) {
    OracleOptions options;
    options.head_bounds = cuts(heads, 1 + i);
    options.granule_bounds = cuts(granules, 6 - i);
    options.reverse = i % 2;
    options.prefill_chunk = i * 5;
    SCOPED_TRACE(i);
    ExpectPlain(options);
  }
  OracleOptions one_by_one;
  for (uint32_t h = 0; h <= heads; ++h) one_by_one.head_bounds.push_back(h);
  for (uint32_t g = 0; g <= granules; ++g) one_by_one.granule_bounds.push_back(g);
  one_by_one.reverse = true;
  ExpectPlain(one_by_one);
}

TEST_P(Bits, ADamagedByteChangesTheHash) {
  // Flips one bit of one expert of the last layer: the hashes prove the bytes.
  const auto& config = checkpoint_->config();
  uint32_t last = config.layers - 1;
  while (!config.moe_layer[last]) --last;
  bool changed = false;
  for (uint32_t e = 0; e < config.experts && !changed; ++e) {
    auto* byte = static_cast<unsigned char*>(
        const_cast<void*>(checkpoint_->Run(last, e, 0, 1).data));  // memory of this test
    byte[1] ^= 1;
    changed = Run(requests_, {})[2].hashes != plain_[2].hashes;
    byte[1] ^= 1;
  }
  EXPECT_TRUE(changed);
  ExpectPlain({});
}

TEST(Oracle, StopTokenEndsGeneration) {
  const auto dir = TestCheckpoint("tiny");
  ASSERT_TRUE(dir.ok()) << dir.status().message();
  auto checkpoint = Checkpoint::Open(*dir, 8);
  ASSERT_TRUE(checkpoint.ok());
  auto oracle = Oracle::Create(**checkpoint);
  ASSERT_TRUE(oracle.ok());
  OracleRequest r{{1, 2, 3, 4, 5, 6, 7, 8}, 12, {}, {}};
  const auto free = oracle->Run({&r, 1}, {});
  ASSERT_TRUE(free.ok());
  r.stop_tokens = {(*free)[0].tokens[3]};
  const auto stopped = oracle->Run({&r, 1}, {});
  ASSERT_TRUE(stopped.ok());
  EXPECT_LE((*stopped)[0].tokens.size(), 4u);
  EXPECT_EQ((*stopped)[0].tokens.back(), r.stop_tokens[0]);
}

// Folders with equivalent configurations in different forms.
class Variants : public testing::TestWithParam<const char*> {};

TEST_P(Variants, MatchLogitsOfCheckpoint) {
  namespace fs = std::filesystem;
  using nlohmann::json;
  const auto base = TestCheckpoint(GetParam());
  ASSERT_TRUE(base.ok()) << base.status().message();
  const OracleRequest request{{72, 101, 108, 108, 111}, 6, {}, {}};
  const auto hashes = [&](const fs::path& dir) {
    auto checkpoint = Checkpoint::Open(dir.string(), TestGranuleRows(GetParam()));
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    if (!checkpoint.ok()) return std::vector<uint64_t>();
    const auto oracle = Oracle::Create(**checkpoint);
    EXPECT_TRUE(oracle.ok()) << oracle.status().message();
    return oracle.ok() ? (*oracle->Run({&request, 1}, {}))[0].hashes : std::vector<uint64_t>();
  };
  const std::vector<uint64_t> want = hashes(*base);
  ASSERT_EQ(want.size(), 6U);
  const fs::path dir = fs::path(testing::TempDir()) / ("variants-of-" + std::string(GetParam()));
  fs::remove_all(dir);
  fs::create_directories(dir);
  for (const auto& file : fs::directory_iterator(*base)) {
    if (file.path().extension() == ".safetensors") {
      fs::create_symlink(file.path(), dir / file.path().filename());
    }
  }
  std::ifstream in(fs::path(*base) / "config.json");
  const json config = json::parse(in);
  const json experts = config.value("n_routed_experts", config.value("num_local_experts", json()));
  for (const json& change :
       {json::object(), json({{"num_nextn_predict_layers", 0}}),
        json({{"num_nextn_predict_layers", nullptr}}), json({{"num_nextn_predict_layers", 2}}),
        json({{"num_experts", experts}}), json({{"mlp_only_layers", nullptr}}),
        json({{"moe_layer_freq", nullptr}, {"decoder_sparse_step", nullptr}})}) {
    json changed = config;
    changed.update(change);
    std::ofstream(dir / "config.json") << changed.dump();
    EXPECT_EQ(hashes(dir), want) << change.dump() << ", shards without an index";
  }
  fs::remove_all(dir);
}

INSTANTIATE_TEST_SUITE_P(Presets, Variants, testing::Values("tiny", "deepseek-v3"));

INSTANTIATE_TEST_SUITE_P(Presets, Bits,
                         testing::Values("tiny", "odd", "deepseek-v2", "deepseek-v3"));

}  // namespace
}  // namespace tangram::model
