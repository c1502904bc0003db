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

// Of memory of the device alone. First what has strips is copied; then strips that are to be hashed
// are gathered, from where they arrived; then ranges are copied and hashed, then the others hashed.
class CudaBatch {
 public:
  // A range with a hash, or strips without.
  void Copy(const CopyOp& op);
  void Hash(const Memory& memory, uint64_t* hash);

  bool empty() const;
  // Of scratch; `mirrored` of them in pinned memory too.
  uint64_t bytes() const { return Lay().end; }
  uint64_t mirrored() const { return Lay().mirrored; }
  // Puts all of it on the stream, with scratch of that size, and is empty then. Null where there is
  // no hash.
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
    uint64_t gathered = 0, sums = 0, end = 0;
  };
  Layout Lay() const;
  // Sets the addresses that depend on where the scratch lies.
  void Place(const Layout& at, CUdeviceptr scratch);

  Strips copies_, gathers_;
  uint64_t gathered_bytes_ = 0;
  Ranges copied_, hashed_;
  std::vector<size_t> gathered_;  // of hashed_, those that are gathered first
};

}  // namespace tangram::device
