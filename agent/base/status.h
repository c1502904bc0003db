// Status and Result: results of every fallible call in the agent and the engine.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace tangram {

// The codes are those of the wire (proto/tangram/v1/agent.proto, Refusal) plus the
// local ones that never cross it.
enum class Code {
  kOk,
  kWrongWorld,
  kStaleEpoch,
  kStaleAttempt,
  kBadPlan,
  kNoMemory,
  kBadGeometry,
  kEngine,
  kWrongPhase,
  kNotHeld,
  kUnauthenticated,
  kInvalid,      // bad input: file, configuration, message
  kUnavailable,  // the other side is unreachable; another source or a retry may work
  kCorrupt,      // bytes differ from their hash
  kInternal,
};

// Value type: a code and a message that says what is wrong, where, and what to do.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status OkStatus() { return {}; }

// Either a value or a Status that is not ok.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit on purpose
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {}  // NOLINT

  bool ok() const { return state_.index() == 0; }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  Status status() const { return ok() ? Status{} : std::get<1>(state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace tangram

// Returns from the enclosing function when `expr` (a Status) is not ok.
#define TANGRAM_RETURN_IF_ERROR(expr)                                                              \
  do {                                                                                             \
    if (::tangram::Status tangram_status_ = (expr); !tangram_status_.ok()) return tangram_status_; \
  } while (false)
