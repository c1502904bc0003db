// The control exchange that opens every step: gate vote, whether there is work, and the backend's
// text.
#pragma once

#include <cstdint>

#include "agent/base/status.h"
#include "agent/client/include/tangram/client.h"
#include "agent/engine/wire/bytes.h"

namespace tangram::engine {

// Maximum rows of a rank in one step.
constexpr uint64_t kMostRows = 65536;

struct Control {
  tg_vote word{};
  bool pending = false;  // an attempt is in progress here: do not slow down
  bool work = false;     // a request is to be computed here
  bool pause = false;    // the attempt in progress requests that no step is computed
  uint64_t rows = 0;     // tokens that this rank computes in the step
  Bytes text;            // of the backend

  Bytes Encode() const;
  // kInternal: not a control message, or one with more rows than a step takes.
  static Result<Control> Decode(const Bytes& bytes);
};

}  // namespace tangram::engine
