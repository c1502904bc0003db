// One case for a kernel on the GPU and its twin on the host, with the same expected result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/gpu/kernel.h"

namespace tangram::gpu {

// The initial memory of a case and its launches: once with addresses of the host and once with
// those of the device. Data comes first, and is compared; lists, which contain addresses, follow
// and are not compared.
class Image {
 public:
  static constexpr uint64_t kAlignment = 4096;

  // `base` is a multiple of kAlignment; draws from `random` are the same for the same seed.
  Image(uint64_t base, uint64_t data_bytes) : base_(base), data_bytes_(data_bytes) {
    bytes_.resize((data_bytes + 255) / 256 * 256);
  }
  uint64_t base() const { return base_; }
  std::span<std::byte> data() { return std::span(bytes_).first(data_bytes_); }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  // Address of the appended list.
  template <typename T>
  uint64_t Append(const std::vector<T>& list) {
    const size_t at = (bytes_.size() + 15) / 16 * 16;
    bytes_.resize(at + list.size() * sizeof(T) + 16);
    if (!list.empty()) std::memcpy(&bytes_[at], list.data(), list.size() * sizeof(T));
    return base_ + at;
  }

  struct Step {
    std::string_view kernel;
    kernels::Launch launch;
    std::vector<std::byte> parameters;
  };
  template <typename Parameters>
  void Launch(std::string_view kernel, kernels::Launch launch, const Parameters& parameters) {
    const auto* from = reinterpret_cast<const std::byte*>(&parameters);
    steps_.push_back({kernel, launch, {from, from + sizeof(Parameters)}});
  }
  std::vector<Step>& steps() { return steps_; }

 private:
  const uint64_t base_, data_bytes_;
  std::vector<std::byte> bytes_;
  std::vector<Step> steps_;
};

struct TwinCase {
  std::string kernel;  // name of its kernel
  uint64_t data_bytes = 0;
  std::function<void(Image*)> build;
};

// Cases of every kernel, drawn from a seed; `scale` is about their size in MiB.
std::vector<TwinCase> TwinCases(uint32_t seed, uint64_t scale);
// Parts of it, in the order of kernels/.
void AddHashCases(uint32_t seed, uint64_t scale, std::vector<TwinCase>* cases);
void AddCopyCases(uint32_t seed, uint64_t scale, std::vector<TwinCase>* cases);
void AddKvCases(uint32_t seed, uint64_t scale, std::vector<TwinCase>* cases);
void AddNumberCases(uint32_t seed, uint64_t scale, std::vector<TwinCase>* cases);
void AddDecodeCases(uint32_t seed, uint64_t scale, std::vector<TwinCase>* cases);
void AddDispatchCases(uint32_t seed, uint64_t scale, std::vector<TwinCase>* cases);

// Runs a case on both sides. nullopt: all data is equal; else the first difference. Tests use
// `spoil` to change the device's input.
std::optional<std::string> Difference(const Gpu& gpu, const Kernels& kernels, const TwinCase& twin,
                                      const std::function<void(Image*)>& spoil = {});

}  // namespace tangram::gpu
