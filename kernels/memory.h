// Primitives of kernel sources: the identity of a thread, and the memory that it reaches. The same
// text runs on a GPU and, compiled by the host's compiler, as its twin (kernels.cc). A kernel is a
// function
//   template <typename Memory> void Body(const Where&, const Parameters&, Memory&)
// in which no thread waits for another of its launch, so a host may run them one after another. A
// kernel of one thread may wait for other ranks (dispatch_wait.h).
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define TANGRAM_DEVICE __device__ __forceinline__
#define TANGRAM_TABLE static __device__ constexpr
#define TANGRAM_UNROLL _Pragma("unroll")
#define TANGRAM_NO_UNROLL _Pragma("unroll 1")
#else
#include <sched.h>
#include <time.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#define TANGRAM_DEVICE inline
#define TANGRAM_TABLE inline constexpr
#define TANGRAM_UNROLL
#define TANGRAM_NO_UNROLL
#endif

namespace tangram::kernels {

// One thread of a launch; grids and blocks are one-dimensional.
struct Where {
  uint32_t block = 0, blocks = 1;
  uint32_t thread = 0, threads = 1;
};

// The widest access. Little-endian, like all supported machines.
struct alignas(16) Word16 {
  uint64_t low = 0, high = 0;
};

#ifndef __CUDACC__
// A GPU aborts the program at an unaligned access, where a host continues: a twin must not hide it.
inline void ExpectAligned(uint64_t address, uint64_t to) {
  if (address % to == 0) return;
  std::fprintf(stderr,
               "kernels: address 0x%" PRIx64 " is no multiple of %" PRIu64 ", as a GPU wants it\n",
               address, to);
  std::abort();
}
#endif

// Direct access to memory, by addresses that are multiples of the access size. Another class with
// these members may count accesses (sectors.h).
class DirectMemory {
 public:
  // For counting. A round is an iteration of the kernel's outermost loop. The accesses after a
  // request number, up to the next, are one request of all threads of a warp with the same number
  // in the same round.
  TANGRAM_DEVICE void Round() {}
  TANGRAM_DEVICE void Request(uint32_t /*number*/) {}

  // For data that is read once: it should not evict an engine's data from the caches.
  template <typename T>
  TANGRAM_DEVICE T Load(uint64_t address) {
#ifdef __CUDACC__
    if constexpr (sizeof(T) == 16) {
      const ulonglong2 word = __ldcs(reinterpret_cast<const ulonglong2*>(address));
      return T{word.x, word.y};
    } else if constexpr (sizeof(T) == 8) {
      return static_cast<T>(__ldcs(reinterpret_cast<const unsigned long long*>(address)));
    } else {
      return __ldcs(reinterpret_cast<const T*>(address));
    }
#else
    ExpectAligned(address, sizeof(T));
    return Read<T>(address);
#endif
  }
  template <typename T>
  TANGRAM_DEVICE void Store(uint64_t address, const T& value) {
#ifdef __CUDACC__
    if constexpr (sizeof(T) == 16) {
      __stcs(reinterpret_cast<ulonglong2*>(address), ulonglong2{value.low, value.high});
    } else if constexpr (sizeof(T) == 8) {
      __stcs(reinterpret_cast<unsigned long long*>(address),
             static_cast<unsigned long long>(value));
    } else {
      __stcs(reinterpret_cast<T*>(address), value);
    }
#else
    ExpectAligned(address, sizeof(T));
    std::memcpy(reinterpret_cast<void*>(address), &value, sizeof(T));
#endif
  }
  // For entries of a list, which many threads read.
  template <typename T>
  TANGRAM_DEVICE T Read(uint64_t address) {
#ifdef __CUDACC__
    return *reinterpret_cast<const T*>(address);
#else
    ExpectAligned(address, alignof(T));
    T out;
    std::memcpy(static_cast<void*>(&out), reinterpret_cast<const void*>(address), sizeof(T));
    return out;
#endif
  }

