// Kernels `dispatch_flag` and `dispatch_wait`, for both lanes. This rank signals that all its data
// for the others is in their inboxes, and waits for the same signal from them.
#pragma once

#include "kernels/dispatch.h"

namespace tangram::kernels {

// Runs after the kernel that wrote rows, on the same stream: a reader that sees the flag sees those
// rows.
template <typename Memory>
TANGRAM_DEVICE void DispatchFlag(const Where& where, const DispatchParameters& p, Memory& memory) {
  World<Memory> world(p, memory);
  const auto flag = memory.template Read<uint64_t>(p.pair + offsetof(DispatchPair, flag));
  const uint32_t ranks = world.ranks();
  for (uint32_t r = where.block * where.threads + where.thread; r < ranks;
       r += where.blocks * where.threads) {
    memory.Round();
    if (world.masked(r)) continue;
    const uint64_t out = world.out(r);
    if (p.lane == 0) memory.template Store<uint32_t>(out + p.inbox.total, Word(memory, p.sent, r));
    memory.template Publish<uint64_t>(out + p.inbox.flags[p.lane], flag);
  }
}

// One thread waits for all ranks, polls each in turn, and masks unresponsive ones. A rank is masked
// if neither its flag nor a heartbeat arrived within the timeout. (A waiting rank sends heartbeats,
// so of ranks that wait for each other only the unresponsive one is masked.) It is also masked if
// it has not finished after three timeouts. Time in which this kernel did not run does not count.
// The state is in memory, so the kernel may be restarted at any Pause.
template <typename Memory>
class WaitForAll {
 public:
  TANGRAM_DEVICE WaitForAll(const DispatchParameters& p, Memory& memory)
      : p_(p), memory_(memory), world_(p, memory) {
    ranks_ = world_.ranks();
    self_ = world_.self();
    flag_ = memory.template Read<uint64_t>(p.pair + offsetof(DispatchPair, flag));
  }

  TANGRAM_DEVICE void Run() {
    while (Pending()) {
      Look(memory_.Now());
      memory_.Pause();
    }
    // Decides whose rows, or sums, are used: fixed for the rest of this pair, even if a rank is
    // masked meanwhile.
    for (uint32_t r = 0; r < ranks_; ++r) {
      uint32_t use = !world_.masked(r) && Here(r) ? 1 : 0;
      if (use != 0 && p_.lane == 0) {
        use = memory_.template Read<uint32_t>(world_.in(r) + p_.inbox.total);
        if (use > p_.most_tokens) {
          world_.Mask(r, kMalformed);
          use = 0;
        }
      }
      memory_.template Store<uint32_t>((p_.lane == 0 ? p_.came : p_.summed) + r * uint64_t{4}, use);
    }
  }

 private:
  TANGRAM_DEVICE uint64_t At(uint64_t offset, uint32_t r = 0) const {
    return p_.wait + offset + r * sizeof(uint64_t);
  }
  TANGRAM_DEVICE uint64_t Get(uint64_t at) { return memory_.template Read<uint64_t>(at); }
  TANGRAM_DEVICE void Put(uint64_t at, uint64_t value) {
    memory_.template Store<uint64_t>(at, value);
  }
  TANGRAM_DEVICE bool Here(uint32_t r) {
    return memory_.template Look<uint64_t>(world_.in(r) + p_.inbox.flags[p_.lane]) == flag_;
  }
  TANGRAM_DEVICE bool Pending() {
    bool pending = false;
    for (uint32_t r = 0; r < ranks_; ++r) pending = (!world_.masked(r) && !Here(r)) || pending;
    return pending;
  }

  TANGRAM_DEVICE void Look(uint64_t now) {
    // By lane: it waits for the sums of a pair after it has waited for the pair's rows.
    const uint64_t of = flag_ << 1 | p_.lane;
    if (Get(At(offsetof(DispatchWait, flag))) != of) {
      Put(At(offsetof(DispatchWait, flag)), of);
      Put(At(offsetof(DispatchWait, began)), now);
      Put(At(offsetof(DispatchWait, looked)), now);
      Put(At(offsetof(DispatchWait, told)), now);
      for (uint32_t r = 0; r < ranks_; ++r) Put(At(offsetof(DispatchWait, heard), r), now);
    }
    const uint64_t gap = now - Get(At(offsetof(DispatchWait, looked)));
    Put(At(offsetof(DispatchWait, looked)), now);
    const uint64_t lost = gap > p_.timeout / 4 ? gap : 0;
    const uint64_t began = Get(At(offsetof(DispatchWait, began))) + lost;
    if (lost > 0) Put(At(offsetof(DispatchWait, began)), began);
    for (uint32_t r = 0; r < ranks_; ++r) {
      if (world_.masked(r)) continue;
      uint64_t heard = Get(At(offsetof(DispatchWait, heard), r)) + lost;
      const auto beat = memory_.template Look<uint64_t>(world_.in(r) + p_.inbox.beat);
      if (beat != Get(At(offsetof(DispatchWait, beats), r))) {
        Put(At(offsetof(DispatchWait, beats), r), beat);
        heard = now;
      }
      Put(At(offsetof(DispatchWait, heard), r), heard);
      if (r == self_ || Here(r)) continue;
      if (now - heard > p_.timeout)
        world_.Mask(r, kSilent);
      else if (now - began > 3 * p_.timeout)
        world_.Mask(r, kStuck);
    }
    if (now - Get(At(offsetof(DispatchWait, told))) <= p_.timeout / 4) return;
    Put(At(offsetof(DispatchWait, told)), now);
    for (uint32_t r = 0; r < ranks_; ++r)
      if (!world_.masked(r)) memory_.template Publish<uint64_t>(world_.out(r) + p_.inbox.beat, now);
  }

  const DispatchParameters& p_;
  Memory& memory_;
  World<Memory> world_;
  uint32_t ranks_ = 0, self_ = 0;
  uint64_t flag_ = 0;
};

template <typename Memory>
TANGRAM_DEVICE void DispatchWaitFor(const Where& where, const DispatchParameters& p,
                                    Memory& memory) {
  if (where.block != 0 || where.thread != 0) return;
  memory.Round();
  WaitForAll<Memory>(p, memory).Run();
}

}  // namespace tangram::kernels
