#include "agent/loader/testing/reference.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace tangram::loader::testing {
namespace {

using nlohmann::json;

std::string Whole(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

Reference::Reference(const std::string& directory, uint32_t granule_rows) : rows_(granule_rows) {
  const json config = json::parse(Whole(directory + "/config.json"));
  model_ = config.at("model_type");
  gpt_oss_ = model_ == "gpt_oss";
  llama4_ = model_ == "llama4";
  hidden_ = (llama4_ ? config.at("text_config") : config).at("hidden_size");
  if (model_ == "mixtral") {
    gate_ = "w1";
    down_ = "w2";
    up_ = "w3";
  }
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string file = Whole(entry.path());
    uint64_t length = 0;
    for (int i = 0; i < 8; ++i) length |= uint64_t{static_cast<uint8_t>(file.at(i))} << 8 * i;
    const json header = json::parse(file.substr(8, length));
    for (const auto& [name, is] : header.items()) {
      if (name == "__metadata__") continue;
      const uint64_t begin = is.at("data_offsets").at(0), end = is.at("data_offsets").at(1);
      Stored tensor{file.substr(8 + length + begin, end - begin), is.at("shape"), 1};
      uint64_t numbers = 1;
      for (const uint64_t size : tensor.shape) numbers *= size;
      tensor.element = tensor.data.size() / numbers;
      tensors_.emplace(name, std::move(tensor));
    }
  }
}

std::string Reference::Stored::At(std::vector<uint64_t> index) const {
  uint64_t at = 0;
  if (index.size() != shape.size()) throw std::logic_error("another number of axes");
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (index[axis] >= shape[axis]) throw std::logic_error("beyond an axis");
    at = at * shape[axis] + index[axis];
  }
  return data.substr(at * element, element);
}

std::string Reference::LayerName(uint32_t layer) const {
  const std::string number = std::to_string(layer);
  if (llama4_) return "language_model.model.layers." + number + ".feed_forward.experts.";
  if (model_ == "mixtral") return "model.layers." + number + ".block_sparse_moe.experts.";
  return "model.layers." + number + ".mlp.experts.";
}

const Reference::Stored& Reference::Of(const std::string& name) const { return tensors_.at(name); }

std::string Reference::Granule(uint32_t layer, uint32_t expert, uint32_t granule) const {
  const uint64_t first = granule * rows_;
  if (gpt_oss_) return StackedGranule(LayerName(layer), expert, first);
  if (llama4_) return HalvesGranule(LayerName(layer), expert, first);
  const std::string name = LayerName(layer) + std::to_string(expert) + ".";
  return PlainGranule(name, first) + Scales(name, first);
}

std::string Reference::PlainGranule(const std::string& expert, uint64_t first) const {
  std::string out;
  for (const std::string& name : {gate_, up_}) {
    const Stored& matrix = Of(expert + name + ".weight");
    for (uint64_t i = first; i < first + rows_; ++i) {
      for (uint64_t h = 0; h < hidden_; ++h) out += matrix.At({i, h});
    }
  }
  const Stored& down = Of(expert + down_ + ".weight");
  for (uint64_t i = first; i < first + rows_; ++i) {
    for (uint64_t h = 0; h < hidden_; ++h) out += down.At({h, i});
  }
  return out;
}

// The scale blocks that contain a number of the granule: that of row i and column h is [i / 128, h
// / 128].
std::string Reference::Scales(const std::string& expert, uint64_t first) const {
  std::string out;
  if (!tensors_.contains(expert + "gate_proj.weight_scale_inv")) return out;
  for (const char* name : {"gate_proj.weight_scale_inv", "up_proj.weight_scale_inv"}) {
    for (uint64_t i = first; i < first + rows_; i += 128) {
      for (uint64_t h = 0; h < hidden_; h += 128) out += Of(expert + name).At({i / 128, h / 128});
    }
  }
  for (uint64_t i = first; i < first + rows_; i += 128) {
    for (uint64_t h = 0; h < hidden_; h += 128) {
      out += Of(expert + "down_proj.weight_scale_inv").At({h / 128, i / 128});
    }
  }
  return out;
}

