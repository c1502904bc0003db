#include "agent/loader/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "agent/base/fields.h"

namespace tangram::loader {
namespace {

using nlohmann::json;

constexpr uint64_t kMostHeaderBytes = 64ULL << 20;
constexpr size_t kMostDepth = 8;

Status Bad(const std::string& file, std::string message) {
  return {Code::kInvalid, fmt::format("{}: {}", file, message)};
}

std::optional<v1::DType> TypeOf(const std::string& name) {
  if (name == "F32") return v1::DTYPE_F32;
  if (name == "BF16") return v1::DTYPE_BF16;
  if (name == "F8_E4M3") return v1::DTYPE_FP8_E4M3_BLOCK128;  // its scales are in another tensor
  return std::nullopt;
}

// Checks JSON before objects are built from it: bounded depth, and a repeated key is an error
// (otherwise the last one would win). (A callback of json::parse could do so too, but at the end of
// each object it checks all entries of the parent so far: 15 seconds for 45,000 tensors.)
class Strict final : public nlohmann::json_sax<json> {
 public:
  const std::string& fault() const { return fault_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return Down(); }
  bool end_object() override { return Up(); }
  bool start_array(size_t) override { return Down(); }
  bool end_array() override { return Up(); }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second)
      fault_ = fmt::format("duplicate key '{}'", Printable(name));
    return fault_.empty();
  }
  bool parse_error(size_t, const std::string&, const json::exception&) override { return false; }

 private:
  bool Down() {
    if (keys_.size() > kMostDepth) fault_ = "JSON is nested too deeply";
    keys_.emplace_back();
    return fault_.empty();
  }
  bool Up() {
    keys_.pop_back();
    return true;
  }

  std::vector<std::unordered_set<std::string>> keys_;  // of the open objects; an array has none
  std::string fault_;
};

Result<json> ParseStrict(std::string_view text, const std::string& file) {
  Strict strict;
  (void)json::sax_parse(text, &strict);
  if (!strict.fault().empty()) return Bad(file, strict.fault());
  json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded() || !parsed.is_object()) {
    return Bad(file, "the header is not a JSON object");
  }
  return parsed;
}

Result<TensorInfo> ParseTensor(const std::string& name, const json& entry, uint64_t data_begin,
                               uint64_t data_bytes, const std::string& file) {
  const auto bad = [&](std::string why) {
    return Bad(file, fmt::format("tensor '{}': {}", Printable(name), why));
  };
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets")) {
    return bad("dtype, shape and data_offsets are required");
  }
  if (!entry["dtype"].is_string()) return bad("dtype is not a string");
  TensorInfo info;
  const auto type = TypeOf(entry["dtype"].get<std::string>());
  if (!type)
    return bad(fmt::format("dtype {} is not supported (BF16, F32, F8_E4M3)",
                           Printable(entry["dtype"].get<std::string>())));
  info.dtype = *type;
  if (!entry["shape"].is_array() || entry["shape"].size() > 8) {
    return bad("shape is not a list of at most 8 sizes");
  }
  uint64_t bytes = ElementBytes(info.dtype);
  for (const json& size : entry["shape"]) {
    if (!size.is_number_unsigned()) return bad("shape contains a value that is not a size");
    const auto n = size.get<uint64_t>();
    if (n != 0 && bytes > (1ULL << 62) / n) return bad("shape overflows");
    bytes *= n;
    info.shape.push_back(n);
  }
  const json& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return bad("data_offsets is not a pair of offsets");
  }
  const auto begin = offsets[0].get<uint64_t>();
  const auto end = offsets[1].get<uint64_t>();
  if (begin > end || end > data_bytes) {
    return bad(
        fmt::format("data_offsets [{}, {}] exceed the {} bytes of data; the file may be truncated",
                    begin, end, data_bytes));
  }
  if (end - begin != bytes) {
    return bad(fmt::format("shape needs {} bytes, data_offsets give {}", bytes, end - begin));
  }
  info.begin = data_begin + begin;
  info.bytes = bytes;
  return info;
}

}  // namespace

uint64_t ElementBytes(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_F32:
      return 4;
    case v1::DTYPE_BF16:
      return 2;
    case v1::DTYPE_FP8_E4M3_BLOCK128:
      return 1;
    default:
      return 0;
  }
}

Result<uint64_t> HeaderBytes(std::string_view first8, uint64_t file_bytes,
                             const std::string& file) {
  if (first8.size() < 8 || file_bytes < 8) {
    return Bad(file, fmt::format("{} bytes are not a safetensors file", file_bytes));
  }
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint8_t>(first8[i]);
  if (length > kMostHeaderBytes || length > file_bytes - 8) {
    return Bad(file,
               fmt::format("the header claims {} bytes, the file has {} (and the limit is {})",
                           length, file_bytes - 8, kMostHeaderBytes));
  }
  return length + 8;
}

Result<std::map<std::string, TensorInfo>> ParseHeader(std::string_view prefix, uint64_t file_bytes,
                                                      const std::string& file) {
  const auto data_begin = HeaderBytes(prefix.substr(0, 8), file_bytes, file);
  if (!data_begin.ok()) return data_begin.status();
  if (prefix.size() < *data_begin) return Bad(file, "the header is truncated");
  const auto header = ParseStrict(prefix.substr(8, *data_begin - 8), file);
  if (!header.ok()) return header.status();

  std::map<std::string, TensorInfo> out;
  for (const auto& [name, entry] : header->items()) {
    if (name == "__metadata__") continue;
    auto info = ParseTensor(name, entry, *data_begin, file_bytes - *data_begin, file);
    if (!info.ok()) return info.status();
    out.emplace(name, std::move(info).value());
  }
  // In order of their offsets the tensors must tile the data: no overlap, no gap.
  std::vector<const std::pair<const std::string, TensorInfo>*> order;
  for (const auto& tensor : out) order.push_back(&tensor);
  // An empty tensor has the offset of its neighbour and comes first.
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.bytes) <
           std::pair(b->second.begin, b->second.bytes);
  });
  uint64_t next = *data_begin;
  for (const auto* tensor : order) {
    const auto& [name, info] = *tensor;
    if (info.begin != next) {
      return Bad(file,
                 fmt::format("tensor '{}' starts at byte {}, {} {}", Printable(name), info.begin,
                             info.begin < next ? "over the tensor before, which ends at"
                                               : "after a gap from",
                             next));
    }
    next += info.bytes;
  }
  if (next != file_bytes) {
    return Bad(
        file, fmt::format("{} bytes after the last tensor belong to no tensor", file_bytes - next));
  }
  return out;
}

}  // namespace tangram::loader
