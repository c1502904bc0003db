// Fields of a JSON object. A null counts as missing, and two names of one value must agree. The
// first error is kept, so that a reader is a plain list of fields.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/base/status.h"

namespace tangram {

// Text of a file, for a message: on one line and of limited length.
std::string Printable(std::string_view text);

class Fields {
 public:
  // Names of one value, the usual one first.
  using Names = std::vector<const char*>;
  static constexpr uint32_t kMost = 1U << 24;

  // `prefix`: text before each name in messages, e.g. "text_config.".
  explicit Fields(const nlohmann::json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  // The value of the first name that has one; nullptr: no name has. Rejects two names with
  // different values.
  const nlohmann::json* Find(const Names& names);
  // 1 to `most`; 1 if the value is rejected or missing.
  uint32_t Positive(const Names& names, uint32_t most = kMost);
  // `otherwise` where the field is missing.
  uint32_t PositiveOr(const char* name, uint32_t otherwise);
  uint32_t Count(const char* name, uint32_t otherwise);  // 0 to kMost
  double Number(const char* name, double otherwise);
  bool Flag(const char* name, bool otherwise);
  std::string Text(const Names& names, const char* otherwise);
  // Layer numbers; nothing: the field is missing.
  std::optional<std::set<uint64_t>> Layers(const char* name);

  // Keeps the message if it is the first one.
  void Fail(const std::string& message) {
    if (status_.ok()) status_ = Status(Code::kInvalid, message);
  }
  // "PREFIXname is VALUE, want WANTED".
  void Refuse(const char* name, const nlohmann::json& value, const std::string& wanted);
  // "PREFIXname is missing".
  void Missing(const char* name) { Fail(fmt::format("{}{} is missing", prefix_, name)); }
  // Rejects any value except the only one that is computed.
  template <typename Value>
  void Want(const char* name, const Value& is, const Value& computed) {
    if (is != computed) Fail(fmt::format("{} \"{}\": only \"{}\" is computed", name, is, computed));
  }
  const Status& status() const { return status_; }
  const std::string& prefix() const { return prefix_; }

 private:
  const nlohmann::json* At(const char* name) const;
  uint32_t Whole(const char* name, const nlohmann::json& value, uint32_t least, uint32_t most);

  const nlohmann::json& object_;
  const std::string prefix_;
  Status status_;
};

}  // namespace tangram
