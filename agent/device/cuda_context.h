// A GPU in this process: its primary context, what its memory is made of, and what runs on it.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "agent/device/cuda_driver.h"
#include "agent/device/cuda_kernels.h"
#include "agent/device/cuda_scratch.h"
#include "agent/device/cuda_work.h"

namespace tangram::device {

// One for each device that is in use, whoever opens it; others of this process (an engine's
// framework) share the primary context with it.
class CudaContext {
 public:
  // `ordinal` counts the GPUs that the process may use, from 0. kInvalid, in one line: no driver
  // (CudaDriver::Load), no such device, or one that this project cannot use, and why.
  static Result<std::shared_ptr<CudaContext>> Open(const std::string& library, int ordinal);
  ~CudaContext();

  const CudaDriver& driver() const { return *driver_; }
  const std::string& name() const { return name_; }
  const std::string& capability() const { return capability_; }  // to compute, e.g. "9.0"
  // Handles and mappings are of multiples of this, in bytes.
  uint64_t granularity() const { return granularity_; }
  // Memory of this device, which other processes may be given.
  CUmemAllocationProp properties() const;
  // Its address on the PCI bus, by which other libraries know it; empty: the driver does not say.
  std::string PciBusId() const;
  // "F of T bytes of the device are free", for messages.
  std::string Room() const;
  CudaWork& work() { return work_; }
  // What launches want, made when it is first asked for; who has memory of its own asks at the
  // start.
  struct Launching {
    const CudaKernels* kernels = nullptr;  // null: this build has none (-DTANGRAM_CUDA=OFF)
    CudaScratch* scratch = nullptr;        // null without kernels
  };
  // kInternal: the device does not take the kernels; kNoMemory with the numbers: no scratch.
  Result<Launching> ForLaunches();

  // Until the end of a scope the calling thread is in the context. It stays there afterwards,
  // unless it was in another, to which it goes back.
  class Entered {
   public:
    explicit Entered(const CudaContext& context);
    ~Entered();
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;

   private:
    const CudaDriver& driver_;
    CUcontext back_ = nullptr;
  };

 private:
  explicit CudaContext(std::shared_ptr<const CudaDriver> driver) : driver_(std::move(driver)) {}
  Status Examine(int ordinal);

  const std::shared_ptr<const CudaDriver> driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  std::string name_, capability_;
  uint64_t granularity_ = 0;
  CudaWork work_;
  std::mutex mu_;  // of what follows
  std::unique_ptr<const CudaKernels> kernels_;
  std::unique_ptr<CudaScratch> scratch_;
};

}  // namespace tangram::device
