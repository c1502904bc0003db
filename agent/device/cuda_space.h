// Reserved addresses of a GPU and the handles that are mapped there.
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

// A handle, whole, at an offset of a space.
struct CudaRun {
  uint64_t at = 0;
  CudaHandlePtr handle;
};

// Thread-safe.
class CudaSpace final : public Space {
 public:
  // `bytes` is a multiple of `unit`, that of the device's granularity.
  static Result<std::shared_ptr<CudaSpace>> Reserve(std::shared_ptr<CudaContext> context,
                                                    uint64_t bytes, uint64_t unit);
  CudaSpace(std::shared_ptr<CudaContext> context, CUdeviceptr address, uint64_t bytes,
            uint64_t unit)
      : context_(std::move(context)), address_(address), occupancy_(bytes, unit) {}
  ~CudaSpace() override;

  uint64_t address() const override { return address_; }
  uint64_t bytes() const override { return occupancy_.bytes(); }

  // The runs are those of the placements. All of them or none; access is given once for each
  // stretch of addresses without a gap, whatever the order.
  Status Map(std::span<const Placement> placements, std::span<const CudaRun> runs, Access access);

 private:
  struct Mapped {
    CudaHandlePtr handle;
    uint64_t left = 0;  // bytes that nobody has given back
  };

  // Once nothing on the device uses it. A handle of which only a part is given back stays until the
  // rest is, too, and its addresses stay taken: the driver unmaps it whole or not at all.
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
