// Helpers that build the machine's steps. Only for the files of this folder.
#pragma once

#include <string>
#include <utility>

#include "agent/attempt/actions.h"

namespace tangram::attempt {

inline Step Refuse(Status status) {
  return {.marks = {}, .next = Later{Answer{std::move(status)}}};
}
inline Step Refuse(Code code, std::string why) { return Refuse(Status{code, std::move(why)}); }
inline Step Done(Step step = {}) {
  step.next = Later{};
  return step;
}
inline Step Acted(Step step) {
  step.next = Later{Answer{.acted = true}};
  return step;
}
inline Step Then(Later next, Step step = {}) {
  step.next = std::move(next);
  return step;
}
inline Step Then(AtOnce next, Step step = {}) {
  step.next = next;
  return step;
}
inline Step Changed(Step step = {}) {
  step.changed = true;
  return step;
}

}  // namespace tangram::attempt

// Replies to the event with `expr` (a Status) if that is not ok.
#define TANGRAM_REFUSE_IF_ERROR(expr)                                        \
  do {                                                                       \
    if (::tangram::Status tangram_status_ = (expr); !tangram_status_.ok()) { \
      return ::tangram::attempt::Refuse(std::move(tangram_status_));         \
    }                                                                        \
  } while (false)
