// XXH3-64, compiled for several instruction sets with the same results.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace tangram::device {

struct HashKernel {
  uint64_t (*hash)(const void* bytes, size_t size);
  // The same for bytes that arrive in parts; null: out of memory.
  void* (*create)();
  void (*add)(void* state, const void* bytes, size_t size);
  uint64_t (*value)(const void* state);
  void (*free)(void* state);
};

extern const HashKernel kHashBase;  // for any processor
#if defined(__x86_64__)
extern const HashKernel kHashAvx2;
#endif

}  // namespace tangram::device
