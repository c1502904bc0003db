// Random draws from a seed, the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>

namespace tangram::gpu {

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  // In [0, end), or 0 if end is 0.
  uint64_t Below(uint64_t end) { return end == 0 ? 0 : random_() % end; }
  uint64_t From(uint64_t least, uint64_t most) { return least + Below(most - least + 1); }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  void Fill(std::span<std::byte> bytes) {
    for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
      uint64_t word = random_();
      for (size_t i = at; i < at + sizeof word && i < bytes.size(); ++i, word >>= 8) {
        bytes[i] = static_cast<std::byte>(word);
      }
    }
  }
  std::mt19937_64& engine() { return random_; }

 private:
  std::mt19937_64 random_;
};

}  // namespace tangram::gpu
