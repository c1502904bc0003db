// What a pair of dispatch and combine consists of, each part by itself and without anybody to wait
// for: how long one rank takes for it at this machine's rates.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "agent/dispatch/memory.h"
#include "agent/dispatch/slot.h"

namespace tangram::dispatch::bench {

// needed: traffic with memory that no pair is without; done: what the library does, with its loops.
struct Phase {
  const char* name;
  bool needed, done;
};
constexpr std::array<Phase, 6> kPhasesOfAPair{{{"pack", true, true},
                                               {"read", true, false},
                                               {"write_y", true, true},
                                               {"weigh", false, true},
                                               {"rings", false, true},
                                               {"sum", false, true}}};

// Of a rank with `tokens` rows `x` that has tokens x top_k packed rows, and of whose tokens
// `partials` rows of sums come back, `sent` of them and as many rows there by rings of
// `ring` bytes:
//   pack     x is read once, and written to as many places, in no order, past the caches
//   read     what experts gave is read, and nothing done with it
//   write_y  y is written past the caches
//   weigh    what experts gave, read as it lies and weighed: `partials` sums
//   rings    rows to rings that stay in the caches, and sums
//   sum      those of a token, from rings to one row
// `outputs` and `packed` have tokens x top_k rows, `y` tokens; no byte of `outputs` is 0. They
// outlive this.
class Phases {
 public:
  Phases(const Format& format, uint32_t tokens, uint64_t partials, uint64_t sent, size_t ring,
         const uint16_t* x, RowMemory& outputs, RowMemory& packed, uint16_t* y);
  void Run(size_t phase) const { run_[phase](); }
  // Read from memory and written to it, or to a ring.
  double bytes(size_t phase) const { return bytes_[phase]; }

 private:
  std::vector<uint32_t> places_;  // of packed rows, shuffled
  RowMemory ring_;
  std::array<std::function<void()>, kPhasesOfAPair.size()> run_;
  std::array<double, kPhasesOfAPair.size()> bytes_;
};

}  // namespace tangram::dispatch::bench
