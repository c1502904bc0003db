// A GPU in this process: its primary context, the properties of its memory, and its running work.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "agent/device/cuda_driver.h"
#include "agent/device/cuda_kernels.h"
#include "agent/device/cuda_scratch.h"
#include "agent/device/cuda_work.h"

namespace tangram::device {

// One per device in use, for all users in the process. Other libraries (an engine's framework)
// share the primary context with it.
class CudaContext {
 public:
  // `ordinal` counts the GPUs that the process may use, from 0. kInvalid, in one line: no driver
  // (CudaDriver::Load), no such device, or an unsupported one, with the reason.
  static Result<std::shared_ptr<CudaContext>> Open(const std::string& library, int ordinal);
  ~CudaContext();

  const CudaDriver& driver() const { return *driver_; }
  const std::string& name() const { return name_; }
  const std::string& capability() const { return capability_; }  // compute capability, e.g. "9.0"
  // Handles and mappings are multiples of this, in bytes.
  uint64_t granularity() const { return granularity_; }
  // Properties of memory of this device that can be exported to other processes.
  CUmemAllocationProp properties() const;
  // Its address on the PCI bus, by which other libraries identify it; empty: unknown to the driver.
  std::string PciBusId() const;
  // "F of T bytes of the device are free", for messages.
  std::string Room() const;
  CudaWork& work() { return work_; }
  // Needed for launches, created by the first call. A device with its own memory makes that call at
  // the start.
  struct Launching {
    const CudaKernels* kernels = nullptr;  // null: this build has none (-DTANGRAM_CUDA=OFF)
    CudaScratch* scratch = nullptr;        // null without kernels
  };
  // kInternal: the device rejects the kernels; kNoMemory with the numbers: no scratch.
  Result<Launching> ForLaunches();

  // Makes the context current for the calling thread until the end of a scope. Afterwards it stays
  // current, unless another one was: that one is restored.
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
  std::mutex mu_;  // guards the members below
  std::unique_ptr<const CudaKernels> kernels_;
  std::unique_ptr<CudaScratch> scratch_;
};

}  // namespace tangram::device
