#include "agent/loader/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>

#include "agent/loader/styles.h"

namespace tangram::loader {
namespace {

using nlohmann::json;

// Which layers have experts.
enum class Moe {
  kAll,
  kSteps,   // every decoder_sparse_step-th, but for mlp_only_layers
  kBehind,  // from first_k_dense_replace on, every moe_layer_freq-th
  kListed,  // moe_layers, or every interleave_moe_layer_step-th
};
enum class Heads {
  kTold,     // head_dim
  kDivided,  // head_dim, or hidden_size over the heads
  kLatent,   // kv_lora_rank and qk_rope_head_dim
};

struct Family {
  const char* model;
  const char* inside;  // the object that has the numbers; null: they are outermost
  const char* inner;
  const char* experts[2];
  Moe moe;
  Heads heads;
};
constexpr const char* kMoeInner = "moe_intermediate_size";
constexpr Family kFamilies[] = {
    {"qwen3_moe",
     nullptr,
     kMoeInner,
     {"num_experts", "num_local_experts"},
     Moe::kSteps,
     Heads::kTold},
    {"gpt_oss",
     nullptr,
     "intermediate_size",
     {"num_experts", "num_local_experts"},
     Moe::kAll,
     Heads::kTold},
    {"mixtral",
     nullptr,
     "intermediate_size",
     {"num_local_experts", "num_experts"},
     Moe::kAll,
     Heads::kDivided},
    {"deepseek_v2",
     nullptr,
     kMoeInner,
     {"n_routed_experts", "num_local_experts"},
     Moe::kBehind,
     Heads::kLatent},
    {"deepseek_v3",
     nullptr,
     kMoeInner,
     {"n_routed_experts", "num_local_experts"},
     Moe::kBehind,
     Heads::kLatent},
    {"glm4_moe",
     nullptr,
     kMoeInner,
     {"n_routed_experts", "num_local_experts"},
     Moe::kBehind,
     Heads::kTold},
    {"llama4_text",
     nullptr,
     "intermediate_size",
     {"num_local_experts", "num_experts"},
     Moe::kListed,
     Heads::kTold},
    {"llama4",
     "text_config",
     "intermediate_size",
     {"num_local_experts", "num_experts"},
     Moe::kListed,
     Heads::kTold},
};

constexpr uint32_t kMostLayers = 4096;  // as in GeometryView

// Fields of one object; the first error stays.
class Fields {
 public:
  Fields(const json& config, std::string file) : config_(config), file_(std::move(file)) {}

  const Status& status() const { return status_; }
  void Refuse(const std::string& why) {
    if (status_.ok()) status_ = {Code::kInvalid, fmt::format("{}: {}", file_, why)};
  }
  const json* Find(const char* name) const {
    const auto it = config_.find(name);
    return it == config_.end() || it->is_null() ? nullptr : &*it;
  }
  // A positive number under the first of `names` that is there.
  uint32_t Number(std::span<const char* const> names) {
    for (const char* name : names) {
      if (Find(name) != nullptr) return Number(name, 1, 0);
    }
    Refuse(fmt::format("{} is missing", names.front()));
    return 0;
  }
  uint32_t Number(const char* name) { return Number(std::span(&name, 1)); }
  // Of at least so much; `otherwise` if it is not there.
  uint32_t Number(const char* name, uint32_t least, uint32_t otherwise) {
    const json* const value = Find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_number_unsigned() || value->get<uint64_t>() < least ||
        value->get<uint64_t>() > (1U << 24)) {
      Refuse(fmt::format("{} must be a {}number, is {}", name, least > 0 ? "positive " : "",
                         value->dump()));
      return 0;
    }
    return value->get<uint32_t>();
  }
  // Numbers of layers; nothing: it is not there.
  std::optional<std::set<uint32_t>> Layers(const char* name) {
    const json* const list = Find(name);
    if (list == nullptr || !list->is_array()) return std::nullopt;
    std::set<uint32_t> out;
    for (const json& layer : *list) {
      if (!layer.is_number_unsigned()) {
        Refuse(fmt::format("{} is no list of layers", name));
        return std::nullopt;
      }
      out.insert(layer.get<uint32_t>());
    }
    return out;
  }

