// Folders of real checkpoints, of each family, with a changed field of config.json or a changed
// line of the index. They must be rejected in one line that names the file, or every granule must
// be readable.
#include <fmt/format.h>
#include <fuzzer/FuzzedDataProvider.h>

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "agent/loader/checkpoint.h"
#include "agent/loader/folder.h"
#include "agent/loader/testing/writer.h"

namespace {

using nlohmann::json;
using tangram::loader::Checkpoint;
using tangram::loader::testing::Family;

constexpr const char* kFields[] = {"model_type",
                                   "num_hidden_layers",
                                   "hidden_size",
                                   "intermediate_size",
                                   "intermediate_size_mlp",
                                   "moe_intermediate_size",
                                   "num_experts",
                                   "num_local_experts",
                                   "n_routed_experts",
                                   "num_experts_per_tok",
                                   "num_attention_heads",
                                   "num_key_value_heads",
                                   "head_dim",
                                   "kv_lora_rank",
                                   "qk_rope_head_dim",
                                   "moe_layer_freq",
                                   "first_k_dense_replace",
                                   "num_nextn_predict_layers",
                                   "mlp_only_layers",
                                   "decoder_sparse_step",
                                   "interleave_moe_layer_step",
                                   "moe_layers",
                                   "tie_word_embeddings",
                                   "quantization_config",
                                   "dtype",
                                   "torch_dtype",
                                   "text_config"};

struct Folder {
  tangram::loader::testing::TempDir dir;
  json config, index;
  std::string At(const std::string& name) const { return dir.path() + "/" + name; }
};

// One folder per family, removed at the end of the process.
const std::vector<std::unique_ptr<Folder>>& Folders() {
  static const auto* const folders = [] {
    static std::vector<std::unique_ptr<Folder>> out;
    for (int family = 0; family <= static_cast<int>(Family::kLlama4); ++family) {
      tangram::loader::testing::ModelShape shape;
      shape.family = static_cast<Family>(family);
      if (BlockScaled(shape.family)) shape.moe_inner = 256;
      auto folder = std::make_unique<Folder>();
      WriteCheckpoint(folder->dir.path(), shape, MakeTensors(shape, 1), 2);
      folder->config = json::parse(ConfigJson(shape));
      const auto text = tangram::loader::ReadText(folder->At("model.safetensors.index.json"));
      folder->index = json::parse(text.value());
      out.push_back(std::move(folder));
    }
    return &out;
  }();
  return *folders;
}

// Keeps strings that are not UTF-8: a file may contain them.
std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::ignore);
}

json Value(FuzzedDataProvider& in) {
  switch (in.ConsumeIntegralInRange(0, 7)) {
    case 0:
      return nullptr;
    case 1:
      return in.ConsumeBool();
    case 2:
      return in.ConsumeIntegralInRange<int64_t>(-2, 64);
    case 3:
      return in.ConsumeIntegral<int64_t>();
    case 4:
      return in.ConsumeFloatingPoint<double>();
    case 5:
      return in.ConsumeRandomLengthString(32);
    case 6:
      return json::array({in.ConsumeIntegralInRange<int64_t>(-2, 64), in.ConsumeIntegral<int>()});
    default:
      return json::parse(in.ConsumeRandomLengthString(64), nullptr, false);
  }
}

// The fields of a config are in its text_config if it has one.
std::string Config(FuzzedDataProvider& in, json config) {
  if (in.ConsumeIntegralInRange(0, 15) == 0) return in.ConsumeRandomLengthString();
  for (int changes = in.ConsumeIntegralInRange(0, 3); changes > 0; --changes) {
    json& at =
        config.contains("text_config") && config["text_config"].is_object() && in.ConsumeBool()
            ? config["text_config"]
            : config;
    if (!at.is_object()) break;
    const std::string field = in.PickValueInArray(kFields);
    json value = Value(in);
    if (value.is_discarded()) {
      at.erase(field);
    } else {
      at[field] = std::move(value);
    }
  }
  return Dump(config);
}

std::string Index(FuzzedDataProvider& in, json index) {
  if (in.ConsumeIntegralInRange(0, 15) == 0) return in.ConsumeRandomLengthString();
  json& map = index["weight_map"];
  for (int changes = in.ConsumeIntegralInRange(0, 2); changes > 0; --changes) {
    auto line = map.begin();
    std::advance(line, in.ConsumeIntegralInRange<size_t>(0, map.size() - 1));
    json value = Value(in);
    if (value.is_discarded()) {
      map.erase(line);
    } else if (in.ConsumeBool()) {
      *line = std::move(value);
    } else {
      map[in.ConsumeRandomLengthString(32)] = std::move(value);
    }
  }
  return Dump(index);
}

void Want(bool holds, const std::string& what) {
  if (holds) return;
  fmt::print(stderr, "checkpoint_fuzz: {}\n", what);
  std::abort();
}

void ReadAll(const Checkpoint& checkpoint) {
  const auto& geometry = checkpoint.geometry();
  std::vector<std::byte> out(geometry.granules() * geometry.granule_bytes());
  for (const uint32_t layer : geometry.proto().moe_layers()) {
    for (uint32_t expert = 0; expert < geometry.experts(); ++expert) {
      const auto read = checkpoint.ReadGranules(layer, expert, {0, geometry.granules()}, out);
      Want(read.ok(), read.message());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider in(data, size);
  const Folder& folder = *Folders()[in.ConsumeIntegralInRange<size_t>(0, Folders().size() - 1)];
  const bool index = in.ConsumeBool();
  using tangram::loader::testing::WriteFile;
  const std::string written_index = index ? Index(in, folder.index) : Dump(folder.index);
  const std::string written_config = Config(in, folder.config);
  WriteFile(folder.At("model.safetensors.index.json"), written_index);
  WriteFile(folder.At("config.json"), written_config);

  const auto checkpoint = Checkpoint::Open(folder.dir.path(), 0, 4096);
  if (checkpoint.ok()) {
    ReadAll(**checkpoint);
    return 0;
  }
  const std::string why = checkpoint.status().message();
  Want(why.find(folder.dir.path()) != std::string::npos, "which file? " + why);
  Want(why.find('\n') == std::string::npos, "several lines: " + why);
  // An error may quote the files.
  if ((written_index + written_config).find("exception") == std::string::npos) {
    Want(why.find("exception") == std::string::npos, "a library's words: " + why);
  }
  return 0;
}
