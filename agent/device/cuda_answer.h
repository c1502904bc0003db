// Hashes on their way from a GPU to who asked for them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "agent/device/cuda_work.h"
#include "agent/device/device.h"

namespace tangram::device {

// Those of one launch. They come to pinned memory that others will use again, so they are kept
// elsewhere from when it is wanted (Keep) until they are asked for. Thread-safe.
class CudaAnswer {
 public:
  // `wanted[i]` is where `arriving[i]` goes.
  CudaAnswer(const uint64_t* arriving, std::vector<uint64_t*> wanted)
      : arriving_(arriving), wanted_(std::move(wanted)) {}

  // Both: once they have arrived.
  void Keep();
  void Deliver();

 private:
  std::mutex mu_;
  const uint64_t* arriving_;  // null: they are kept
  std::vector<uint64_t> kept_;
  const std::vector<uint64_t*> wanted_;
};

// The end of a batch that asks for hashes. Whoever learns by it that the batch is over (and not who
// waits in order to unmap: the caller's memory may be gone then) finds them written, once. After a
// failure they are not.
class CudaHashed final : public Event::State {
 public:
  // `of_host`: memory that no kernel reaches, which is hashed here.
  CudaHashed(std::shared_ptr<const CudaEvent> last,
             std::vector<std::shared_ptr<CudaAnswer>> answers, std::vector<HashOp> of_host)
      : last_(std::move(last)), answers_(std::move(answers)), of_host_(std::move(of_host)) {}

  bool Done() const override;
  Status Wait() const override;

 private:
  const std::shared_ptr<const CudaEvent> last_;
  const std::vector<std::shared_ptr<CudaAnswer>> answers_;
  const std::vector<HashOp> of_host_;
  mutable std::once_flag delivered_;
};

}  // namespace tangram::device
