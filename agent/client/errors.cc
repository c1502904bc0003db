#include <algorithm>
#include <cstring>

#include "agent/base/utf8.h"
#include "agent/client/abi.h"

namespace tangram::abi {
namespace {

constexpr size_t kText = offsetof(tg_error, message);
constexpr size_t kLeast = kText + 2;  // one character and the terminator

}  // namespace

bool Usable(const tg_error* error) { return error == nullptr || error->struct_size >= kLeast; }

tg_code Fail(tg_error* error, tg_code code, const char* message) {
  if (error == nullptr) return code;
  error->code = code;
  // Not through error->message: the caller's array may be longer (newer) or shorter (older).
  char* text = reinterpret_cast<char*>(error) + kText;
  const size_t room = std::min(error->struct_size, sizeof *error) - kText;
  const std::string_view said = Utf8Prefix(message, room - 1);
  std::memcpy(text, said.data(), said.size());
  text[said.size()] = 0;
  return code;
}

tg_code Done(const Status& status, tg_error* error) {
  if (status.ok()) return Fail(error, TG_OK, "");
  tg_code code = TG_REFUSED;
  if (status.code() == Code::kUnavailable) code = TG_DISCONNECTED;
  if (status.code() == Code::kInvalid) code = TG_INVALID;
  if (status.code() == Code::kWrongPhase) code = TG_AGAIN;
  return Fail(error, code, status.message().c_str());
}

}  // namespace tangram::abi