// Column 2 i of gate_up is gate's, 2 i + 1 is up's.
std::string Reference::StackedGranule(const std::string& layer, uint64_t expert,
                                      uint64_t first) const {
  std::string out;
  for (const uint64_t which : {0, 1}) {
    for (uint64_t i = first; i < first + rows_; ++i) {
      for (uint64_t h = 0; h < hidden_; ++h) {
        out += Of(layer + "gate_up_proj").At({expert, h, 2 * i + which});
      }
    }
  }
  for (uint64_t i = first; i < first + rows_; ++i) {
    for (uint64_t h = 0; h < hidden_; ++h) out += Of(layer + "down_proj").At({expert, i, h});
  }
  for (const uint64_t which : {0, 1}) {
    for (uint64_t i = first; i < first + rows_; ++i) {
      out += Of(layer + "gate_up_proj_bias").At({expert, 2 * i + which});
    }
  }
  return out;
}

// Column i of gate_up is gate's, I + i is up's.
std::string Reference::HalvesGranule(const std::string& layer, uint64_t expert,
                                     uint64_t first) const {
  const Stored& both = Of(layer + "gate_up_proj");
  const uint64_t inner = both.shape.at(2) / 2;
  std::string out;
  for (const uint64_t half : {uint64_t{0}, inner}) {
    for (uint64_t i = first; i < first + rows_; ++i) {
      for (uint64_t h = 0; h < hidden_; ++h) out += both.At({expert, h, half + i});
    }
  }
  for (uint64_t i = first; i < first + rows_; ++i) {
    for (uint64_t h = 0; h < hidden_; ++h) out += Of(layer + "down_proj").At({expert, i, h});
  }
  return out;
}

// The elements of a tensor (of a stacked one: of its entry `outer`) whose index along `axis` is in
// [first, first + count).
std::string Reference::Cut(const std::string& tensor, const std::vector<uint64_t>& outer,
                           size_t axis, uint64_t first, uint64_t count) const {
  const Stored& stored = Of(tensor);
  std::vector<uint64_t> at = outer;
  std::string out;
  const std::function<void()> walk = [&] {
    const size_t here = at.size();
    if (here == stored.shape.size()) {
      out += stored.At(at);
      return;
    }
    const bool cut = here == axis + outer.size();
    const uint64_t begin = cut ? first : 0, end = cut ? first + count : stored.shape[here];
    for (uint64_t i = begin; i < end; ++i) {
      at.push_back(i);
      walk();
      at.pop_back();
    }
  };
  walk();
  return out;
}

std::string Reference::Rows(uint32_t layer, uint32_t expert, uint32_t first, uint32_t count) const {
  const uint64_t row = first * rows_, rows = count * rows_;
  if (gpt_oss_) {
    const std::string name = LayerName(layer);
    return Cut(name + "gate_up_proj", {expert}, 1, 2 * row, 2 * rows) +
           Cut(name + "down_proj", {expert}, 0, row, rows) +
           Cut(name + "gate_up_proj_bias", {expert}, 0, 2 * row, 2 * rows);
  }
  if (llama4_) {
    const std::string name = LayerName(layer);
    const uint64_t inner = Of(name + "gate_up_proj").shape.at(2) / 2;
    return Cut(name + "gate_up_proj", {expert}, 1, row, rows) +
           Cut(name + "gate_up_proj", {expert}, 1, inner + row, rows) +
           Cut(name + "down_proj", {expert}, 0, row, rows);
  }
  const std::string name = LayerName(layer) + std::to_string(expert) + ".";
  std::string out = Cut(name + gate_ + ".weight", {}, 0, row, rows) +
                    Cut(name + up_ + ".weight", {}, 0, row, rows) +
                    Cut(name + down_ + ".weight", {}, 1, row, rows);
  if (!tensors_.contains(name + "gate_proj.weight_scale_inv")) return out;
  const uint64_t block = row / 128, blocks = rows / 128;
  return out + Cut(name + "gate_proj.weight_scale_inv", {}, 0, block, blocks) +
         Cut(name + "up_proj.weight_scale_inv", {}, 0, block, blocks) +
         Cut(name + "down_proj.weight_scale_inv", {}, 1, block, blocks);
}

std::string Reference::Tail(uint32_t layer, uint32_t expert) const {
  std::string out;
  for (uint64_t h = 0; gpt_oss_ && h < hidden_; ++h) {
    out += Of(LayerName(layer) + "down_proj_bias").At({expert, h});
  }
  return out;
}

}  // namespace tangram::loader::testing
