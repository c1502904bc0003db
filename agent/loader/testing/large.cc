#include "agent/loader/testing/large.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

namespace tangram::loader::testing {
namespace {

using nlohmann::json;

constexpr uint64_t kMiB = 1 << 20;

}  // namespace

std::vector<std::string> WriteLarge(const std::string& directory, const ModelShape& shape) {
  WriteFile(directory + "/config.json", ConfigJson(shape));
  ModelShape small = shape;  // only for the names
  std::map<std::string, std::vector<uint64_t>> tensors;
  small.hidden = small.moe_inner = small.head_dim = small.vocab = 1;
  const uint64_t queries = uint64_t{shape.query_heads} * shape.head_dim;
  const uint64_t keys = uint64_t{shape.kv_heads} * shape.head_dim;
  for (const auto& [name, tensor] : MakeTensors(small, 1)) {
    std::vector<uint64_t> sizes = tensor.shape;
    const auto has = [&name = name](const char* part) {
      return name.find(part) != std::string::npos;
    };
    if (has("experts.")) {
      sizes = has("down_proj") ? std::vector<uint64_t>{shape.hidden, shape.moe_inner}
                               : std::vector<uint64_t>{shape.moe_inner, shape.hidden};
    } else if (has("q_proj")) {
      sizes = {queries, shape.hidden};
    } else if (has("k_proj") || has("v_proj")) {
      sizes = {keys, shape.hidden};
    } else if (has("o_proj")) {
      sizes = {shape.hidden, queries};
    } else if (has("q_norm") || has("k_norm")) {
      sizes = {shape.head_dim};
    } else if (has("mlp.gate.")) {
      sizes = {shape.experts, shape.hidden};
    } else if (has("embed") || has("lm_head")) {
      sizes = {shape.vocab, shape.hidden};
    } else {
      sizes = {shape.hidden};
    }
    tensors[name] = sizes;
  }
  std::vector<char> noise(64 * kMiB);
  std::mt19937_64 random(7);
  for (size_t i = 0; i < noise.size(); i += 8) {
    const uint64_t word = random();
    std::memcpy(&noise[i], &word, 8);
  }
  struct Part {
    json header = {{"__metadata__", {{"format", "pt"}}}};
    uint64_t bytes = 0;
    std::vector<uint64_t> sizes;
  };
  std::vector<Part> parts(1);
  json index = {{"metadata", json::object()}, {"weight_map", json::object()}};
  const auto file = [](size_t i) { return fmt::format("model-{:05}.safetensors", i + 1); };
  for (const auto& [name, sizes] : tensors) {
    uint64_t bytes = 2;
    for (const uint64_t size : sizes) bytes *= size;
    if (parts.back().bytes + bytes > 1024 * kMiB) parts.emplace_back();
    Part& part = parts.back();
    part.header[name] = {
        {"dtype", "BF16"}, {"shape", sizes}, {"data_offsets", {part.bytes, part.bytes + bytes}}};
    part.bytes += bytes;
    part.sizes.push_back(bytes);
    index["weight_map"][name] = file(parts.size() - 1);
  }
  std::vector<std::string> out;
  for (size_t i = 0; i < parts.size(); ++i) {
    out.push_back(directory + "/" + file(i));
    const int fd = open(out.back().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const auto put = [&](const char* from, uint64_t bytes) {
      while (bytes > 0) {
        const ssize_t n = write(fd, from, bytes);
        if (n <= 0) throw std::runtime_error("cannot write " + out.back());
        from += n;
        bytes -= static_cast<uint64_t>(n);
      }
    };
    const std::string front = SerializeRaw(parts[i].header.dump(), "");
    put(front.data(), front.size());
    for (const uint64_t bytes : parts[i].sizes) {
      uint64_t at = random() % (noise.size() / 2) / 8 * 8;
      for (uint64_t left = bytes; left > 0; at = 0) {
        const uint64_t take = std::min(left, noise.size() - at);
        put(&noise[at], take);
        left -= take;
      }
    }
    if (fd < 0 || fsync(fd) != 0 || close(fd) != 0) {
      throw std::runtime_error("cannot write " + out.back());
    }
  }
  WriteFile(directory + "/model.safetensors.index.json", index.dump());
  return out;
}

}  // namespace tangram::loader::testing
