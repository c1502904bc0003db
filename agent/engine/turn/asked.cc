#include "agent/engine/turn/asked.h"

#include <fmt/format.h>

#include <algorithm>

namespace tangram::engine {

std::string WhatIsNotServed(const v1::Submit& submit, const std::vector<std::string>& can) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  submit.GetReflection()->ListFields(submit, &fields);
  for (const auto* field : fields) {
    const bool optional = field->number() >= v1::Submit::kMinTokensFieldNumber;
    if (optional && std::find(can.begin(), can.end(), field->name()) == can.end()) {
      return fmt::format("{}: this engine does not support it", field->name());
    }
  }
  const auto prompt = static_cast<uint32_t>(submit.prompt_size());
  if (submit.generated() > 0 &&
      (submit.generated() >= prompt || submit.generated() >= submit.max_tokens())) {
    return fmt::format("generated: {} tokens of a prompt of {}, for an answer of at most {}",
                       submit.generated(), prompt, submit.max_tokens());
  }
  return "";
}

}  // namespace tangram::engine
