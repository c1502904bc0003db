// Arrays of the caller, whose elements may be longer than this library knows.
#pragma once

#include <cstddef>
#include <string>

#include "agent/base/status.h"
#include "agent/client/include/tangram/client.h"

namespace tangram {

// Elements `size` bytes apart, of which this library knows sizeof(T).
template <typename T>
class Array {
 public:
  // kInvalid: the array is null, or its elements are too short. `name` is for the message.
  static Result<Array> Of(const T* first, size_t count, size_t size, const std::string& name) {
    if (count > 0 && first == nullptr) {
      return Status{Code::kInvalid, name + " is null, want " + std::to_string(count)};
    }
    if (count > 0 && size < sizeof(T)) {
      return Status{Code::kInvalid, name + " are " + std::to_string(size) + " bytes apart, want " +
                                        std::to_string(sizeof(T)) + " at least"};
    }
    return Array(first, count, size);
  }

  size_t count() const { return count_; }
  const T& operator[](size_t i) const { return *TG_AT(T, first_, size_, i); }

 private:
  Array(const T* first, size_t count, size_t size) : first_(first), count_(count), size_(size) {}

  const T* first_;
  size_t count_, size_;
};

}  // namespace tangram
