#include "agent/base/fields.h"

#include "agent/base/utf8.h"

namespace tangram {
namespace {

using nlohmann::json;

constexpr size_t kMostShown = 64;  // bytes of a value in a message

std::string Shown(const json& value) {
  const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() <= kMostShown) return text;
  return std::string(Utf8Prefix(text, kMostShown)) + "...";
}

}  // namespace

std::string Printable(std::string_view text) {
  constexpr size_t kMost = 200;
  const std::string quoted =
      json(Utf8Prefix(text, kMost)).dump(-1, ' ', false, json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2) + (text.size() > kMost ? "..." : "");
}

const json* Fields::At(const char* name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

const json* Fields::Find(const Names& names) {
  const char* first = nullptr;
  const json* found = nullptr;
  for (const char* name : names) {
    const json* const value = At(name);
    if (value == nullptr) continue;
    if (found == nullptr) {
      first = name;
      found = value;
    } else if (*value != *found) {
      Fail(fmt::format("{}{} is {} and {}{} is {}: these are two names of one fact, remove one",
                       prefix_, first, Shown(*found), prefix_, name, Shown(*value)));
    }
  }
  return found;
}

void Fields::Refuse(const char* name, const json& value, const std::string& wanted) {
  Fail(fmt::format("{}{} is {}, want {}", prefix_, name, Shown(value), wanted));
}

uint32_t Fields::Whole(const char* name, const json& value, uint32_t least, uint32_t most) {
  if (value.is_number_unsigned() && value >= least && value <= most) return value.get<uint32_t>();
  Refuse(name, value, fmt::format("a whole number from {} to {}", least, most));
  return 1;
}

uint32_t Fields::Positive(const Names& names, uint32_t most) {
  const json* const value = Find(names);
  for (const char* name : names) {
    if (value != nullptr && value == At(name)) return Whole(name, *value, 1, most);
  }
  Missing(names.front());
  return 1;
}

uint32_t Fields::PositiveOr(const char* name, uint32_t otherwise) {
  return At(name) == nullptr ? otherwise : Positive({name});
}

uint32_t Fields::Count(const char* name, uint32_t otherwise) {
  const json* const value = At(name);
  return value == nullptr ? otherwise : Whole(name, *value, 0, kMost);
}

double Fields::Number(const char* name, double otherwise) {
  const json* const value = At(name);
  if (value == nullptr) return otherwise;
  if (value->is_number()) return value->get<double>();
  Refuse(name, *value, "a number");
  return otherwise;
}

bool Fields::Flag(const char* name, bool otherwise) {
  const json* const value = At(name);
  if (value == nullptr) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  Refuse(name, *value, "true or false");
  return otherwise;
}

std::string Fields::Text(const Names& names, const char* otherwise) {
  const json* const value = Find(names);
  if (value == nullptr) return otherwise;
  if (value->is_string()) return value->get<std::string>();
  for (const char* name : names) {
    if (value == At(name)) Refuse(name, *value, "a text");
  }
  return otherwise;
}

std::optional<std::set<uint64_t>> Fields::Layers(const char* name) {
  const json* const list = At(name);
  if (list == nullptr) return std::nullopt;
  std::set<uint64_t> out;
  bool numbers = list->is_array();
  for (size_t i = 0; numbers && i < list->size(); ++i) {
    numbers = (*list)[i].is_number_unsigned();
    if (numbers) out.insert((*list)[i].get<uint64_t>());
  }
  if (!numbers) Refuse(name, *list, "a list of layer numbers");
  return out;
}

}  // namespace tangram
