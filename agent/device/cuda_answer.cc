#include "agent/device/cuda_answer.h"

#include "agent/device/hash.h"
#include "agent/device/runs.h"

namespace tangram::device {

void CudaAnswer::Keep() {
  const std::scoped_lock lock(mu_);
  if (arriving_ == nullptr) return;
  kept_.assign(arriving_, arriving_ + wanted_.size());
  arriving_ = nullptr;
}

void CudaAnswer::Deliver() {
  const std::scoped_lock lock(mu_);
  const uint64_t* const values = arriving_ != nullptr ? arriving_ : kept_.data();
  for (size_t i = 0; i < wanted_.size(); ++i) *wanted_[i] = values[i];
}

bool CudaHashed::Done() const {
  if (!last_->Done()) return false;
  (void)Wait();
  return true;
}

Status CudaHashed::Wait() const {
  TANGRAM_RETURN_IF_ERROR(last_->Wait());
  std::call_once(delivered_, [&] {
    for (const auto& answer : answers_) answer->Deliver();
    for (const HashOp& op : of_host_) *op.hash = HashStrips(op.of);
  });
  return OkStatus();
}

}  // namespace tangram::device
