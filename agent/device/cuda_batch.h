// The kernels' part of a batch of copies and hashes: their lists, and the layout of these in
// scratch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "agent/device/cuda_kernels.h"
#include "agent/device/cuda_scratch.h"
#include "agent/device/device.h"
#include "kernels/parameters.h"

namespace tangram::device {

// Order of the work:
// 1. Bytes from the host are copied to scratch. Strips are copied, also to and from scratch.
// 2. Strips to be hashed are gathered, after their copy.
// 3. Ranges are copied and hashed, then the others hashed.
// 4. Hashes, and bytes gathered for the host, are copied there.
class CudaBatch {
 public:
  // Between memories of the device: a range with a hash, or strips without one.
  void Copy(const CopyOp& op);
  // Strips on one side, a range of the host on the other. Over a link, short lines are slow, and
  // each strip would be a call of the driver.
  void FromHost(const CopyOp& op);
  void ToHost(const CopyOp& op);
  void Hash(const Memory& memory, uint64_t* hash);
  // Upper bounds of the scratch, and of the pinned memory, for one of these.
  static uint64_t MostBytes(const Memory& to, const Memory& from);
  static uint64_t MostMirrored(const Memory& to, const Memory& from);

  bool empty() const;
  // Bytes of scratch; `mirrored` of them are in pinned memory too.
  uint64_t bytes() const { return Lay().end; }
  uint64_t mirrored() const { return Lay().mirrored; }
  // Puts all of it on the stream, with scratch of that size, and is empty afterwards. Null if there
  // is no hash. Memory of the host is read and written until the stream has passed this work.
  Result<std::shared_ptr<CudaAnswer>> Put(const CudaDriver& driver, const CudaKernels& kernels,
                                          const CudaScratch::Lease& scratch, CUstream stream);

 private:
  struct Strips {
    std::vector<kernels::CopyStrip> list;
    uint64_t units = 0;
    void Add(kernels::CopyStrip strip);
  };
  // Ranges, and the destination of each one's hash.
  struct Ranges {
    std::vector<kernels::HashRange> list;
    std::vector<uint64_t*> wanted;
    uint64_t units = 0;
    void Add(kernels::HashRange range, uint64_t* hash);
  };
  // Offsets of lists and hashes, then of parts that are on the device only. Sums of copied ranges
  // are consumed before the other sums are made.
  struct Layout {
    uint64_t copies = 0, gathers = 0, copied = 0, hashed = 0, hashes = 0, mirrored = 0;
    uint64_t area = 0, sums = 0, end = 0;
  };
  Layout Lay() const;
  // Sets the addresses that depend on the scratch's address.
  void Place(const Layout& at, CUdeviceptr scratch);

  // A copy between the host and the area, the part of scratch with bytes in the order of the host.
  struct Run {
    std::byte* host = nullptr;
    uint64_t area = 0, bytes = 0;
  };
  // A place in the area for bytes of the host; adjacent bytes stay adjacent.
  uint64_t PlaceFor(std::byte* host, uint64_t bytes, std::vector<Run>* runs);

  Strips copies_, gathers_;
  uint64_t area_bytes_ = 0;
  std::vector<Run> come_, go_;
  Ranges copied_, hashed_;
  // Indexes of entries with addresses relative to the area: either side of copies_, and hashed_.
  std::vector<size_t> to_area_, from_area_, hashed_area_;
};

}  // namespace tangram::device
