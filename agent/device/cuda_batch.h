// What kernels do of a batch of copies and hashes: their lists, and how these lie in scratch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "agent/device/cuda_kernels.h"
#include "agent/device/cuda_scratch.h"
#include "agent/device/device.h"
#include "kernels/parameters.h"

namespace tangram::device {

// First what comes from the host is brought to scratch, and what has strips is copied, also there
// and from there; then strips that are to be hashed are gathered, from where they arrived; then
// ranges are copied and hashed, then the others hashed; at last hashes, and what was gathered for
// the host, go there.
class CudaBatch {
 public:
  // Between memories of the device: a range with a hash, or strips without.
  void Copy(const CopyOp& op);
  // Strips on one side, a range of the host on the other. Over a link lines of some bytes each are
  // slow, and each strip would be a call of the driver.
  void FromHost(const CopyOp& op);
  void ToHost(const CopyOp& op);
  void Hash(const Memory& memory, uint64_t* hash);
  // More than any of these takes of scratch, and of pinned memory.
  static uint64_t MostBytes(const Memory& to, const Memory& from);
  static uint64_t MostMirrored(const Memory& to, const Memory& from);

  bool empty() const;
  // Of scratch; `mirrored` of them in pinned memory too.
  uint64_t bytes() const { return Lay().end; }
  uint64_t mirrored() const { return Lay().mirrored; }
  // Puts all of it on the stream, with scratch of that size, and is empty then. Null where there is
  // no hash.
  // What goes to the host is read and written until the stream is past it.
  Result<std::shared_ptr<CudaAnswer>> Put(const CudaDriver& driver, const CudaKernels& kernels,
                                          const CudaScratch::Lease& scratch, CUstream stream);

 private:
  struct Strips {
    std::vector<kernels::CopyStrip> list;
    uint64_t units = 0;
    void Add(kernels::CopyStrip strip);
  };
  // Ranges, and where the hash of each is wanted.
  struct Ranges {
    std::vector<kernels::HashRange> list;
    std::vector<uint64_t*> wanted;
    uint64_t units = 0;
    void Add(kernels::HashRange range, uint64_t* hash);
  };
  // Offsets: of lists and hashes; of what is on the device alone. Sums of what was copied are used
  // up before the others are made.
  struct Layout {
    uint64_t copies = 0, gathers = 0, copied = 0, hashed = 0, hashes = 0, mirrored = 0;
    uint64_t area = 0, sums = 0, end = 0;
  };
  Layout Lay() const;
  // Sets the addresses that depend on where the scratch lies.
  void Place(const Layout& at, CUdeviceptr scratch);

  // Between the host and the area, bytes of scratch where strips lie one after another.
  struct Run {
    std::byte* host = nullptr;
    uint64_t area = 0, bytes = 0;
  };
  // A place in the area for bytes that lie there on the host; what is side by side stays so.
  uint64_t PlaceFor(std::byte* host, uint64_t bytes, std::vector<Run>* runs);

  Strips copies_, gathers_;
  uint64_t area_bytes_ = 0;
  std::vector<Run> come_, go_;
  Ranges copied_, hashed_;
  // Whose addresses count from where the area begins: of copies_ the sides, of hashed_.
  std::vector<size_t> to_area_, from_area_, hashed_area_;
};

}  // namespace tangram::device
