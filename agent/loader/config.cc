#include "agent/loader/config.h"

#include <fmt/format.h>

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>

namespace tangram::loader {
namespace {

using nlohmann::json;

// A positive number under the first of `names` that is there.
Result<uint32_t> Number(const json& config, std::initializer_list<const char*> names,
                        const std::string& file) {
  for (const char* name : names) {
    if (!config.contains(name)) continue;
    const json& value = config[name];
    if (!value.is_number_unsigned() || value.get<uint64_t>() == 0 ||
        value.get<uint64_t>() > (1U << 24)) {
      return Status(Code::kInvalid, fmt::format("{}: {} must be a positive number, is {}", file,
                                                name, value.dump()));
    }
    return value.get<uint32_t>();
  }
  return Status(Code::kInvalid, fmt::format("{}: {} is missing", file, *names.begin()));
}

}  // namespace

Result<v1::Geometry> GeometryOfConfig(const std::string& config_json, const std::string& file) {
  const json config = json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return Status(Code::kInvalid, file + ": no JSON object");
  if (config.value("model_type", json()) != "qwen3_moe") {
    return Status(Code::kInvalid, fmt::format("{}: model_type {} is not supported (qwen3_moe)",
                                              file, config.value("model_type", json()).dump()));
  }
  v1::Geometry g;
  g.set_model("qwen3_moe");
  const struct {
    void (v1::Geometry::*set)(uint32_t);
    std::initializer_list<const char*> names;
  } fields[] = {
      {&v1::Geometry::set_layers, {"num_hidden_layers"}},
      {&v1::Geometry::set_hidden, {"hidden_size"}},
      {&v1::Geometry::set_moe_inner, {"moe_intermediate_size"}},
      {&v1::Geometry::set_experts, {"num_experts", "num_local_experts"}},
      {&v1::Geometry::set_top_k, {"num_experts_per_tok"}},
      {&v1::Geometry::set_query_heads, {"num_attention_heads"}},
      {&v1::Geometry::set_kv_heads, {"num_key_value_heads"}},
      {&v1::Geometry::set_head_dim, {"head_dim"}},
  };
  for (const auto& field : fields) {
    const auto value = Number(config, field.names, file);
    if (!value.ok()) return value.status();
    (g.*field.set)(*value);
  }
  if (g.top_k() > g.experts()) {
    return Status(Code::kInvalid, fmt::format("{}: num_experts_per_tok = {} of {} experts", file,
                                              g.top_k(), g.experts()));
  }
  uint32_t step = 1;
  if (config.contains("decoder_sparse_step")) {
    const auto value = Number(config, {"decoder_sparse_step"}, file);
    if (!value.ok()) return value.status();
    step = *value;
  }
  constexpr uint32_t kMostLayers = 4096;  // as in GeometryView
  if (g.layers() > kMostLayers) {
    return Status(Code::kInvalid, fmt::format("{}: num_hidden_layers = {}, and the limit is {}",
                                              file, g.layers(), kMostLayers));
  }
  std::set<uint32_t> dense_layers;
  if (const json& list = config.value("mlp_only_layers", json::array()); list.is_array()) {
    for (const json& layer : list) {
      if (!layer.is_number_unsigned())
        return Status(Code::kInvalid, file + ": mlp_only_layers is no list of layers");
      dense_layers.insert(layer.get<uint32_t>());
    }
  }
  for (uint32_t layer = 0; layer < g.layers(); ++layer) {
    if (!dense_layers.contains(layer) && (layer + 1) % step == 0) g.add_moe_layers(layer);
  }
  g.set_slab_format(v1::SLAB_FORMAT_GRANULE_MAJOR);
  g.set_kv_head_token_bytes(uint64_t{g.head_dim()} * 2 * sizeof(float));
  return g;
}

}  // namespace tangram::loader
