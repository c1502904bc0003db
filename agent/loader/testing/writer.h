// Writes real checkpoints for tests: config.json and safetensors, one file or shards with an
// index, of each family that the loader reads.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tangram::loader::testing {

struct Tensor {
  std::string dtype;  // as in the file, e.g. "BF16"
  std::vector<uint64_t> shape;
  std::string data;
};
using Tensors = std::map<std::string, Tensor>;

enum class Family {
  kQwen3,
  kQwen3Fp8,
  kGptOss,
  kMixtral,
  kDeepSeekV2,
  kDeepSeekV3,  // block FP8
  kGlm4,
  kLlama4,  // inside a multimodal model
};
// Experts have one scale per block of 128 x 128.
inline bool BlockScaled(Family family) {
  return family == Family::kQwen3Fp8 || family == Family::kDeepSeekV3;
}

struct ModelShape {
  uint32_t layers = 2, hidden = 16, moe_inner = 24, experts = 4, top_k = 2;
  uint32_t query_heads = 4, kv_heads = 2, head_dim = 8, vocab = 32;
  std::string dtype = "BF16";
  std::vector<uint32_t> mlp_only_layers;
  uint32_t decoder_sparse_step = 1;
  bool transformers5 = false;  // num_local_experts, rope_parameters
  Family family = Family::kQwen3;
  std::string scales = "F32";  // of block FP8, whose experts are F8_E4M3
  // For kDeepSeek*, kGlm4: layers before those with experts, and one after the last (multi-token
  // prediction).
  uint32_t first_dense = 0;
  bool ahead = false;
  uint32_t interleave = 1;  // for kLlama4: the layers that have experts
};

uint64_t ElementBytes(const std::string& dtype);
// Every tensor of the model, with bytes that depend on the name, the place and the seed.
Tensors MakeTensors(const ModelShape& shape, uint64_t seed);
std::string ConfigJson(const ModelShape& shape);

// The bytes of one safetensors file.
std::string Serialize(const Tensors& tensors);
// A file of the caller's header (it may be false) and data.
std::string SerializeRaw(const std::string& header, const std::string& data);

void WriteFile(const std::string& path, const std::string& bytes);
// config.json and the tensors over `shards` files (1: model.safetensors without an index).
void WriteCheckpoint(const std::string& directory, const ModelShape& shape, const Tensors& tensors,
                     uint32_t shards);

// A directory that is removed with this object.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace tangram::loader::testing
