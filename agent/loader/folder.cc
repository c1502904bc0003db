#include "agent/loader/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "agent/base/fields.h"

namespace tangram::loader {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMostTextBytes = 64ULL << 20;
constexpr uint64_t kMostPointerBytes = 1024;  // the limit of Git LFS
constexpr const char* kPointer = "version https://git-lfs.github.com/spec/";
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr uint32_t kMostShards = 99999;  // five digits

// True for a dangling symbolic link too.
bool IsThere(const std::string& path) {
  std::error_code ignored;
  return fs::symlink_status(path, ignored).type() != fs::file_type::not_found;
}

Result<std::string> ReadAll(const File& file) {
  std::string text(file.size(), '\0');
  TANGRAM_RETURN_IF_ERROR(file.Read(0, std::as_writable_bytes(std::span(text))));
  return text;
}

Status RefusePointer(const File& file) {
  if (file.size() > kMostPointerBytes) return OkStatus();
  const auto text = ReadAll(file);
  if (!text.ok()) return text.status();
  if (!text->starts_with(kPointer)) return OkStatus();
  const size_t size = text->find("\nsize ");
  const std::string bytes =
      size == std::string::npos
          ? "nothing"
          : text->substr(size + 6, text->find_first_not_of("0123456789", size + 6) - size - 6);
  return {Code::kInvalid,
          fmt::format("{} is a Git LFS pointer, not the {} ({} bytes here, {} in the pointer); run "
                      "git lfs pull where it was cloned",
                      file.path(), file.path().ends_with(".json") ? "file" : "weights", file.size(),
                      bytes)};
}

// The missing ones of `files`; empty: all exist.
std::vector<std::string> MissingOf(const std::string& directory,
                                   const std::vector<std::string>& files) {
  std::vector<std::string> out;
  for (const std::string& file : files) {
    if (!IsThere(PathIn(directory, file))) out.push_back(file);
  }
  return out;
}

// Rejects paths and control characters: a NUL would truncate the name, and a line break would split
// an error.
bool IsFileName(const std::string& name) {
  return !name.empty() && std::none_of(name.begin(), name.end(), [](unsigned char c) {
    return c == '/' || c < ' ' || c == 0x7f;
  });
}

Result<Weights> ReadIndex(const std::string& directory) {
  Weights out;
  out.index = PathIn(directory, kIndex);
  const auto text = ReadText(out.index);
  if (!text.ok()) return text.status();
  const json parsed = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object() || !parsed.contains("weight_map") || !parsed["weight_map"].is_object() ||
      parsed["weight_map"].empty()) {
    return Status(Code::kInvalid, out.index + ": no weight_map, from tensors to files");
  }
  std::set<std::string> files;
  for (const auto& [tensor, file] : parsed["weight_map"].items()) {
    if (!file.is_string() || !IsFileName(file.get<std::string>())) {
      return Status(
          Code::kInvalid,
          fmt::format("{}: maps tensor {} to {}, which is not a file name", out.index,
                      Printable(tensor),
                      Printable(file.is_string() ? file.get<std::string>() : file.dump())));
    }
    out.weight_map.emplace(tensor, file.get<std::string>());
    files.insert(file.get<std::string>());
  }
  out.files.assign(files.begin(), files.end());
  const auto missing = MissingOf(directory, out.files);
  if (missing.empty()) return out;
  return Status(
      Code::kInvalid,
      fmt::format("{}: names {}, which is not in the folder ({} of {} shards are missing): "
                  "download the checkpoint again, or remove an index of other files",
                  out.index, Printable(missing.front()), missing.size(), out.files.size()));
}

// The number of shards in a shard's name; 0: not a shard's name.
uint32_t ShardsBy(const std::string& name) {
  uint32_t shard = 0, of = 0;
  int end = 0;
  if (std::sscanf(name.c_str(), "model-%5u-of-%5u.safetensors%n", &shard, &of, &end) != 2) return 0;
  return end == static_cast<int>(name.size()) ? of : 0;
}

Result<Weights> ByNumbers(const std::string& directory) {
  std::set<uint32_t> numbers;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    const uint32_t of = ShardsBy(entry.path().filename().string());
    if (of > 0 && of <= kMostShards) numbers.insert(of);
  }
  if (numbers.empty()) {
    return Status(Code::kInvalid, fmt::format("{}: no weights: neither {} nor {} nor shards named "
                                              "model-00001-of-00002.safetensors",
                                              directory, kSingle, kIndex));
  }
  if (numbers.size() > 1) {
    return Status(Code::kInvalid,
                  fmt::format("{}: shards but no index, and they are of {} and of {} files: remove "
                              "those of another checkpoint, or add {}",
                              directory, *numbers.begin(), *numbers.rbegin(), kIndex));
  }
  Weights out;
  const uint32_t of = *numbers.begin();
  for (uint32_t i = 1; i <= of; ++i) {
    out.files.push_back(fmt::format("model-{:05}-of-{:05}.safetensors", i, of));
  }
  const auto missing = MissingOf(directory, out.files);
  if (missing.empty()) return out;
  return Status(Code::kInvalid,
                fmt::format("{}: shards but no index, and {} is not in the folder ({} of {} shards "
                            "are missing): download the checkpoint again",
                            directory, missing.front(), missing.size(), of));
}

}  // namespace

std::string PathIn(const std::string& directory, const std::string& name) {
  const size_t end = directory.find_last_not_of('/');
  const bool root = end == std::string::npos && !directory.empty();
  return (fs::path(root ? "/" : directory.substr(0, end + 1)) / name).string();
}

Result<std::unique_ptr<File>> OpenFile(const std::string& path) {
  auto file = File::Open(path);
  std::error_code ignored;
  if (!file.ok() && fs::is_symlink(path, ignored) && !fs::exists(path, ignored)) {
    return Status(Code::kInvalid,
                  fmt::format("cannot open {}: it is a symbolic link to {}, which does not exist",
                              path, fs::read_symlink(path, ignored).string()));
  }
  if (!file.ok()) return file.status();
  TANGRAM_RETURN_IF_ERROR(RefusePointer(**file));
  return file;
}

Result<std::string> ReadText(const std::string& path) {
  const auto file = OpenFile(path);
  if (!file.ok()) return file.status();
  const uint64_t size = (*file)->size();
  if (size > kMostTextBytes) {
    return Status(Code::kInvalid, fmt::format("{}: {} bytes exceed the limit of {} bytes", path,
                                              size, kMostTextBytes));
  }
  return ReadAll(**file);
}

Result<Weights> FindWeights(const std::string& directory) {
  if (IsThere(PathIn(directory, kSingle))) return Weights{{kSingle}, {}, {}};
  if (IsThere(PathIn(directory, kIndex))) return ReadIndex(directory);
  return ByNumbers(directory);
}

}  // namespace tangram::loader
