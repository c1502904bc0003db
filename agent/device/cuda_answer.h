// Hashes on their way from a GPU to the caller.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "agent/device/cuda_work.h"
#include "agent/device/device.h"

namespace tangram::device {

// The hashes of one launch. They arrive in pinned memory that other launches reuse, so Keep copies
// them before the reuse if they were not delivered yet. Thread-safe.
class CudaAnswer {
 public:
  // `wanted[i]` is the destination of `arriving[i]`.
  CudaAnswer(const uint64_t* arriving, std::vector<uint64_t*> wanted)
      : arriving_(arriving), wanted_(std::move(wanted)) {}

  // Call either only after the hashes have arrived.
  void Keep();
  void Deliver();

 private:
  std::mutex mu_;
  const uint64_t* arriving_;  // null: they were copied by Keep
  std::vector<uint64_t> kept_;
  const std::vector<uint64_t*> wanted_;
};

// The end of a batch with hashes. A caller of Done or Wait that learns the end finds the hashes
// written, once. A thread that waits in order to unmap does not write them: the caller's memory may
// no longer exist. After a failure they are not written.
class CudaHashed final : public Event::State {
 public:
  // `of_host`: memory that no kernel reaches, to be hashed here.
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