 private:
  const json& config_;
  const std::string file_;
  Status status_;
};

void FindMoeLayers(const Family& family, Fields* fields, v1::Geometry* g) {
  std::set<uint32_t> dense;
  std::optional<std::set<uint32_t>> listed;
  uint32_t first = 0, step = 1, at = 0;  // layers with layer % step == at
  switch (family.moe) {
    case Moe::kAll:
      break;
    case Moe::kSteps:
      dense = fields->Layers("mlp_only_layers").value_or(dense);
      step = fields->Number("decoder_sparse_step", 1, 1);
      at = step - 1;
      break;
    case Moe::kBehind:
      first = fields->Number("first_k_dense_replace", 0, 0);
      step = fields->Number("moe_layer_freq", 1, 1);
      break;
    case Moe::kListed:
      listed = fields->Layers("moe_layers");
      step = fields->Number("interleave_moe_layer_step", 1, 1);
      at = step - 1;
      break;
  }
  if (!fields->status().ok()) return;
  for (uint32_t layer = first; layer < g->layers(); ++layer) {
    const bool here = listed ? listed->contains(layer) : layer % step == at;
    if (here && !dense.contains(layer)) g->add_moe_layers(layer);
  }
}

void FindHeads(const Family& family, Fields* fields, v1::Geometry* g) {
  g->set_query_heads(fields->Number("num_attention_heads"));
  if (family.heads == Heads::kLatent) {
    g->set_kv_heads(1);
    g->set_head_dim(fields->Number("kv_lora_rank") + fields->Number("qk_rope_head_dim"));
    g->set_kv_head_token_bytes(uint64_t{g->head_dim()} * sizeof(float));
    return;
  }
  g->set_kv_heads(fields->Number("num_key_value_heads"));
  if (family.heads == Heads::kDivided && fields->Find("head_dim") == nullptr &&
      g->query_heads() > 0) {
    g->set_head_dim(g->hidden() / g->query_heads());
  } else {
    g->set_head_dim(fields->Number("head_dim"));
  }
  g->set_kv_head_token_bytes(uint64_t{g->head_dim()} * 2 * sizeof(float));
}

}  // namespace

Result<Declared> DeclaredBy(const std::string& config_json, const std::string& file) {
  const json config = json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return Status(Code::kInvalid, file + ": no JSON object");
  const json type = config.value("model_type", json());
  const std::string model = type.is_string() ? type.get<std::string>() : type.dump();
  if (const auto style = StyleOf(model, false); !style.ok()) {
    return Status(style.status().code(), fmt::format("{}: {}", file, style.status().message()));
  }
  const Family& family = *std::ranges::find(kFamilies, model, &Family::model);  // as StyleOf
  const json* numbers = &config;
  if (family.inside != nullptr) {
    const auto it = config.find(family.inside);
    if (it == config.end() || !it->is_object()) {
      return Status(Code::kInvalid, fmt::format("{}: {} is missing", file, family.inside));
    }
    numbers = &*it;
  }
  Fields fields(*numbers, file);
  Declared out;
  v1::Geometry& g = out.geometry;
  g.set_model(model);
  g.set_layers(fields.Number("num_hidden_layers"));
  g.set_hidden(fields.Number("hidden_size"));
  g.set_moe_inner(fields.Number(family.inner));
  g.set_experts(fields.Number(family.experts));
  g.set_top_k(fields.Number("num_experts_per_tok"));
  FindHeads(family, &fields, &g);
  TANGRAM_RETURN_IF_ERROR(fields.status());
  if (g.top_k() > g.experts()) {
    fields.Refuse(fmt::format("num_experts_per_tok = {} of {} experts", g.top_k(), g.experts()));
  }
  if (g.layers() > kMostLayers) {
    fields.Refuse(
        fmt::format("num_hidden_layers = {}, and the limit is {}", g.layers(), kMostLayers));
  }
  TANGRAM_RETURN_IF_ERROR(fields.status());
  FindMoeLayers(family, &fields, &g);
  if (family.moe == Moe::kBehind) out.ahead = fields.Number("num_nextn_predict_layers", 0, 0);
  TANGRAM_RETURN_IF_ERROR(fields.status());
  return out;
}

}  // namespace tangram::loader
