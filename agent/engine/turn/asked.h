// What a request asks for, beside what an engine can.
#pragma once

#include <string>
#include <vector>

#include "tangram/v1/serve.pb.h"

namespace tangram::engine {

// Names the field that no engine could honour: one of those that are optional (from min_tokens on)
// and that `can` does not name, or `generated` of more tokens than there are. Empty: all is served.
std::string WhatIsNotServed(const v1::Submit& submit, const std::vector<std::string>& can);

}  // namespace tangram::engine
