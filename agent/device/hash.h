// The only hash of bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace tangram::device {

// XXH3-64, but never 0, which means "no hash".
uint64_t HashOf(std::span<const std::byte> bytes);

// The same for bytes that arrive in parts.
class Hasher {
 public:
  Hasher();
  void Add(std::span<const std::byte> bytes);
  uint64_t Value() const;  // of all that was added, in order

 private:
  struct Free {
    void operator()(void* state) const;
  };
  std::unique_ptr<void, Free> state_;
};

}  // namespace tangram::device
