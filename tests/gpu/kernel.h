// Launches of kernels/ on the GPU, and common helpers of the acts.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "tests/gpu/gpu.h"

namespace tangram::gpu {

// The loaded image.
class Kernels {
 public:
  // Throws Lacks: this build has no GPU code, or none for this GPU.
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

// A list of strips on the device, with the data for its launch.
class StripList {
 public:
  // Numbered by kernels::NumberStrips; `start`: the first block's strip.
  StripList(const Gpu& gpu, std::vector<kernels::CopyStrip> strips, size_t start = 0);
  void Launch(const Kernels& kernels, uint32_t most_blocks, CUstream stream) const;
  uint64_t bytes() const { return bytes_; }  // to copy

 private:
  std::unique_ptr<Buffer> list_;
  kernels::CopyStripsParameters parameters_;
  uint64_t bytes_ = 0;
};

// Ranges on the device that are hashed in place.
class HashList {
 public:
  struct Bytes {
    uint64_t address = 0, bytes = 0;
  };
  HashList(const Gpu& gpu, const std::vector<Bytes>& ranges);
  void Launch(const Kernels& kernels, uint32_t most_blocks, CUstream stream) const;
  // Launches, waits, and downloads.
  std::vector<uint64_t> Hashes(const Kernels& kernels) const;

 private:
  const Gpu& gpu_;
  const size_t count_;
  std::unique_ptr<Buffer> hashes_, scratch_, list_;
  kernels::HashParameters parameters_;
};

// Number of the widest blocks that a GPU runs concurrently.
uint32_t AllBlocks(const Gpu& gpu);

}  // namespace tangram::gpu
