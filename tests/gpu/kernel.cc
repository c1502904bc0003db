#include "tests/gpu/kernel.h"

#include <fmt/format.h>

#include <string>

namespace tangram::gpu {

Kernels::Kernels(const Gpu& gpu) : gpu_(gpu) {
  const auto image = kernels::Image();
  const CUresult loaded = gpu.driver().ModuleLoadData(&module_, image.data());
  if (loaded != CUDA_SUCCESS) {
    throw Lacks(gpu.driver().Check(loaded, "loading the kernels").message() +
                (image.empty() ? "; this build has none (-DTANGRAM_CUDA=OFF)" : ""));
  }
  for (const kernels::Kernel& kernel : kernels::All()) {
    gpu.Check(gpu.driver().ModuleGetFunction(&functions_[kernel.name], module_,
                                             std::string(kernel.name).c_str()),
              fmt::format("kernel {}", kernel.name));
  }
}

Kernels::~Kernels() { (void)gpu_.driver().ModuleUnload(module_); }

void Kernels::LaunchWith(std::string_view name, kernels::Launch launch, const void* parameters,
                         CUstream stream) const {
  void* list[] = {const_cast<void*>(parameters)};
  gpu_.Check(gpu_.driver().LaunchKernel(functions_.at(name), launch.blocks, 1, 1, launch.threads, 1,
                                        1, 0, stream, list, nullptr),
             fmt::format("launching {} blocks of {}", launch.blocks, name));
}

StripList::StripList(const Gpu& gpu, std::vector<kernels::CopyStrip> strips, size_t start) {
  const uint64_t units = kernels::NumberStrips(strips);
  for (const kernels::CopyStrip& strip : strips) bytes_ += strip.bytes * strip.lines;
  list_ = UploadList(gpu, strips);
  parameters_ = {list_->address(), strips.size(), units,
                 start < strips.size() ? strips[start].first : 0};
}

void StripList::Launch(const Kernels& kernels, uint32_t most_blocks, CUstream stream) const {
  kernels.Launch("copy_strips", kernels::CopyStripsLaunch(parameters_, most_blocks), parameters_,
                 stream);
}

HashList::HashList(const Gpu& gpu, const std::vector<Bytes>& ranges)
    : gpu_(gpu), count_(ranges.size()) {
  hashes_ = std::make_unique<Buffer>(gpu, count_ * sizeof(uint64_t) + 1);
  std::vector<kernels::HashRange> list;
  list.reserve(count_);
  for (const Bytes& range : ranges) {
    list.push_back(
        {range.address, range.bytes, 0, hashes_->address() + list.size() * sizeof(uint64_t), 0});
  }
  const uint64_t units = kernels::NumberRanges(list);
  scratch_ = std::make_unique<Buffer>(gpu, kernels::HashScratchBytes(units, count_) + 1);
  list_ = UploadList(gpu, list);
  parameters_ = {list_->address(), count_, units, scratch_->address()};
}

void HashList::Launch(const Kernels& kernels, uint32_t most_blocks, CUstream stream) const {
  kernels.Launch("hash_sums", kernels::HashSumsLaunch(parameters_, most_blocks), parameters_,
                 stream);
  // Its blocks have one warp each, so many fit.
  kernels.Launch("hash_chain", kernels::HashChainLaunch(parameters_, 16 * most_blocks), parameters_,
                 stream);
}

std::vector<uint64_t> HashList::Hashes(const Kernels& kernels) const {
  Launch(kernels, AllBlocks(gpu_), gpu_.stream());
  const auto bytes = Download(gpu_, hashes_->address(), count_ * sizeof(uint64_t));
  std::vector<uint64_t> out(count_);
  std::copy(bytes.begin(), bytes.end(), std::as_writable_bytes(std::span(out)).begin());
  return out;
}

uint32_t AllBlocks(const Gpu& gpu) {
  constexpr uint32_t kThreadsAtOnce = 2048;  // per multiprocessor, since sm_80
  return gpu.sms() * kThreadsAtOnce / kernels::kMostThreads;
}

}  // namespace tangram::gpu
