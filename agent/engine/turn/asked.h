// Checks a request's fields against an engine's capabilities.
#pragma once

#include <string>
#include <vector>

#include "tangram/v1/serve.pb.h"

namespace tangram::engine {

// The reason to reject a request, with the field. It is an optional field (from min_tokens on) that
// is not in `can`, or `generated` with as many tokens as the prompt or the answer has. Empty: all
// are served.
std::string WhatIsNotServed(const v1::Submit& submit, const std::vector<std::string>& can);

}  // namespace tangram::engine
