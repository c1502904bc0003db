// Launches of kernels/ on the GPU, and what acts do with them more than once.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "tests/gpu/gpu.h"

namespace tangram::gpu {

// The image, loaded.
class Kernels {
 public:
  // Throws Lacks: this build has no code for GPUs, or none for this one.
  explicit Kernels(const Gpu& gpu);
  ~Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  template <typename Parameters>
  void Launch(std::string_view name, kernels::Launch launch, const Parameters& parameters,
              CUstream stream) const {
    LaunchWith(name, launch, &parameters, stream);
  }
  // `parameters` points at the kernel's struct.
  void LaunchWith(std::string_view name, kernels::Launch launch, const void* parameters,
                  CUstream stream) const;

 private:
  const Gpu& gpu_;
  CUmodule module_ = nullptr;
  std::map<std::string_view, CUfunction> functions_;
};

// A list of strips on the device, with what a launch needs of it.
class StripList {
 public:
  // As kernels::NumberStrips numbers them; `start`: which strip the first block begins with.
  StripList(const Gpu& gpu, std::vector<kernels::CopyStrip> strips, size_t start = 0);
  void Launch(const Kernels& kernels, uint32_t most_blocks, CUstream stream) const;
  uint64_t bytes() const { return bytes_; }  // that are copied

 private:
  std::unique_ptr<Buffer> list_;
  kernels::CopyStripsParameters parameters_;
  uint64_t bytes_ = 0;
};

// Ranges on the device, to be hashed where they lie.
class HashList {
 public:
  struct Bytes {
    uint64_t address = 0, bytes = 0;
  };
  HashList(const Gpu& gpu, const std::vector<Bytes>& ranges);
  void Launch(const Kernels& kernels, uint32_t most_blocks, CUstream stream) const;
  // Launches, waits, and fetches.
  std::vector<uint64_t> Hashes(const Kernels& kernels) const;

 private:
  const Gpu& gpu_;
  const size_t count_;
  std::unique_ptr<Buffer> hashes_, scratch_, list_;
  kernels::HashParameters parameters_;
};

// All blocks that a GPU runs at once, of the widest that there are.
uint32_t AllBlocks(const Gpu& gpu);

}  // namespace tangram::gpu
