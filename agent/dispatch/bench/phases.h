// The parts of a pair of dispatch and combine, each timed alone and without waiting: the time of
// one rank at this machine's rates.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "agent/dispatch/memory.h"
#include "agent/dispatch/slot.h"

namespace tangram::dispatch::bench {

// needed: memory traffic that every pair has; done: the library's work, with its loops.
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

// For a rank with `tokens` rows `x`, tokens x top_k packed rows, and `partials` returned sums for
// its tokens; `sent` rows and as many sums pass through rings of `ring` bytes:
//   pack     reads x once, and writes it to as many places, in no order, past the caches
//   read     only reads the experts' outputs
//   write_y  writes y past the caches
//   weigh    reads the experts' outputs in place and weighs them: `partials` sums
//   rings    copies rows to rings that stay in the caches, and sums too
//   sum      adds the sums of a token, from rings to one row
// `outputs` and `packed` have tokens x top_k rows, `y` tokens; no byte of `outputs` is 0. They
// outlive this.
class Phases {
 public:
  Phases(const Format& format, uint32_t tokens, uint64_t partials, uint64_t sent, size_t ring,
         const uint16_t* x, RowMemory& outputs, RowMemory& packed, uint16_t* y);
  void Run(size_t phase) const { run_[phase](); }
  // Bytes read and written, in memory or rings.
  double bytes(size_t phase) const { return bytes_[phase]; }

 private:
  std::vector<uint32_t> places_;  // of packed rows, shuffled
  RowMemory ring_;
  std::array<std::function<void()>, kPhasesOfAPair.size()> run_;
  std::array<double, kPhasesOfAPair.size()> bytes_;
};

}  // namespace tangram::dispatch::bench
