// Reserved addresses of a GPU and the handles mapped there.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "agent/device/cuda_handle.h"
#include "agent/device/device.h"
#include "agent/device/occupancy.h"

namespace tangram::device {

// A whole handle at an offset of a space.
struct CudaRun {
  uint64_t at = 0;
  CudaHandlePtr handle;
};

// Thread-safe.
class CudaSpace final : public Space {
 public:
  // `bytes` is a multiple of `unit`, which is a multiple of the device's granularity.
  static Result<std::shared_ptr<CudaSpace>> Reserve(std::shared_ptr<CudaContext> context,
                                                    uint64_t bytes, uint64_t unit);
  CudaSpace(std::shared_ptr<CudaContext> context, CUdeviceptr address, uint64_t bytes,
            uint64_t unit)
      : context_(std::move(context)), address_(address), occupancy_(bytes, unit) {}
  ~CudaSpace() override;

  uint64_t address() const override { return address_; }
  uint64_t bytes() const override { return occupancy_.bytes(); }

  // `runs` are the handles of `placements`. Maps all of them or none. Access is set once per
  // stretch of addresses without a gap, in any order.
  Status Map(std::span<const Placement> placements, std::span<const CudaRun> runs, Access access);

 private:
  struct Mapped {
    CudaHandlePtr handle;
    uint64_t left = 0;  // bytes not unmapped yet
  };

  // Waits until nothing on the device uses it. A partly unmapped handle stays mapped, and its
  // addresses reserved, until all of it is unmapped: the driver unmaps it as a whole.
  bool Unmap(uint64_t at, uint64_t bytes) override;
  Status MapHandles(std::span<const CudaRun> runs);
  Status SetAccess(std::span<const CudaRun> runs, Access access);
  Status UnmapHandle(uint64_t at, uint64_t bytes);

  const std::shared_ptr<CudaContext> context_;
  const CUdeviceptr address_;
  Occupancy occupancy_;
  std::mutex mu_;
  std::map<uint64_t, Mapped> mapped_;  // by offset
};

}  // namespace tangram::device
