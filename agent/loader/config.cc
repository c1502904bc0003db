#include "agent/loader/config.h"

#include <fmt/format.h>

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>

#include "agent/loader/styles.h"

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
  const json type = config.value("model_type", json());
  const std::string model = type.is_string() ? type.get<std::string>() : type.dump();
  if (const auto style = StyleOf(model, false); !style.ok()) {
    return Status(style.status().code(), fmt::format("{}: {}", file, style.status().message()));
  }
  // Models of this family have experts in each layer, and no other size of an MLP.
  const bool gpt_oss = model == "gpt_oss";
  v1::Geometry g;
  g.set_model(model);
  const struct {
    void (v1::Geometry::*set)(uint32_t);
    std::initializer_list<const char*> names;
  } fields[] = {
      {&v1::Geometry::set_layers, {"num_hidden_layers"}},
      {&v1::Geometry::set_hidden, {"hidden_size"}},
      {&v1::Geometry::set_moe_inner, {gpt_oss ? "intermediate_size" : "moe_intermediate_size"}},
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
  if (!gpt_oss && config.contains("decoder_sparse_step")) {
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
  if (const json& list = config.value("mlp_only_layers", json::array());
      !gpt_oss && list.is_array()) {
    for (const json& layer : list) {
      if (!layer.is_number_unsigned())
        return Status(Code::kInvalid, file + ": mlp_only_layers is no list of layers");
      dense_layers.insert(layer.get<uint32_t>());
    }
  }
  for (uint32_t layer = 0; layer < g.layers(); ++layer) {
    if (!dense_layers.contains(layer) && (layer + 1) % step == 0) g.add_moe_layers(layer);
  }
  g.set_kv_head_token_bytes(uint64_t{g.head_dim()} * 2 * sizeof(float));
  return g;
}

}  // namespace tangram::loader
