// Agreement with transformers in fp32 on the same checkpoint (e2e/model/README.md).
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "e2e/engine/model/oracle.h"
#include "e2e/engine/model/test_checkpoint.h"

namespace tangram::model {
namespace {

using nlohmann::json;

// Maximum |logit - logit of transformers|; README.md of e2e/model explains it.
constexpr float kTolerance = 5e-4f;

std::string Sha256(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(in), {});
  unsigned char digest[32];
  unsigned int size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", digest[i]);
    hex += two;
  }
  return hex;
}

std::vector<float> Floats(const std::string& base64) {
  std::vector<unsigned char> bytes(base64.size());
  const int n = EVP_DecodeBlock(bytes.data(), reinterpret_cast<const unsigned char*>(base64.data()),
                                static_cast<int>(base64.size()));
  std::vector<float> out(n < 0 ? 0 : n / 4);  // padding decodes to at most two more bytes
  std::memcpy(out.data(), bytes.data(), out.size() * 4);
  return out;
}

class Golden : public testing::TestWithParam<const char*> {};

TEST_P(Golden, TokensAreEqualAndLogitsClose) {
  const std::string preset = GetParam();
  std::ifstream in(std::string(TANGRAM_SOURCE_DIR) + "/e2e/model/golden/" + preset + ".json");
  const json golden = json::parse(in);
  const Result<std::string> dir = TestCheckpoint(preset);
  ASSERT_TRUE(dir.ok()) << dir.status().message();
  for (const auto& [file, sum] : golden["checkpoint_sha256"].items()) {
    ASSERT_EQ(Sha256(*dir + "/" + file), sum) << file << " is not what transformers was given";
  }
  auto checkpoint = Checkpoint::Open(*dir, TestGranuleRows(preset));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  auto oracle = Oracle::Create(**checkpoint);
  ASSERT_TRUE(oracle.ok()) << oracle.status().message();
  float worst = 0;
  for (const json& c : golden["cases"]) {
    OracleRequest request;
    request.prompt = c["prompt"].get<std::vector<uint32_t>>();
    const auto tokens = c["tokens"].get<std::vector<uint32_t>>();
    request.max_tokens = static_cast<uint32_t>(tokens.size());
    auto result = oracle->Run({&request, 1}, {}, /*keep_logits=*/true);
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ((*result)[0].tokens, tokens) << "prompt of " << request.prompt.size();
    for (const auto& [step, text] : c["logits"].items()) {
      const std::vector<float> want = Floats(text);
      const std::vector<float>& have = (*result)[0].logits[std::stoul(step)];
      ASSERT_EQ(want.size(), have.size());
      for (size_t i = 0; i < want.size(); ++i) {
        worst = std::max(worst, std::fabs(want[i] - have[i]));
      }
    }
  }
  RecordProperty("worst_logit_difference", std::to_string(worst));
  std::printf("%s: largest |logit - transformers| = %.3g\n", preset.c_str(), worst);
  EXPECT_LT(worst, kTolerance);
  EXPECT_GT(worst, 0) << "not one bit differs: is the oracle compared with itself?";
}

INSTANTIATE_TEST_SUITE_P(Presets, Golden,
                         testing::Values("tiny", "odd", "demo", "fp8", "deepseek-v2-lite",
                                         "deepseek-v2", "deepseek-v3"));

}  // namespace
}  // namespace tangram::model
