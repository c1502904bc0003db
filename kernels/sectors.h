// Coalescing as a number: a memory that replaces DirectMemory and counts the 32-byte sectors that
// the requests of warps touch. A request is what the 32 threads of a warp load or store by one
// instruction. A touched sector is transferred whole, however few of its bytes are requested.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "kernels/memory.h"

namespace tangram::kernels {

// Loads or stores of data; the lists that kernels read, and atomics, are not counted.
struct Traffic {
  uint64_t requests = 0;
  uint64_t bytes = 0;    // requested
  uint64_t sectors = 0;  // touched, counted once per request
  uint64_t full = 0;     // of them, those with all bytes requested
  // The share of the transferred sectors that is full.
  double full_share() const {
    return sectors == 0 ? 1 : static_cast<double>(full) / static_cast<double>(sectors);
  }
};
struct Traffics {
  Traffic loads, stores;
};

// Works like DirectMemory, and counts. One per launch, whose threads run in their order
// (kernels.cc).
class CountingMemory {
 public:
  static constexpr uint32_t kSector = 32, kWarp = 32;

  // Sets the thread that runs from now on.
  void Begin(const Where& where);
  // The total of all threads that ran.
  Traffics Total();

  void Round() {
    ++round_;
    Request(0);
  }
  void Request(uint32_t number) {
    number_ = number;
    in_request_ = {};
  }
  template <typename T>
  T Load(uint64_t address) {
    Touch(false, address, sizeof(T));
    return memory_.Load<T>(address);
  }
  template <typename T>
  void Store(uint64_t address, const T& value) {
    Touch(true, address, sizeof(T));
    memory_.Store<T>(address, value);
  }
  template <typename T>
  T Read(uint64_t address) {
    return memory_.Read<T>(address);
  }
  template <typename T>
  T Add(uint64_t address, T value) {
    return memory_.Add<T>(address, value);
  }
  void Least(uint64_t address, uint64_t value) { memory_.Least(address, value); }
  void Fence() {}
  template <typename T>
  T Look(uint64_t address) {
    return memory_.Look<T>(address);
  }
  template <typename T>
  void Publish(uint64_t address, T value) {
    memory_.Publish<T>(address, value);
  }
  uint64_t Now() { return memory_.Now(); }
  void Pause() { memory_.Pause(); }

 private:
  // Identifies a request: store or load, round, number, and index of the access since Request.
  using Key = std::tuple<bool, uint64_t, uint32_t, uint32_t>;
  using Sectors = std::map<uint64_t, uint32_t>;  // sector -> requested bytes (bits)

  void Touch(bool store, uint64_t address, uint64_t bytes);
  void EndWarp();

  DirectMemory memory_;
  uint64_t warp_ = 0, round_ = 0;
  uint32_t number_ = 0;
  struct {
    uint32_t loads = 0, stores = 0;
  } in_request_;
  std::map<Key, Sectors> requests_;  // of the warp
  Traffics total_;
};

}  // namespace tangram::kernels
