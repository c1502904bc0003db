#include "e2e/engine/model/config.h"

#include <fmt/core.h>

#include <cmath>
#include <string>

#include "agent/base/model_fields.h"

namespace tangram::model {
namespace {

using nlohmann::json;

constexpr uint32_t kMostLayers = 4096;

Status Bad(const std::string& message) { return Status(Code::kInvalid, "config.json: " + message); }

Yarn ReadYarn(Fields& rope) {
  Yarn out;
  out.factor = rope.Number("factor", 1);
  out.positions = rope.Positive({"original_max_position_embeddings"});
  out.fast = rope.Number("beta_fast", out.fast);
  out.slow = rope.Number("beta_slow", out.slow);
  out.mscale = rope.Number("mscale", 0);
  out.mscale_all = rope.Number("mscale_all_dim", 0);
  if (!(out.fast > 0) || !(out.slow > 0)) rope.Fail("beta_fast and beta_slow must be above 0");
  if (!(out.factor >= 1)) rope.Fail(fmt::format("factor {} of yarn is below 1", out.factor));
  if (rope.Find({"attention_factor"}) != nullptr) rope.Fail("attention_factor is not computed");
  if (!rope.Flag("truncate", true)) rope.Fail("truncate = false is not computed");
  return out;
}

// Hub files have rope_theta at the top, and rope_scaling; transformers 5 writes rope_parameters.
void ReadRope(Fields& fields, bool yarn, Rope* out) {
  out->theta = fields.Number("rope_theta", out->theta);
  const json* rope = fields.Find({"rope_parameters"});
  if (rope == nullptr) rope = fields.Find({"rope_scaling"});
  if (rope == nullptr) return;
  if (!rope->is_object()) return fields.Fail("rope_parameters is not an object");
  Fields inner(*rope);
  const std::string type = inner.Text({"rope_type", "type"}, "default");
  out->theta = inner.Number("rope_theta", out->theta);
  if (type == "yarn" && yarn) {
    out->yarn = ReadYarn(inner);
  } else if (type != "default") {
    inner.Fail(fmt::format("rope_type \"{}\" of such a model is not computed", type));
  }
  if (!inner.status().ok()) fields.Fail(inner.status().message());
}

void ReadGroupedHeads(Fields& fields, Config* c) {
  c->kv_heads = fields.Positive({"num_key_value_heads"});
  c->head_dim = ReadHeadDim(fields, c->hidden, c->query_heads);
  ReadRope(fields, false, &c->rope);
  c->rope.width = c->head_dim;
  c->score_scale = 1.0f / std::sqrt(static_cast<float>(c->head_dim));
}

void ReadLatentHeads(Fields& fields, Config* c) {
  Latent& l = c->latent.emplace();
  l.kv_rank = fields.Positive({"kv_lora_rank"});
  c->rope.width = fields.Positive({"qk_rope_head_dim"});
  l.q_rank = fields.PositiveOr("q_lora_rank", 0);
  l.nope = fields.Positive({"qk_nope_head_dim"});
  l.value = fields.Positive({"v_head_dim"});
  ReadRope(fields, true, &c->rope);
  c->rope.pairs = true;
  if (!fields.Flag("rope_interleave", true)) fields.Fail("rope_interleave = false is not computed");
  c->kv_heads = 1;
  c->head_dim = l.kv_rank + c->rope.width;
  const double mscale = c->rope.yarn ? c->rope.yarn->ScoreScale() : 1;
  c->score_scale = static_cast<float>(mscale / std::sqrt(1.0 * l.nope + c->rope.width));
}

// Every decoder_sparse_step-th layer has experts, except mlp_only_layers.
void ReadLayersBySteps(Fields& fields, uint32_t, Config* c) {
  const uint32_t step = fields.PositiveOr("decoder_sparse_step", 1);
  for (uint32_t i = 0; i < c->layers; ++i) c->moe_layer[i] = (i + 1) % step == 0;
  for (const uint64_t layer : fields.Layers("mlp_only_layers").value_or(std::set<uint64_t>())) {
    if (layer < c->layers) c->moe_layer[layer] = false;
  }
}

// Every moe_layer_freq-th layer from first_k_dense_replace on has experts, and shared experts.
void ReadLayersBehind(Fields& fields, uint32_t dense, Config* c) {
  const uint32_t first = fields.Count("first_k_dense_replace", dense);
  const uint32_t step = fields.PositiveOr("moe_layer_freq", 1);
  for (uint32_t i = 0; i < c->layers; ++i) c->moe_layer[i] = i >= first && i % step == 0;
  const uint64_t shared = uint64_t{fields.Count("n_shared_experts", 0)} * c->moe_inner;
  if (shared > UINT32_MAX) fields.Fail("n_shared_experts is too large");
  c->shared_inner = static_cast<uint32_t>(shared);
}

void ReadPlainRouter(Fields& fields, Router* out) {
  out->normalise = fields.Flag("norm_topk_prob", false);
}

void ReadGroups(Fields& fields, Router* out) {
  out->groups = fields.PositiveOr("n_group", 1);
  out->groups_kept = fields.PositiveOr("topk_group", out->groups);
}

void ReadV2Router(Fields& fields, Router* out) {
  const std::string method = fields.Text({"topk_method"}, "greedy");
  if (method == "group_limited_greedy") {
    ReadGroups(fields, out);
  } else {
    fields.Want("topk_method", method, std::string("greedy"));
  }
  out->scale = static_cast<float>(fields.Number("routed_scaling_factor", 1));
  fields.Want("scoring_func", fields.Text({"scoring_func"}, "softmax"), std::string("softmax"));
  if (fields.Flag("norm_topk_prob", false)) {
    // DeepSeek's code then divides and does not scale; transformers scales and does not divide.
    fields.Fail("norm_topk_prob is not computed: what it means for deepseek_v2 is not agreed on");
  }
}

void ReadV3Router(Fields& fields, Router* out) {
  ReadGroups(fields, out);
  out->sigmoid = out->bias = true;
  out->group_best = 2;
  out->normalise = fields.Flag("norm_topk_prob", true);
  out->scale = static_cast<float>(fields.Number("routed_scaling_factor", 2.5));
  fields.Want("scoring_func", fields.Text({"scoring_func"}, "sigmoid"), std::string("sigmoid"));
  fields.Want("topk_method", fields.Text({"topk_method"}, "noaux_tc"), std::string("noaux_tc"));
}

struct Family {
  const char* model;  // model_type in config.json
  const char* experts;
  uint32_t dense;  // layers before those with experts, if config.json omits it
  void (*heads)(Fields&, Config*);
  void (*layers)(Fields&, uint32_t dense, Config*);
  void (*router)(Fields&, Router*);
};
constexpr Family kFamilies[] = {
    {"qwen3_moe", "num_experts", 0, ReadGroupedHeads, ReadLayersBySteps, ReadPlainRouter},
    {"deepseek_v2", "n_routed_experts", 0, ReadLatentHeads, ReadLayersBehind, ReadV2Router},
    {"deepseek_v3", "n_routed_experts", 3, ReadLatentHeads, ReadLayersBehind, ReadV3Router},
};

Result<const Family*> FamilyOf(const std::string& model) {
  std::string known;
  for (const Family& family : kFamilies) {
    if (model == family.model) return &family;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", family.model);
  }
  return Bad(fmt::format("model_type \"{}\" is not supported ({})", Printable(model), known));
}

Status CheckSizes(const Config& c) {
  const Router& r = c.router;
  if (c.query_heads % c.kv_heads != 0) {
    return Bad(
        fmt::format("{} query heads do not divide over {} KV heads", c.query_heads, c.kv_heads));
  }
  if (!(c.rope.theta > 1)) return Bad(fmt::format("rope_theta {} is not above 1", c.rope.theta));
  if (c.rope.width % 2 != 0) return Bad(fmt::format("head_dim {} is odd", c.rope.width));
  if (c.experts % r.groups != 0 || r.groups_kept > r.groups ||
      c.experts / r.groups < r.group_best) {
    return Bad(
        fmt::format("n_group {}, topk_group {} of {} experts", r.groups, r.groups_kept, c.experts));
  }
  if (const uint32_t most = c.experts / r.groups * r.groups_kept; c.top_k > most) {
    return Bad(fmt::format("{} experts per token of only {}", c.top_k, most));
  }
  return OkStatus();
}

}  // namespace

Result<Config> ParseConfig(std::string_view config_json) {
  const json root = json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return Bad("not a JSON object");
  Fields fields(root);
  const std::string model = fields.Text({"model_type"}, "");
  if (model.empty()) fields.Missing("model_type");
  if (!fields.status().ok()) return Bad(fields.status().message());
  const auto family = FamilyOf(model);
  if (!family.ok()) return family.status();

  Config c;
  c.layers = fields.Positive({"num_hidden_layers"}, kMostLayers);
  c.hidden = fields.Positive({"hidden_size"});
  c.moe_inner = fields.Positive({"moe_intermediate_size"});
  c.experts = ReadExperts(fields, (*family)->experts);
  c.top_k = ReadTopK(fields, c.experts);
  c.query_heads = fields.Positive({"num_attention_heads"});
  c.moe_layer.resize(c.layers);
  (*family)->heads(fields, &c);
  (*family)->layers(fields, (*family)->dense, &c);
  // The arithmetic follows the dtypes of the checkpoint's tensors; activations are not rounded.
  (void)ReadBlockFp8(fields);
  c.vocab = fields.Positive({"vocab_size"});
  c.dense_inner = fields.Positive({"intermediate_size"});
  c.max_positions = fields.Positive({"max_position_embeddings"});
  c.rms_eps = static_cast<float>(fields.Number("rms_norm_eps", 1e-6));
  c.tied_embeddings = fields.Flag("tie_word_embeddings", false);
  (*family)->router(fields, &c.router);

  for (const char* flag : {"attention_bias", "mlp_bias", "use_sliding_window"}) {
    if (fields.Flag(flag, false)) fields.Fail(fmt::format("{} is not computed", flag));
  }
  fields.Want("hidden_act", fields.Text({"hidden_act"}, "silu"), std::string("silu"));
  if (!fields.status().ok()) return Bad(fields.status().message());
  TANGRAM_RETURN_IF_ERROR(CheckSizes(c));
  return c;
}

}  // namespace tangram::model
