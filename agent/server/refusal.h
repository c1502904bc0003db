// Conversion between Status and the wire's Refusal.
#pragma once

#include "agent/base/status.h"
#include "tangram/v1/agent.pb.h"

namespace tangram {

// The code on the wire; CODE_UNSPECIFIED for local codes.
v1::Refusal::Code RefusalCodeOf(Code code);
Code CodeOfRefusal(v1::Refusal::Code code);
v1::Refusal ToRefusal(const Status& status, const v1::Header& current);

// Key of the trailing metadata that carries a serialised Refusal.
inline constexpr char kRefusalKey[] = "tangram-refusal-bin";

}  // namespace tangram
