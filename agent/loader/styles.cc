#include "agent/loader/styles.h"

#include <fmt/format.h>

#include "agent/base/fields.h"
#include "agent/loader/safetensors.h"

namespace tangram::loader {
namespace {

constexpr TensorRule kQwen3[] = {
    {"gate_proj.weight", Lies::kRows},
    {"up_proj.weight", Lies::kRows},
    {"down_proj.weight", Lies::kColumns},
};
constexpr TensorRule kQwen3Fp8[] = {
    {"gate_proj.weight", Lies::kRows},
    {"up_proj.weight", Lies::kRows},
    {"down_proj.weight", Lies::kColumns},
    {"gate_proj.weight_scale_inv", Lies::kRows, 1, true},
    {"up_proj.weight_scale_inv", Lies::kRows, 1, true},
    {"down_proj.weight_scale_inv", Lies::kColumns, 1, true},
};
constexpr TensorRule kGptOss[] = {
    {"gate_up_proj", Lies::kColumns, 2},
    {"down_proj", Lies::kRows},
    {"gate_up_proj_bias", Lies::kInner, 2},
    {"down_proj_bias", Lies::kTail},
};
constexpr TensorRule kMixtral[] = {
    {"w1.weight", Lies::kRows},
    {"w3.weight", Lies::kRows},
    {"w2.weight", Lies::kColumns},
};
// Gate and up are the two halves of each row.
constexpr TensorRule kLlama4[] = {
    {"gate_up_proj", Lies::kColumns, 1, false, 2, 0},
    {"gate_up_proj", Lies::kColumns, 1, false, 2, 1},
    {"down_proj", Lies::kRows},
};
// Gate's rows come before up's.
constexpr TensorRule kStacked[] = {
    {"gate_up_proj", Lies::kRows, 1, false, 2, 0},
    {"gate_up_proj", Lies::kRows, 1, false, 2, 1},
    {"down_proj", Lies::kColumns},
};
constexpr TensorRule kStackedFp8[] = {
    {"gate_up_proj", Lies::kRows, 1, false, 2, 0},
    {"gate_up_proj", Lies::kRows, 1, false, 2, 1},
    {"down_proj", Lies::kColumns},
    {"gate_up_proj_scale_inv", Lies::kRows, 1, true, 2, 0},
    {"gate_up_proj_scale_inv", Lies::kRows, 1, true, 2, 1},
    {"down_proj_scale_inv", Lies::kColumns, 1, true},
};
constexpr Style kStyles[] = {
    {"qwen3_moe", false, false, kQwen3},
    {"qwen3_moe", true, false, kQwen3Fp8},
    {"gpt_oss", false, true, kGptOss},
    {"mixtral", false, false, kMixtral, "model.layers.", "block_sparse_moe.experts."},
    {"deepseek_v2", false, false, kQwen3},
    {"deepseek_v3", false, false, kQwen3},
    {"deepseek_v3", true, false, kQwen3Fp8},
    {"glm4_moe", false, false, kQwen3},
    {"llama4_text", false, true, kLlama4, "model.layers.", "feed_forward.experts."},
    {"llama4", false, true, kLlama4, "language_model.model.layers.", "feed_forward.experts."},
};

// In addition to those above.
constexpr Style kStackedStyles[] = {
    {"qwen3_moe", false, true, kStacked},   {"qwen3_moe", true, true, kStackedFp8},
    {"mixtral", false, true, kStacked},     {"deepseek_v2", false, true, kStacked},
    {"deepseek_v3", false, true, kStacked}, {"deepseek_v3", true, true, kStackedFp8},
    {"glm4_moe", false, true, kStacked},
};

constexpr uint64_t BlocksOf(uint64_t size, uint64_t block) { return (size + block - 1) / block; }

}  // namespace

std::string Style::Prefix(uint32_t layer, uint32_t expert) const {
  return stacked ? fmt::format("{}{}.{}", layers, layer, experts)
                 : fmt::format("{}{}.{}{}.", layers, layer, experts, expert);
}

Result<const Style*> StyleOf(const std::string& model, bool fp8) {
  std::string known;
  for (const Style& style : kStyles) {
    if (style.model == model && style.fp8 == fp8) return &style;
    known += fmt::format("{}{}{}", known.empty() ? "" : ", ", style.model,
                         style.fp8 ? " with block FP8" : "");
  }
  return Status(Code::kInvalid,
                fmt::format("model_type \"{}\"{} is not supported ({})", Printable(model),
                            fp8 ? " with FP8 weights" : "", known));
}

const Style* StackedStyleOf(const std::string& model, bool fp8) {
  for (const Style& style : kStackedStyles) {
    if (style.model == model && style.fp8 == fp8) return &style;
  }
  return nullptr;
}

std::vector<uint64_t> ShapeOf(const Style& style, const TensorRule& rule, const v1::Geometry& g) {
  const uint64_t block = rule.scale ? kScaleBlock : 1;
  const uint64_t inner = BlocksOf(uint64_t{rule.of} * rule.ways * g.moe_inner(), block);
  const uint64_t hidden = BlocksOf(g.hidden(), block);
  std::vector<uint64_t> out;
  if (style.stacked) out.push_back(g.experts());
  if (rule.lies == Lies::kColumns || rule.lies == Lies::kTail) out.push_back(hidden);
  if (rule.lies != Lies::kTail) out.push_back(inner);
  if (rule.lies == Lies::kRows) out.push_back(hidden);
  return out;
}

Result<std::vector<Section>> SectionsOf(const Style& style, v1::DType scales, v1::Geometry* g) {
  std::vector<Section> out;
  uint64_t at = 0;
  for (const TensorRule& rule : style.tensors) {
    if (rule.lies == Lies::kTail) {
      g->set_expert_tail_bytes(g->hidden() * ElementBytes(g->dtype()));
      continue;
    }
    const uint64_t block = rule.scale ? kScaleBlock : 1;
    if (g->granule_rows() % block != 0) {
      return Status(
          Code::kBadGeometry,
          fmt::format(
              "granule_rows = {} is not a multiple of {}, the rows of a block that '{}' scales",
              g->granule_rows(), block, rule.name));
    }
    Section& section = out.emplace_back();
    section.columns = rule.lies != Lies::kRows;
    section.ways = rule.ways;
    section.element = ElementBytes(rule.scale ? scales : g->dtype());
    section.along = rule.ways * (g->granule_rows() / block);
    section.across = rule.lies == Lies::kInner ? 1 : BlocksOf(g->hidden(), block);
    section.inner = uint64_t{rule.of} * rule.ways * BlocksOf(g->moe_inner(), block);
    section.at = at;
    at += section.bytes();
    if (g->slab_format() != v1::SLAB_FORMAT_ROW_MAJOR) continue;
    v1::Section& plane = *g->add_sections();
    plane.set_lines(section.columns ? section.across : 1);
    plane.set_bytes(section.columns ? section.narrow() : section.bytes());
  }
  g->set_granule_bytes(at);
  return out;
}

}  // namespace tangram::loader
