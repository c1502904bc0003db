#include "agent/loader/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "agent/base/model_fields.h"
#include "agent/loader/styles.h"

namespace tangram::loader {
namespace {

using nlohmann::json;

// The layers that have experts.
enum class Moe {
  kAll,
  kSteps,   // every decoder_sparse_step-th, except mlp_only_layers
  kBehind,  // from first_k_dense_replace on, every moe_layer_freq-th
  kListed,  // moe_layers, or every interleave_moe_layer_step-th
};
enum class Heads {
  kTold,     // head_dim, whose default in transformers depends on the model
  kDivided,  // head_dim, or hidden_size divided by the heads
  kLatent,   // kv_lora_rank and qk_rope_head_dim
};

struct Family {
  const char* model;
  const char* inside;  // the object that contains the fields; null: the top level
  const char* inner;
  const char* experts;
  Moe moe;
  Heads heads;
  uint32_t dense = 0;  // default of first_k_dense_replace, as in transformers
};
constexpr const char* kMoeInner = "moe_intermediate_size";
constexpr const char* kInner = "intermediate_size";
constexpr Family kFamilies[] = {
    {"qwen3_moe", nullptr, kMoeInner, "num_experts", Moe::kSteps, Heads::kDivided},
    {"gpt_oss", nullptr, kInner, "num_local_experts", Moe::kAll, Heads::kTold},
    {"mixtral", nullptr, kInner, "num_local_experts", Moe::kAll, Heads::kDivided},
    {"deepseek_v2", nullptr, kMoeInner, "n_routed_experts", Moe::kBehind, Heads::kLatent, 0},
    {"deepseek_v3", nullptr, kMoeInner, "n_routed_experts", Moe::kBehind, Heads::kLatent, 3},
    {"glm4_moe", nullptr, kMoeInner, "n_routed_experts", Moe::kBehind, Heads::kDivided, 1},
    {"llama4_text", nullptr, kInner, "num_local_experts", Moe::kListed, Heads::kTold},
    {"llama4", "text_config", kInner, "num_local_experts", Moe::kListed, Heads::kTold},
};

constexpr uint32_t kMostLayers = 4096;  // as in GeometryView

void FindMoeLayers(const Family& family, Fields* fields, v1::Geometry* g) {
  std::set<uint64_t> dense;
  std::optional<std::set<uint64_t>> listed;
  uint32_t first = 0, step = 1, at = 0;  // layers with layer % step == at
  switch (family.moe) {
    case Moe::kAll:
      break;
    case Moe::kSteps:
      step = fields->PositiveOr("decoder_sparse_step", 1);
      dense = fields->Layers("mlp_only_layers").value_or(dense);
      at = step - 1;
      break;
    case Moe::kBehind:
      first = fields->Count("first_k_dense_replace", family.dense);
      step = fields->PositiveOr("moe_layer_freq", 1);
      break;
    case Moe::kListed:
      listed = fields->Layers("moe_layers");
      step = fields->PositiveOr("interleave_moe_layer_step", 1);
      at = step - 1;
      break;
  }
  for (uint32_t layer = first; layer < g->layers(); ++layer) {
    const bool here = listed ? listed->contains(layer) : layer % step == at;
    if (here && !dense.contains(layer)) g->add_moe_layers(layer);
  }
}

void FindHeads(const Family& family, Fields* fields, v1::Geometry* g) {
  g->set_query_heads(fields->Positive({"num_attention_heads"}));
  if (family.heads == Heads::kLatent) {
    g->set_kv_heads(1);
    g->set_head_dim(fields->Positive({"kv_lora_rank"}) + fields->Positive({"qk_rope_head_dim"}));
    g->set_kv_head_token_bytes(uint64_t{g->head_dim()} * sizeof(float));
    return;
  }
  g->set_kv_heads(fields->Positive({"num_key_value_heads"}));
  g->set_head_dim(family.heads == Heads::kTold
                      ? fields->Positive({"head_dim"})
                      : ReadHeadDim(*fields, g->hidden(), g->query_heads()));
  g->set_kv_head_token_bytes(uint64_t{g->head_dim()} * 2 * sizeof(float));
}

Status Read(const json& config, Declared* out) {
  if (!config.is_object()) return {Code::kInvalid, "not a JSON object"};
  Fields outer(config);
  const std::string model = outer.Text({"model_type"}, "");
  if (model.empty()) outer.Missing("model_type");
  TANGRAM_RETURN_IF_ERROR(outer.status());
  if (const auto style = StyleOf(model, false); !style.ok()) return style.status();
  const Family& family = *std::ranges::find(kFamilies, model, &Family::model);  // as StyleOf
  const json* numbers = &config;
  if (family.inside != nullptr) {
    numbers = outer.Find({family.inside});
    if (numbers == nullptr) {
      outer.Missing(family.inside);
    } else if (!numbers->is_object()) {
      outer.Refuse(family.inside, *numbers, "an object");
    }
    TANGRAM_RETURN_IF_ERROR(outer.status());
  }
  Fields fields(*numbers, family.inside == nullptr ? "" : fmt::format("{}.", family.inside));
  v1::Geometry& g = out->geometry;
  g.set_model(model);
  g.set_layers(fields.Positive({"num_hidden_layers"}, kMostLayers));
  g.set_hidden(fields.Positive({"hidden_size"}));
  g.set_moe_inner(fields.Positive({family.inner}));
  g.set_experts(ReadExperts(fields, family.experts));
  g.set_top_k(ReadTopK(fields, g.experts()));
  FindHeads(family, &fields, &g);
  FindMoeLayers(family, &fields, &g);
  TANGRAM_RETURN_IF_ERROR(fields.status());
  out->fp8 = ReadBlockFp8(outer) || ReadBlockFp8(fields);
  out->tied = outer.Flag("tie_word_embeddings", false) || fields.Flag("tie_word_embeddings", false);
  TANGRAM_RETURN_IF_ERROR(outer.status());
  TANGRAM_RETURN_IF_ERROR(fields.status());
  return StyleOf(model, out->fp8).status();
}

}  // namespace

Result<Declared> DeclaredBy(const std::string& config_json, const std::string& file) {
  Declared out;
  const Status status = Read(json::parse(config_json, nullptr, /*allow_exceptions=*/false), &out);
  if (!status.ok()) return Status(status.code(), fmt::format("{}: {}", file, status.message()));
  return out;
}

}  // namespace tangram::loader
