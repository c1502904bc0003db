// Common parts of all C functions of the library: errors into tg_error, exceptions into codes.
#pragma once

#include <exception>

#include "agent/base/status.h"
#include "agent/client/include/tangram/client.h"

namespace tangram::abi {

// Writes code and message as far as the caller's struct reaches; returns the code.
tg_code Fail(tg_error* error, tg_code code, const char* message);
// The same of a Status.
tg_code Done(const Status& status, tg_error* error);
// Whether a message fits in it. NULL is usable.
bool Usable(const tg_error* error);

template <typename F>
tg_code Guarded(tg_error* error, F&& call) {
  if (!Usable(error)) return TG_INVALID;
  try {
    return call();
  } catch (const std::exception& e) {  // no memory
    return Fail(error, TG_INVALID, e.what());
  }
}

}  // namespace tangram::abi
