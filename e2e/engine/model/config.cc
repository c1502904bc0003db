#include "e2e/engine/model/config.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "e2e/engine/model/tensor.h"

namespace tangram::model {
namespace {

using nlohmann::json;

Status Bad(const std::string& message) { return Status(Code::kInvalid, "config.json: " + message); }

// Collects the first error, so that the reader below is a list of fields.
class Reader {
 public:
  explicit Reader(const json& root) : root_(root) {}

  uint32_t Positive(std::initializer_list<const char*> names) {
    const json* v = Find(names);
    if (v == nullptr) {
      Fail(fmt::format("no field {}", *names.begin()));
      return 1;
    }
    if (!v->is_number_unsigned() || *v == 0 || *v > uint64_t{1} << 24) {
      Fail(fmt::format("{} = {} is not a positive integer below 2^24", *names.begin(), v->dump()));
      return 1;
    }
    return v->get<uint32_t>();
  }
  double Number(const char* name, double fallback) {
    const json* v = Find({name});
    if (v == nullptr) return fallback;
    if (!v->is_number()) {
      Fail(fmt::format("{} = {} is not a number", name, v->dump()));
      return fallback;
    }
    return v->get<double>();
  }
  bool Flag(const char* name, bool fallback) {
    const json* v = Find({name});
    if (v == nullptr) return fallback;
    if (!v->is_boolean()) {
      Fail(fmt::format("{} = {} is neither true nor false", name, v->dump()));
      return fallback;
    }
    return v->get<bool>();
  }
  std::string Text(const char* name, const char* fallback) {
    const json* v = Find({name});
    if (v == nullptr) return fallback;
    if (!v->is_string()) {
      Fail(fmt::format("{} = {} is not a string", name, v->dump()));
      return fallback;
    }
    return v->get<std::string>();
  }
  const json* Find(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      auto it = root_.find(name);
      if (it != root_.end() && !it->is_null()) return &*it;
    }
    return nullptr;
  }
  void Fail(const std::string& message) {
    if (status_.ok()) status_ = Bad(message);
  }
  const Status& status() const { return status_; }

 private:
  const json& root_;
  Status status_;
};

// Hub files have rope_theta at the top; transformers 5 writes rope_parameters.
double RopeTheta(Reader& reader) {
  const json* rope = reader.Find({"rope_parameters", "rope_scaling"});
  if (rope == nullptr) return reader.Number("rope_theta", 10000.0);
  if (!rope->is_object()) {
    reader.Fail("rope_parameters is not an object");
    return 1;
  }
  Reader inner(*rope);
  const std::string type = inner.Text("rope_type", "default");
  if (type != "default") {
    reader.Fail(fmt::format("rope_type \"{}\": only \"default\" is computed", type));
  }
  const double theta = inner.Number("rope_theta", reader.Number("rope_theta", 10000.0));
  if (!inner.status().ok()) reader.Fail(inner.status().message());
  return theta;
}

void ReadMoeLayers(Reader& reader, Config& config) {
  const uint32_t step = reader.Find({"decoder_sparse_step"}) == nullptr
                            ? 1
                            : reader.Positive({"decoder_sparse_step"});
  config.moe_layer.resize(config.layers);
  for (uint32_t i = 0; i < config.layers; ++i) config.moe_layer[i] = (i + 1) % step == 0;
  const json* dense = reader.Find({"mlp_only_layers"});
  if (dense == nullptr) return;
  if (!dense->is_array()) return reader.Fail("mlp_only_layers is not a list");
  for (const json& v : *dense) {
    if (!v.is_number_unsigned() || v >= config.layers) {
      return reader.Fail(
          fmt::format("mlp_only_layers has {}, but there are {} layers", v.dump(), config.layers));
    }
    config.moe_layer[v.get<uint32_t>()] = false;
  }
}

}  // namespace

Result<Config> ParseConfig(std::string_view config_json) {
  const json root = json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return Bad("not a JSON object");
  Reader reader(root);
  const std::string type = reader.Text("model_type", "");
  if (type != "qwen3_moe") return Bad(fmt::format("model_type \"{}\" is not qwen3_moe", type));

  Config c;
  c.layers = reader.Positive({"num_hidden_layers"});
  c.vocab = reader.Positive({"vocab_size"});
  c.hidden = reader.Positive({"hidden_size"});
  c.query_heads = reader.Positive({"num_attention_heads"});
  c.kv_heads = reader.Positive({"num_key_value_heads"});
  c.head_dim = reader.Find({"head_dim"}) == nullptr ? c.hidden / c.query_heads
                                                    : reader.Positive({"head_dim"});
  c.experts = reader.Positive({"num_local_experts", "num_experts"});
  c.top_k = reader.Positive({"num_experts_per_tok"});
  c.moe_inner = reader.Positive({"moe_intermediate_size"});
  c.dense_inner = reader.Positive({"intermediate_size"});
  c.max_positions = reader.Positive({"max_position_embeddings"});
  c.rms_eps = static_cast<float>(reader.Number("rms_norm_eps", 1e-6));
  c.rope_theta = RopeTheta(reader);
  c.norm_topk_prob = reader.Flag("norm_topk_prob", false);
  c.tied_embeddings = reader.Flag("tie_word_embeddings", false);
  ReadMoeLayers(reader, c);

  if (reader.Flag("attention_bias", false)) reader.Fail("attention_bias is not computed");
  if (reader.Flag("use_sliding_window", false)) reader.Fail("use_sliding_window is not computed");
  if (const std::string act = reader.Text("hidden_act", "silu"); act != "silu") {
    reader.Fail(fmt::format("hidden_act \"{}\": only \"silu\" is computed", act));
  }
  if (!reader.status().ok()) return reader.status();
  if (c.query_heads % c.kv_heads != 0) {
    return Bad(
        fmt::format("{} query heads do not divide over {} KV heads", c.query_heads, c.kv_heads));
  }
  if (c.head_dim % 2 != 0) return Bad(fmt::format("head_dim {} is odd", c.head_dim));
  if (c.top_k > c.experts) {
    return Bad(fmt::format("{} experts per token of only {}", c.top_k, c.experts));
  }
  return c;
}

Status CheckExperts(const ExpertBytes& experts) {
  const bool plain = experts.dtype == static_cast<uint32_t>(DType::kF32) ||
                     experts.dtype == static_cast<uint32_t>(DType::kBf16);
  if (!plain) {
    return Status(Code::kInvalid,
                  fmt::format("experts have dtype {} (tangram.v1.DType): only F32 and BF16 are "
                              "computed",
                              experts.dtype));
  }
  const uint64_t bytes = uint64_t{3} * experts.granule_rows * experts.hidden *
                         SizeOf(static_cast<DType>(experts.dtype));
  if (experts.granule_bytes == bytes && experts.tail_bytes == 0) return OkStatus();
  return Status(Code::kInvalid,
                fmt::format("experts have granules of {} bytes and a tail of {}, three matrices "
                            "[{}, {}] take {} and 0: scales and biases are not computed",
                            experts.granule_bytes, experts.tail_bytes, experts.granule_rows,
                            experts.hidden, bytes));
}

}  // namespace tangram::model
