#include "tests/gpu/staged.h"

namespace tangram::gpu {

Exchange::Exchange(const Gpu& gpu, uint64_t ranks, uint64_t part_bytes)
    : gpu_(gpu), part_bytes_(part_bytes) {
  for (uint64_t r = 0; r < ranks; ++r) {
    send_.push_back(std::make_unique<Buffer>(gpu, ranks * part_bytes));
    received_.push_back(std::make_unique<Buffer>(gpu, ranks * part_bytes));
  }
}

uint64_t Exchange::SendAt(uint64_t rank, uint64_t peer) const {
  return send_[rank]->address() + peer * part_bytes_;
}
uint64_t Exchange::ReceivedAt(uint64_t rank, uint64_t peer) const {
  return received_[rank]->address() + peer * part_bytes_;
}

void Exchange::Put(Stopwatch* watch, const std::function<void(uint64_t rank)>& pack,
                   const std::function<void(uint64_t rank)>& unpack) const {
  for (uint64_t r = 0; r < ranks(); ++r) pack(r);
  watch->Meet();
  for (uint64_t r = 0; r < ranks(); ++r) {
    for (uint64_t i = 1; i <= ranks(); ++i) {
      const uint64_t peer = (r + i) % ranks();
      Copy(gpu_, ReceivedAt(r, peer), SendAt(peer, r), part_bytes_, watch->stream(r));
    }
  }
  // The next exchange packs into the buffers that peers read now.
  watch->Meet();
  for (uint64_t r = 0; r < ranks(); ++r) unpack(r);
}

}  // namespace tangram::gpu