  // Atomic; returns the old value. T: uint32_t or uint64_t.
  template <typename T>
  TANGRAM_DEVICE T Add(uint64_t address, T value) {
#ifdef __CUDACC__
    if constexpr (sizeof(T) == 8) {
      return atomicAdd(reinterpret_cast<unsigned long long*>(address),
                       static_cast<unsigned long long>(value));
    } else {
      return atomicAdd(reinterpret_cast<T*>(address), value);
    }
#else
    const T before = Read<T>(address);
    Store<T>(address, static_cast<T>(before + value));
    return before;
#endif
  }
  TANGRAM_DEVICE void Least(uint64_t address, uint64_t value) {
#ifdef __CUDACC__
    atomicMin(reinterpret_cast<unsigned long long*>(address),
              static_cast<unsigned long long>(value));
#else
    if (value < Read<uint64_t>(address)) Store<uint64_t>(address, value);
#endif
  }
  // A reader that sees this thread's later writes sees its earlier ones too.
  TANGRAM_DEVICE void Fence() {
#ifdef __CUDACC__
    __threadfence();
#endif
  }

  // A word that other GPUs, processes or ranks write concurrently. A reader that sees a published
  // value also sees all writes of earlier launches, and of this thread, until then. T: uint32_t or
  // uint64_t.
  template <typename T>
  TANGRAM_DEVICE T Look(uint64_t address) {
    T out;
#ifdef __CUDACC__
    if constexpr (sizeof(T) == 8) {
      asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(out) : "l"(address) : "memory");
    } else {
      asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(out) : "l"(address) : "memory");
    }
#else
    ExpectAligned(address, sizeof(T));
    out = __atomic_load_n(reinterpret_cast<const T*>(address), __ATOMIC_ACQUIRE);
#endif
    return out;
  }
  template <typename T>
  TANGRAM_DEVICE void Publish(uint64_t address, T value) {
#ifdef __CUDACC__
    if constexpr (sizeof(T) == 8) {
      asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
    } else {
      asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
    }
#else
    ExpectAligned(address, sizeof(T));
    __atomic_store_n(reinterpret_cast<T*>(address), value, __ATOMIC_RELEASE);
#endif
  }
  // Nanoseconds since an arbitrary moment.
  TANGRAM_DEVICE uint64_t Now() {
#ifdef __CUDACC__
    uint64_t out;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(out));
    return out;
#else
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
#endif
  }
  // Called between two polls. A waiting kernel must tolerate a restart here: a recording driver
  // lets others run in between.
  TANGRAM_DEVICE void Pause() {
#ifdef __CUDACC__
    __nanosleep(100);
#else
    sched_yield();
#endif
  }
};

template <typename T>
TANGRAM_DEVICE T Smaller(T a, T b) {
  return a < b ? a : b;
}

// The widest access, at most 16 bytes, that divides all of these. `bits`: addresses and pitches,
// or-ed.
TANGRAM_DEVICE uint32_t WidthOf(uint64_t bits) {
  bits |= 16;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

// 8 bytes at an address that is a multiple of `width` (WidthOf).
template <typename Memory>
TANGRAM_DEVICE uint64_t Load8(Memory& memory, uint64_t address, uint32_t width) {
  if (width >= 8) return memory.template Load<uint64_t>(address);
  if (width == 4) {
    return memory.template Load<uint32_t>(address) |
           static_cast<uint64_t>(memory.template Load<uint32_t>(address + 4)) << 32;
  }
  uint64_t out = 0;
  for (uint32_t i = 0; i < 8; ++i)
    out |= static_cast<uint64_t>(memory.template Load<uint8_t>(address + i)) << (8 * i);
  return out;
}

template <typename Memory>
TANGRAM_DEVICE Word16 Load16(Memory& memory, uint64_t address, uint32_t width) {
  if (width == 16) return memory.template Load<Word16>(address);
  return {Load8(memory, address, width), Load8(memory, address + 8, width)};
}

template <typename Memory>
TANGRAM_DEVICE void Store16(Memory& memory, uint64_t address, uint32_t width, const Word16& value) {
  if (width == 16) return memory.template Store<Word16>(address, value);
  for (uint32_t half = 0; half < 2; ++half, address += 8) {
    const uint64_t word = half == 0 ? value.low : value.high;
    if (width == 8) {
      memory.template Store<uint64_t>(address, word);
    } else if (width == 4) {
      memory.template Store<uint32_t>(address, static_cast<uint32_t>(word));
      memory.template Store<uint32_t>(address + 4, static_cast<uint32_t>(word >> 32));
    } else {
      for (uint32_t i = 0; i < 8; ++i)
        memory.template Store<uint8_t>(address + i, static_cast<uint8_t>(word >> (8 * i)));
    }
  }
}

}  // namespace tangram::kernels
