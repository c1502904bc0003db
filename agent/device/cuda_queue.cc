#include "agent/device/cuda_queue.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>

namespace tangram::device {
namespace {

class CudaQueue final : public Queue {
 public:
  CudaQueue(std::shared_ptr<CudaContext> context, const CudaKernels* kernels, CUstream stream,
            bool own)
      : context_(std::move(context)), kernels_(kernels), stream_(stream), own_(own) {}
  ~CudaQueue() override {
    const CudaContext::Entered in(*context_);
    if (event_ != nullptr) (void)driver().EventDestroy(event_);
    if (!own_) return;
    (void)driver().StreamSynchronize(stream_);
    (void)driver().StreamDestroy(stream_);
  }

  Status Launch(std::string_view kernel, kernels::Launch grid, const void* parameters) override {
    const CudaContext::Entered in(*context_);
    changed_ = true;
    auto found = functions_.find(kernel);
    if (found == functions_.end()) {
      CUfunction function = nullptr;
      TANGRAM_RETURN_IF_ERROR(kernels_->Function(std::string(kernel), &function));
      found = functions_.emplace(kernel, function).first;
    }
    void* all[] = {const_cast<void*>(parameters)};
    return driver().Check(driver().LaunchKernel(found->second, grid.blocks, 1, 1, grid.threads, 1,
                                                1, 0, stream_, all, nullptr),
                          fmt::format("launching {} of {} blocks", kernel, grid.blocks));
  }

  Status Copy(uint64_t to, uint64_t from, uint64_t bytes) override {
    const CudaContext::Entered in(*context_);
    changed_ = true;
    return driver().Check(driver().MemcpyAsync(to, from, bytes, stream_),
                          fmt::format("copying {} bytes", bytes));
  }

  Result<bool> Done() override {
    const CudaContext::Entered in(*context_);
    if (event_ == nullptr)
      TANGRAM_RETURN_IF_ERROR(driver().Check(driver().EventCreate(&event_, CU_EVENT_DISABLE_TIMING),
                                             "an event of a queue"));
    if (std::exchange(changed_, false))
      TANGRAM_RETURN_IF_ERROR(
          driver().Check(driver().EventRecord(event_, stream_), "recording an event"));
    const CUresult done = driver().EventQuery(event_);
    if (done == CUDA_ERROR_NOT_READY) return false;
    TANGRAM_RETURN_IF_ERROR(driver().Check(done, "work of a queue"));
    return true;
  }

  Status Wait() override {
    const CudaContext::Entered in(*context_);
    return driver().Check(driver().StreamSynchronize(stream_), "work of a queue");
  }

 private:
  const CudaDriver& driver() const { return context_->driver(); }

  const std::shared_ptr<CudaContext> context_;
  const CudaKernels* const kernels_;
  const CUstream stream_;
  const bool own_;
  std::map<std::string, CUfunction, std::less<>> functions_;
  CUevent event_ = nullptr;
  bool changed_ = true;  // since the event was recorded
};

}  // namespace

Result<std::unique_ptr<Queue>> MakeCudaQueue(std::shared_ptr<CudaContext> context, void* stream) {
  const auto launching = context->ForLaunches();
  if (!launching.ok()) return launching.status();
  if (launching->kernels == nullptr)
    return Status{Code::kInvalid, "cuda: this build has no kernels (-DTANGRAM_CUDA=OFF)"};
  auto of = static_cast<CUstream>(stream);
  if (stream == nullptr) {
    const CudaContext::Entered in(*context);
    const CudaDriver& driver = context->driver();
    int least = 0, greatest = 0;
    TANGRAM_RETURN_IF_ERROR(
        driver.Check(driver.CtxGetStreamPriorityRange(&least, &greatest), "priorities of streams"));
    // The highest priority: a rank that waits for rows has nothing else to do.
    TANGRAM_RETURN_IF_ERROR(
        driver.Check(driver.StreamCreateWithPriority(&of, CU_STREAM_NON_BLOCKING, greatest),
                     "a stream of a queue"));
  }
  return std::unique_ptr<Queue>(
      std::make_unique<CudaQueue>(std::move(context), launching->kernels, of, stream == nullptr));
}

}  // namespace tangram::device
