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

namespace {

bool HasExperts(const ModelShape& shape, uint32_t layer) {
  switch (shape.family) {
    case Family::kDeepSeekV2:
    case Family::kDeepSeekV3:
    case Family::kGlm4:
      return layer >= shape.first_dense;
    case Family::kLlama4:
      return (layer + 1) % shape.interleave == 0;
    case Family::kGptOss:
    case Family::kMixtral:
      return true;
    default:
      return std::ranges::count(shape.mlp_only_layers, layer) == 0 &&
             (layer + 1) % shape.decoder_sparse_step == 0;
  }
}

}  // namespace

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
  const std::string before = shape.family == Family::kLlama4 ? "language_model." : "";
  add(before + "model.embed_tokens.weight", {shape.vocab, hidden});
  add(before + "model.norm.weight", {hidden});
  add(before + "lm_head.weight", {shape.vocab, hidden});
  const uint32_t layers = shape.layers + (shape.ahead ? 1 : 0);
  for (uint32_t l = 0; l < layers; ++l) {
    const std::string layer = fmt::format("{}model.layers.{}.", before, l);
    add(layer + "input_layernorm.weight", {hidden});
    add(layer + "post_attention_layernorm.weight", {hidden});
    add(layer + "self_attn.q_proj.weight", {queries, hidden});
    add(layer + "self_attn.k_proj.weight", {keys, hidden});
    add(layer + "self_attn.v_proj.weight", {keys, hidden});
    add(layer + "self_attn.o_proj.weight", {hidden, queries});
    add(layer + "self_attn.q_norm.weight", {shape.head_dim});
    add(layer + "self_attn.k_norm.weight", {shape.head_dim});
    const std::vector<std::string> names =
        shape.family == Family::kMixtral
            ? std::vector<std::string>{"w1", "w3", "w2"}
            : std::vector<std::string>{"gate_proj", "up_proj", "down_proj"};
    const auto block = [&](const std::string& prefix, bool scaled) {
      for (size_t i = 0; i < 3; ++i) {
        const uint64_t rows = i < 2 ? shape.moe_inner : hidden;
        const uint64_t columns = i < 2 ? hidden : shape.moe_inner;
        const std::string name = prefix + names[i] + ".weight";
        add_as(scaled ? "F8_E4M3" : shape.dtype, name, {rows, columns});
        if (!scaled) continue;
        add_as(shape.scales, name + "_scale_inv", {(rows + 127) / 128, (columns + 127) / 128});
      }
    };
    const uint64_t inner = shape.moe_inner, count = shape.experts;
    if (!HasExperts(shape, l)) {
      block(layer + (shape.family == Family::kLlama4 ? "feed_forward." : "mlp."), false);
      continue;
    }
    std::string experts = layer + "mlp.experts.";
    switch (shape.family) {
      case Family::kGptOss:
        add(layer + "mlp.router.weight", {count, hidden});
        add(experts + "gate_up_proj", {count, hidden, 2 * inner});
        add(experts + "gate_up_proj_bias", {count, 2 * inner});
        add(experts + "down_proj", {count, inner, hidden});
        add(experts + "down_proj_bias", {count, hidden});
        continue;
      case Family::kLlama4:
        experts = layer + "feed_forward.experts.";
        add(layer + "feed_forward.router.weight", {count, hidden});
        add(experts + "gate_up_proj", {count, hidden, 2 * inner});
        add(experts + "down_proj", {count, inner, hidden});
        block(layer + "feed_forward.shared_expert.", false);
        continue;
      case Family::kMixtral:
        experts = layer + "block_sparse_moe.experts.";
        add(layer + "block_sparse_moe.gate.weight", {count, hidden});
        break;
      case Family::kDeepSeekV2:
      case Family::kDeepSeekV3:
      case Family::kGlm4:
        block(layer + "mlp.shared_experts.", BlockScaled(shape.family));
        [[fallthrough]];
      default:
        add(layer + "mlp.gate.weight", {count, hidden});
    }
    for (uint32_t e = 0; e < shape.experts; ++e) {
      block(fmt::format("{}{}.", experts, e), BlockScaled(shape.family));
    }
  }
  return out;
}

std::string ConfigJson(const ModelShape& shape) {
  json config = {{"num_hidden_layers", shape.layers},
                 {"hidden_size", shape.hidden},
                 {"intermediate_size", shape.moe_inner},
                 {"num_experts_per_tok", shape.top_k},
                 {"num_attention_heads", shape.query_heads},
                 {"num_key_value_heads", shape.kv_heads},
                 {"vocab_size", shape.vocab}};
  const auto told_heads = [&] { config["head_dim"] = shape.head_dim; };
  const auto behind = [&] {
    config["moe_intermediate_size"] = shape.moe_inner;
    config["intermediate_size"] = 7 * shape.moe_inner;  // of the layers without experts
    config["n_routed_experts"] = shape.experts;
    config["first_k_dense_replace"] = shape.first_dense;
    if (shape.ahead) config["num_nextn_predict_layers"] = 1;
  };
  std::string model = "qwen3_moe";
  switch (shape.family) {
    case Family::kMixtral:
      model = "mixtral";
      config["num_local_experts"] = shape.experts;
      if (shape.transformers5) config["head_dim"] = nullptr;  // else the field is missing
      break;
    case Family::kDeepSeekV2:
    case Family::kDeepSeekV3:
      model = shape.family == Family::kDeepSeekV2 ? "deepseek_v2" : "deepseek_v3";
      behind();
      config["kv_lora_rank"] = 4 * shape.head_dim;
      config["qk_rope_head_dim"] = shape.head_dim;
      config["moe_layer_freq"] = 1;
      break;
    case Family::kGlm4:
      model = "glm4_moe";
      behind();
      told_heads();
      break;
    case Family::kLlama4: {
      told_heads();
      config["num_local_experts"] = shape.experts;
      config["interleave_moe_layer_step"] = shape.interleave;
      config["intermediate_size_mlp"] = 2 * shape.moe_inner;
      const json all = {{"model_type", "llama4"}, {"text_config", config}};
      return all.dump(2);
    }
    case Family::kGptOss:
      model = "gpt_oss";
      told_heads();
      config["num_local_experts"] = shape.experts;
      break;
    default:
      told_heads();
      config["moe_intermediate_size"] = shape.moe_inner;
      config["mlp_only_layers"] = shape.mlp_only_layers;
      config["decoder_sparse_step"] = shape.decoder_sparse_step;
      config[shape.transformers5 ? "num_local_experts" : "num_experts"] = shape.experts;
  }
  config["model_type"] = model;
  if (BlockScaled(shape.family)) {
    config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  }
  if (shape.transformers5 || shape.family == Family::kGptOss) {
    config["rope_parameters"] = {{"rope_theta", 10000.0}, {"rope_type", "default"}};
  } else {
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
