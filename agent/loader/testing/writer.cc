#include "agent/loader/testing/writer.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

namespace tangram::loader::testing {

using nlohmann::json;

uint64_t ElementBytes(const std::string& dtype) {
  if (dtype == "F32" || dtype == "I32") return 4;
  if (dtype == "BF16" || dtype == "F16") return 2;
  return 1;
}

Tensors MakeTensors(const ModelShape& shape, uint64_t seed) {
  Tensors out;
  const auto add_as = [&](const std::string& dtype, const std::string& name,
                          std::vector<uint64_t> sizes) {
    Tensor tensor{dtype, std::move(sizes), {}};
    uint64_t bytes = ElementBytes(dtype);
    for (const uint64_t size : tensor.shape) bytes *= size;
    std::mt19937_64 random(std::hash<std::string>{}(name) ^ seed);
    tensor.data.resize(bytes);
    for (char& c : tensor.data) c = static_cast<char>(random());
    out.emplace(name, std::move(tensor));
  };
  const auto add = [&](const std::string& name, std::vector<uint64_t> sizes) {
    add_as(shape.dtype, name, std::move(sizes));
  };
  const uint64_t hidden = shape.hidden;
  const uint64_t queries = uint64_t{shape.query_heads} * shape.head_dim;
  const uint64_t keys = uint64_t{shape.kv_heads} * shape.head_dim;
  add("model.embed_tokens.weight", {shape.vocab, hidden});
  add("model.norm.weight", {hidden});
  add("lm_head.weight", {shape.vocab, hidden});
  for (uint32_t l = 0; l < shape.layers; ++l) {
    const std::string layer = fmt::format("model.layers.{}.", l);
    add(layer + "input_layernorm.weight", {hidden});
    add(layer + "post_attention_layernorm.weight", {hidden});
    add(layer + "self_attn.q_proj.weight", {queries, hidden});
    add(layer + "self_attn.k_proj.weight", {keys, hidden});
    add(layer + "self_attn.v_proj.weight", {keys, hidden});
    add(layer + "self_attn.o_proj.weight", {hidden, queries});
    add(layer + "self_attn.q_norm.weight", {shape.head_dim});
    add(layer + "self_attn.k_norm.weight", {shape.head_dim});
    const bool plain = std::find(shape.mlp_only_layers.begin(), shape.mlp_only_layers.end(), l) !=
                           shape.mlp_only_layers.end() ||
                       (l + 1) % shape.decoder_sparse_step != 0;
    if (shape.family == Family::kGptOss) {
      const std::string experts = layer + "mlp.experts.";
      const uint64_t inner = shape.moe_inner, count = shape.experts;
      add(layer + "mlp.router.weight", {count, hidden});
      add(experts + "gate_up_proj", {count, hidden, 2 * inner});
      add(experts + "gate_up_proj_bias", {count, 2 * inner});
      add(experts + "down_proj", {count, inner, hidden});
      add(experts + "down_proj_bias", {count, hidden});
      continue;
    }
    std::vector<std::string> blocks = {layer + "mlp."};
    if (!plain) {
      add(layer + "mlp.gate.weight", {shape.experts, hidden});
      blocks.clear();
      for (uint32_t e = 0; e < shape.experts; ++e) {
        blocks.push_back(fmt::format("{}mlp.experts.{}.", layer, e));
      }
    }
    for (const std::string& block : blocks) {
      if (!plain && shape.family == Family::kQwen3Fp8) {
        const auto add_scaled = [&](const std::string& name, uint64_t rows, uint64_t columns) {
          add_as("F8_E4M3", block + name, {rows, columns});
          add_as(shape.scales, block + name + "_scale_inv",
                 {(rows + 127) / 128, (columns + 127) / 128});
        };
        add_scaled("gate_proj.weight", shape.moe_inner, hidden);
        add_scaled("up_proj.weight", shape.moe_inner, hidden);
        add_scaled("down_proj.weight", hidden, shape.moe_inner);
        continue;
      }
      add(block + "gate_proj.weight", {shape.moe_inner, hidden});
      add(block + "up_proj.weight", {shape.moe_inner, hidden});
      add(block + "down_proj.weight", {hidden, shape.moe_inner});
    }
  }
  return out;
}

std::string ConfigJson(const ModelShape& shape) {
  const bool gpt_oss = shape.family == Family::kGptOss;
  json config = {{"model_type", gpt_oss ? "gpt_oss" : "qwen3_moe"},
                 {"num_hidden_layers", shape.layers},
                 {"hidden_size", shape.hidden},
                 {"intermediate_size", shape.moe_inner},
                 {"num_experts_per_tok", shape.top_k},
                 {"num_attention_heads", shape.query_heads},
                 {"num_key_value_heads", shape.kv_heads},
                 {"head_dim", shape.head_dim},
                 {"vocab_size", shape.vocab}};
  if (!gpt_oss) {
    config["moe_intermediate_size"] = shape.moe_inner;
    config["mlp_only_layers"] = shape.mlp_only_layers;
    config["decoder_sparse_step"] = shape.decoder_sparse_step;
  }
  if (shape.transformers5 || gpt_oss) {
    config["num_local_experts"] = shape.experts;
    config["rope_parameters"] = {{"rope_theta", 10000.0}, {"rope_type", "default"}};
  } else {
    config["num_experts"] = shape.experts;
    config["rope_theta"] = 10000.0;
  }
  return config.dump(2);
}

std::string SerializeRaw(const std::string& header, const std::string& data) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return out + header + data;
}

std::string Serialize(const Tensors& tensors) {
  json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.data.size()}}};
    data += tensor.data;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // as the reference writer pads
  return SerializeRaw(text, data);
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path);
}

void WriteCheckpoint(const std::string& directory, const ModelShape& shape, const Tensors& tensors,
                     uint32_t shards) {
  WriteFile(directory + "/config.json", ConfigJson(shape));
  if (shards == 1) {
    WriteFile(directory + "/model.safetensors", Serialize(tensors));
    return;
  }
  std::vector<Tensors> parts(shards);
  json index = {{"metadata", json::object()}, {"weight_map", json::object()}};
  const auto file = [&](size_t i) {
    return fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards);
  };
  size_t next = 0;
  for (const auto& [name, tensor] : tensors) {
    const size_t shard = next++ % shards;
    parts[shard].emplace(name, tensor);
    index["weight_map"][name] = file(shard);
  }
  for (size_t i = 0; i < shards; ++i) WriteFile(directory + "/" + file(i), Serialize(parts[i]));
  WriteFile(directory + "/model.safetensors.index.json", index.dump());
}

TempDir::TempDir() {
  std::string name = (std::filesystem::temp_directory_path() / "tangram-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace tangram::loader::testing
