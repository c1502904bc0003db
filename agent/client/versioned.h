// Structs of client.h that begin with struct_size: access to the part that both the caller and this
// library know.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "agent/base/status.h"

namespace tangram {

// The bytes of T up to and with a member: the minimum struct_size of a caller.
#define TANGRAM_UP_TO(T, member) (offsetof(T, member) + sizeof(T::member))

// kInvalid if the caller's struct is shorter than `needed`. `name` is for the message.
template <typename T>
Status CheckKnown(const T* caller, size_t needed, const char* name) {
  if (caller == nullptr) return {Code::kInvalid, std::string(name) + " is null"};
  if (caller->struct_size >= needed) return OkStatus();
  return {Code::kInvalid, std::string(name) + ".struct_size is " +
                              std::to_string(caller->struct_size) + ", this library needs " +
                              std::to_string(needed) + " at least: set it to sizeof(" + name + ")"};
}

// The caller's struct in this library's form: members that the caller lacks are zero.
template <typename T>
Result<T> ReadKnown(const T* caller, size_t needed, const char* name) {
  TANGRAM_RETURN_IF_ERROR(CheckKnown(caller, needed, name));
  T out{};
  std::memcpy(static_cast<void*>(&out), caller, std::min(caller->struct_size, sizeof out));
  out.struct_size = sizeof out;
  return out;
}

// Writes the members that the caller has; its struct_size stays.
template <typename T>
void WriteKnown(T* to, const T& value) {
  constexpr size_t kFrom = sizeof value.struct_size;
  const size_t end = std::min(to->struct_size, sizeof value);
  if (end <= kFrom) return;
  std::memcpy(reinterpret_cast<char*>(to) + kFrom, reinterpret_cast<const char*>(&value) + kFrom,
              end - kFrom);
}

}  // namespace tangram
