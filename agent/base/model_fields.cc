#include "agent/base/model_fields.h"

#include <string_view>

namespace tangram {

using nlohmann::json;

uint32_t ReadExperts(Fields& fields, const char* own) {
  Fields::Names names = {own};
  for (const char* name : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (std::string_view(name) != own) names.push_back(name);
  }
  return fields.Positive(names);
}

uint32_t ReadTopK(Fields& fields, uint32_t experts) {
  const uint32_t top_k = fields.Positive({"num_experts_per_tok", "experts_per_token"});
  if (top_k > experts) {
    fields.Fail(fmt::format("num_experts_per_tok = {} of {} experts", top_k, experts));
  }
  return top_k;
}

uint32_t ReadHeadDim(Fields& fields, uint32_t hidden, uint32_t query_heads) {
  const uint32_t told = fields.PositiveOr("head_dim", 0);
  if (told > 0) return told;
  if (hidden >= query_heads) return hidden / query_heads;
  fields.Fail(fmt::format(
      "head_dim is missing, and hidden_size = {} over num_attention_heads = {} is below 1", hidden,
      query_heads));
  return 1;
}

bool ReadBlockFp8(Fields& fields) {
  (void)fields.Text({"dtype", "torch_dtype"}, "");
  if (const json* const old = fields.Find({"compression_config"}); old != nullptr) {
    fields.Fail("compression_config is not supported (quantization_config of block FP8 is)");
  }
  const json* const said = fields.Find({"quantization_config"});
  if (said == nullptr) return false;
  if (!said->is_object()) {
    fields.Refuse("quantization_config", *said, "an object");
    return false;
  }
  Fields inner(*said, fields.prefix() + "quantization_config.");
  const std::string method = inner.Text({"quant_method"}, "");
  if (method.empty()) {
    inner.Missing("quant_method");
  } else if (method != "fp8") {
    inner.Fail(fmt::format("{}quant_method \"{}\" is not supported (fp8)", inner.prefix(), method));
  }
  if (const json* const format = inner.Find({"fmt"}); format != nullptr && *format != "e4m3") {
    inner.Refuse("fmt", *format, "\"e4m3\"");
  }
  const json* const block = inner.Find({"weight_block_size"});
  if (block == nullptr) {
    inner.Missing("weight_block_size");
  } else if (*block != json({128, 128})) {
    inner.Refuse("weight_block_size", *block, "[128,128]");
  }
  if (!inner.status().ok()) fields.Fail(inner.status().message());
  return inner.status().ok();
}

}  // namespace tangram
