// A small Qwen3-MoE checkpoint on disk, random from a seed, for the world tests.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace tangram::engine::testing {

struct ModelSpec {
  uint32_t layers = 3, hidden = 32, vocab = 97, experts = 10, top_k = 3, query_heads = 6,
           kv_heads = 2, head_dim = 16, moe_inner = 48, dense_inner = 40, granule_rows = 8,
           positions = 512;
  int dense_layer = 1;  // the one layer without experts; -1: none
};

// Writes config.json, the index and one shard into `dir`.
inline void WriteCheckpoint(const std::filesystem::path& dir, const ModelSpec& m, uint32_t seed) {
  std::filesystem::create_directories(dir);
  std::map<std::string, std::vector<uint64_t>> shapes;
  const uint64_t h = m.hidden, q = uint64_t{m.query_heads} * m.head_dim,
                 kv = uint64_t{m.kv_heads} * m.head_dim;
  shapes["model.embed_tokens.weight"] = {m.vocab, h};
  shapes["lm_head.weight"] = {m.vocab, h};
  shapes["model.norm.weight"] = {h};
  for (uint32_t l = 0; l < m.layers; ++l) {
    const std::string at = "model.layers." + std::to_string(l) + ".";
    shapes[at + "input_layernorm.weight"] = {h};
    shapes[at + "post_attention_layernorm.weight"] = {h};
    shapes[at + "self_attn.q_proj.weight"] = {q, h};
    shapes[at + "self_attn.k_proj.weight"] = {kv, h};
    shapes[at + "self_attn.v_proj.weight"] = {kv, h};
    shapes[at + "self_attn.o_proj.weight"] = {h, q};
    shapes[at + "self_attn.q_norm.weight"] = {m.head_dim};
    shapes[at + "self_attn.k_norm.weight"] = {m.head_dim};
    const auto mlp = [&](const std::string& name, uint64_t inner) {
      shapes[at + name + "gate_proj.weight"] = {inner, h};
      shapes[at + name + "up_proj.weight"] = {inner, h};
      shapes[at + name + "down_proj.weight"] = {h, inner};
    };
    if (static_cast<int>(l) == m.dense_layer) {
      mlp("mlp.", m.dense_inner);
      continue;
    }
    shapes[at + "mlp.gate.weight"] = {m.experts, h};
    for (uint32_t e = 0; e < m.experts; ++e) {
      mlp("mlp.experts." + std::to_string(e) + ".", m.moe_inner);
    }
  }
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.f, 0.2f);
  nlohmann::json header, index;
  std::vector<uint16_t> values;
  for (const auto& [name, shape] : shapes) {
    uint64_t count = 1;
    for (const uint64_t d : shape) count *= d;
    const uint64_t begin = values.size() * 2;
    for (uint64_t i = 0; i < count; ++i) {
      const float value = (shape.size() == 1 ? 1.f : 0.f) + normal(random);
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      values.push_back(static_cast<uint16_t>(bits >> 16));
    }
    header[name] = {
        {"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {begin, begin + count * 2}}};
    index["weight_map"][name] = "model-00001-of-00001.safetensors";
  }
  index["metadata"]["total_size"] = values.size() * 2;
  std::string text = header.dump();
  while (text.size() % 8 != 0) text += ' ';
  const uint64_t size = text.size();
  std::ofstream shard(dir / "model-00001-of-00001.safetensors", std::ios::binary);
  shard.write(reinterpret_cast<const char*>(&size), 8);
  shard << text;
  shard.write(reinterpret_cast<const char*>(values.data()), values.size() * 2);
  std::ofstream(dir / "model.safetensors.index.json") << index.dump();
  nlohmann::json config = {{"architectures", {"Qwen3MoeForCausalLM"}},
                           {"model_type", "qwen3_moe"},
                           {"hidden_act", "silu"},
                           {"hidden_size", m.hidden},
                           {"vocab_size", m.vocab},
                           {"num_hidden_layers", m.layers},
                           {"num_attention_heads", m.query_heads},
                           {"num_key_value_heads", m.kv_heads},
                           {"head_dim", m.head_dim},
                           {"num_experts", m.experts},
                           {"num_experts_per_tok", m.top_k},
                           {"moe_intermediate_size", m.moe_inner},
                           {"intermediate_size", m.dense_inner},
                           {"decoder_sparse_step", 1},
                           {"mlp_only_layers", nlohmann::json::array()},
                           {"max_position_embeddings", m.positions},
                           {"rms_norm_eps", 1e-6},
                           {"rope_theta", 10000.0},
                           {"norm_topk_prob", true},
                           {"attention_bias", false},
                           {"tie_word_embeddings", false},
                           {"torch_dtype", "bfloat16"}};
  if (m.dense_layer >= 0) config["mlp_only_layers"].push_back(m.dense_layer);
  std::ofstream(dir / "config.json") << config.dump();
}

}  // namespace tangram::engine::testing
