#include "e2e/engine/model/checkpoint.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

namespace tangram::model {
namespace {

using nlohmann::json;

Status Bad(const std::string& path, const std::string& message) {
  return Status(Code::kInvalid, path + ": " + message);
}

Result<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Bad(path, std::strerror(errno));
  return std::string(std::istreambuf_iterator<char>(in), {});
}

bool IsRoutedExpert(const std::string& name) { return name.find(".mlp.experts.") != name.npos; }

}  // namespace

Checkpoint::~Checkpoint() {
  for (const Mapping& m : mappings_) munmap(m.data, m.size);
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& dir,
                                                     uint32_t granule_rows) {
  std::unique_ptr<Checkpoint> c(new Checkpoint);
  Result<std::string> text = ReadFile(dir + "/config.json");
  if (!text.ok()) return text.status();
  c->config_json_ = *text;
  Result<Config> config = ParseConfig(*text);
  if (!config.ok()) return config.status();
  c->config_ = *config;
  c->granule_rows_ = granule_rows;
  if (granule_rows == 0 || config->moe_inner % granule_rows != 0) {
    return Bad(dir, fmt::format("granules of {} rows do not divide moe_intermediate_size {}",
                                granule_rows, config->moe_inner));
  }
  const std::string index_path = dir + "/model.safetensors.index.json";
  Result<std::string> index_text = ReadFile(index_path);
  if (!index_text.ok()) return index_text.status();
  const json index = json::parse(*index_text, nullptr, false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return Bad(index_path, "no weight_map");
  }
  std::set<std::string> files;
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string()) return Bad(index_path, fmt::format("{}: file is no string", name));
    files.insert(file.get<std::string>());
  }
  for (const std::string& file : files) TANGRAM_RETURN_IF_ERROR(c->MapShard(dir + "/" + file));
  for (const auto& [name, tensor] : c->tensors_) {
    if (!IsRoutedExpert(name)) c->dense_.push_back(tensor);
  }
  TANGRAM_RETURN_IF_ERROR(c->LayOutExperts());
  return c;
}

Status Checkpoint::MapShard(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Bad(path, std::strerror(errno));
  struct stat st;
  const bool stat_ok = fstat(fd, &st) == 0 && st.st_size > 8;
  void* data = stat_ok ? mmap(nullptr, st.st_size, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
  close(fd);
  if (data == MAP_FAILED) return Bad(path, "cannot be mapped or is too short");
  const auto size = static_cast<size_t>(st.st_size);
  mappings_.push_back({data, size});
  const auto* bytes = static_cast<const char*>(data);
  uint64_t header_size;
  std::memcpy(&header_size, bytes, 8);
  if (header_size > size - 8) return Bad(path, fmt::format("header of {} bytes", header_size));
  const json header = json::parse(bytes + 8, bytes + 8 + header_size, nullptr, false);
  if (!header.is_object()) return Bad(path, "header is not a JSON object");
  const size_t data_size = size - 8 - header_size;
  for (const auto& [name, t] : header.items()) {
    if (name == "__metadata__") continue;
    const std::string dtype = t.value("dtype", "");
    if (dtype != "BF16" && dtype != "F32") {
      return Bad(path, fmt::format("{} has dtype \"{}\": only BF16 and F32 are read", name, dtype));
    }
    DenseTensor tensor{name, dtype == "F32" ? DType::kF32 : DType::kBf16,
                       t.value("shape", std::vector<uint64_t>{}), nullptr};
    const auto offsets = t.value("data_offsets", std::vector<uint64_t>{});
    uint64_t want = SizeOf(tensor.dtype);
    for (uint64_t d : tensor.shape) want *= d;
    if (offsets.size() != 2 || offsets[1] > data_size || offsets[0] > offsets[1] ||
        offsets[1] - offsets[0] != want) {
      return Bad(path, fmt::format("{}: data_offsets do not fit its shape and the file", name));
    }
    tensor.data = bytes + 8 + header_size + offsets[0];
    tensors_[name] = tensor;
  }
  return OkStatus();
}

Status Checkpoint::LayOutExperts() {
  const size_t h = config_.hidden, inner = config_.moe_inner;
  experts_.resize(config_.layers);
  bool first = true;
  for (uint32_t layer = 0; layer < config_.layers; ++layer) {
    if (!config_.moe_layer[layer]) continue;
    experts_[layer].resize(config_.experts);
    for (uint32_t e = 0; e < config_.experts; ++e) {
      const std::string prefix = fmt::format("model.layers.{}.mlp.experts.{}.", layer, e);
      const DenseTensor* part[3];
      const char* const names[3] = {"gate_proj", "up_proj", "down_proj"};
      for (int i = 0; i < 3; ++i) {
        auto it = tensors_.find(prefix + names[i] + ".weight");
        const std::vector<uint64_t> shape =
            i < 2 ? std::vector<uint64_t>{inner, h} : std::vector<uint64_t>{h, inner};
        if (it == tensors_.end() || it->second.shape != shape) {
          return Bad(prefix + names[i], "missing, or not of the shape in config.json");
        }
        part[i] = &it->second;
        if (first) expert_dtype_ = part[i]->dtype;
        first = false;
        if (part[i]->dtype != expert_dtype_) return Bad(prefix + names[i], "another dtype");
      }
      const size_t unit = SizeOf(expert_dtype_);
      std::vector<std::byte>& out = experts_[layer][e];
      out.resize(3 * inner * h * unit);
      std::byte* to = out.data();
      for (size_t row = 0; row < inner; row += granule_rows_) {
        for (int i = 0; i < 2; ++i) {
          std::memcpy(to, static_cast<const std::byte*>(part[i]->data) + row * h * unit,
                      granule_rows_ * h * unit);
          to += granule_rows_ * h * unit;
        }
        const auto* down = static_cast<const std::byte*>(part[2]->data);
        for (size_t i = row; i < row + granule_rows_; ++i) {
          for (size_t j = 0; j < h; ++j, to += unit) {
            std::memcpy(to, down + (j * inner + i) * unit, unit);
          }
        }
      }
    }
  }
  return OkStatus();
}

ExpertRun Checkpoint::Run(uint32_t layer, uint32_t expert, uint32_t begin, uint32_t count) const {
  const size_t granule_bytes = size_t{3} * granule_rows_ * config_.hidden * SizeOf(expert_dtype_);
  return {experts_[layer][expert].data() + begin * granule_bytes, count, granule_rows_,
          expert_dtype_};
}

}  // namespace tangram::model
