#include "e2e/engine/model/fields.h"

namespace tangram::model {

using nlohmann::json;

const json* Fields::Find(Names names) const {
  for (const char* name : names) {
    const auto it = object_.find(name);
    if (it != object_.end() && !it->is_null()) return &*it;
  }
  return nullptr;
}

uint32_t Fields::Positive(Names names) {
  const json* v = Find(names);
  if (v == nullptr) {
    Fail(fmt::format("no field {}", *names.begin()));
    return 1;
  }
  if (!v->is_number_unsigned() || *v == 0 || *v > uint64_t{1} << 24) {
    Fail(fmt::format("{} = {} is not a positive integer below 2^24", *names.begin(), v->dump()));
    return 1;
  }
  return v->get<uint32_t>();
}

uint32_t Fields::PositiveOr(const char* name, uint32_t otherwise) {
  return Find({name}) == nullptr ? otherwise : Positive({name});
}

uint32_t Fields::Count(const char* name, uint32_t otherwise) {
  const json* v = Find({name});
  return v != nullptr && v->is_number_unsigned() && *v == 0 ? 0 : PositiveOr(name, otherwise);
}

double Fields::Number(const char* name, double otherwise) {
  const json* v = Find({name});
  if (v == nullptr) return otherwise;
  if (!v->is_number()) {
    Fail(fmt::format("{} = {} is not a number", name, v->dump()));
    return otherwise;
  }
  return v->get<double>();
}

bool Fields::Flag(const char* name, bool otherwise) {
  const json* v = Find({name});
  if (v == nullptr) return otherwise;
  if (!v->is_boolean()) {
    Fail(fmt::format("{} = {} is neither true nor false", name, v->dump()));
    return otherwise;
  }
  return v->get<bool>();
}

std::string Fields::Text(const char* name, const char* otherwise) {
  const json* v = Find({name});
  if (v == nullptr) return otherwise;
  if (!v->is_string()) {
    Fail(fmt::format("{} = {} is not a string", name, v->dump()));
    return otherwise;
  }
  return v->get<std::string>();
}

}  // namespace tangram::model
