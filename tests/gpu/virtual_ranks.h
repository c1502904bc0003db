// Ranks of one GPU that exchange rows of experts: the parameters of the dispatch and combine
// kernels, and their data in memory, for any address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "kernels/dispatch_layout.h"

namespace tangram::gpu {

struct VirtualShape {
  uint32_t ranks = 0, tokens = 0, hidden = 0, experts = 0, top_k = 0;
  uint32_t x = kernels::kRowF32, wire = kernels::kRowF32, sums = kernels::kRowF32;
  uint32_t copies = 1;  // replicas of each expert, on as many ranks
  uint64_t seed = 0;

  uint32_t outputs() const {
    return sums == kernels::kRowBf16 ? kernels::kRowBf16 : kernels::kRowF32;
  }
};

// The ranks of one world. Data (inboxes, turns, rows, packed rows, experts' results, y) is in a
// range of the caller. Lists, which contain addresses, and scratch are passed to `append`, which
// returns their place.
class VirtualRanks {
 public:
  using Append = std::function<uint64_t(const std::vector<std::byte>&)>;
  static uint64_t DataBytes(const VirtualShape& shape);
  VirtualRanks(const VirtualShape& shape, uint64_t data, const Append& append);

  // In order: send, receive, send back, receive back. All ranks complete a phase before the next
  // one begins, so no kernel waits. `lane` is the parameter's value.
  struct Phase {
    std::vector<const char*> kernels;
    uint32_t lane = 0;
  };
  static const std::vector<Phase>& Phases();
  // The parameters of a rank.
  kernels::DispatchParameters& of(uint32_t rank) { return ranks_[rank]; }

  // Offsets in data: x of all ranks [ranks][tokens][hidden], and y likewise; and the bytes of x.
  uint64_t x_at() const { return x_at_; }
  uint64_t x_bytes() const { return x_bytes_; }
  uint64_t given_at() const { return given_at_; }
  uint64_t given_bytes() const { return given_bytes_; }
  uint64_t y_at() const { return y_at_; }
  uint64_t y_bytes() const { return y_bytes_; }
  uint64_t turns_at() const { return turns_at_; }

 private:
  uint64_t x_at_ = 0, x_bytes_ = 0, given_at_ = 0, given_bytes_ = 0, y_at_ = 0, y_bytes_ = 0,
           turns_at_ = 0;
  std::vector<kernels::DispatchParameters> ranks_;
};

}  // namespace tangram::gpu
