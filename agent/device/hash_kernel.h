// XXH3-64 by the instruction sets that it is compiled for; same values from each.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace tangram::device {

struct HashKernel {
  uint64_t (*hash)(const void* bytes, size_t size);
  // The same of bytes that come part by part; null: no memory.
  void* (*create)();
  void (*add)(void* state, const void* bytes, size_t size);
  uint64_t (*value)(const void* state);
  void (*free)(void* state);
};

extern const HashKernel kHashBase;  // of any processor
#if defined(__x86_64__)
extern const HashKernel kHashAvx2;
#endif

}  // namespace tangram::device
