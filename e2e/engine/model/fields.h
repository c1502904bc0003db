// Fields of a JSON object. The first error stays, so that who reads is a list of fields.
#pragma once

#include <fmt/core.h>

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

#include "agent/base/status.h"

namespace tangram::model {

class Fields {
 public:
  using Names = std::initializer_list<const char*>;

  explicit Fields(const nlohmann::json& object) : object_(object) {}

  // The first of the names that is there, and is not null; nullptr: none.
  const nlohmann::json* Find(Names names) const;
  // 1 to 2^24, under the first of the names that is there.
  uint32_t Positive(Names names);
  // nothing is said: `otherwise`.
  uint32_t PositiveOr(const char* name, uint32_t otherwise);
  uint32_t Count(const char* name, uint32_t otherwise);  // 0 is one, too
  double Number(const char* name, double otherwise);
  bool Flag(const char* name, bool otherwise);
  std::string Text(const char* name, const char* otherwise);

  void Fail(const std::string& message) {
    if (status_.ok()) status_ = Status(Code::kInvalid, message);
  }
  // Something else than what is computed.
  template <typename Value>
  void Want(const char* name, const Value& is, const Value& computed) {
    if (is != computed) Fail(fmt::format("{} \"{}\": only \"{}\" is computed", name, is, computed));
  }
  const Status& status() const { return status_; }

 private:
  const nlohmann::json& object_;
  Status status_;
};

}  // namespace tangram::model
