#include "tests/gpu/twin_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace tangram::gpu {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

}  // namespace

std::vector<TwinCase> TwinCases(uint32_t seed, uint64_t scale) {
  std::vector<TwinCase> out;
  AddHashCases(seed, scale, &out);
  AddCopyCases(seed, scale, &out);
  AddKvCases(seed, scale, &out);
  AddNumberCases(seed, scale, &out);
  AddDecodeCases(seed, scale, &out);
  AddDispatchCases(seed, scale, &out);
  return out;
}

std::optional<std::string> Difference(const Gpu& gpu, const Kernels& kernels, const TwinCase& twin,
                                      const std::function<void(Image*)>& spoil) {
  // The size of a case does not depend on its address.
  Image sized(0, twin.data_bytes);
  twin.build(&sized);
  const uint64_t bytes = RoundUp(sized.bytes().size(), Image::kAlignment);

  const std::unique_ptr<void, Free> host(std::aligned_alloc(Image::kAlignment, bytes));
  auto* const expected = static_cast<std::byte*>(host.get());
  Image here(reinterpret_cast<uint64_t>(expected), twin.data_bytes);
  twin.build(&here);
  std::copy(here.bytes().begin(), here.bytes().end(), expected);
  for (const Image::Step& step : here.steps()) {
    kernels::Find(step.kernel)
        ->twin(step.launch.blocks, step.launch.threads, step.parameters.data());
  }

  const Buffer buffer(gpu, bytes);
  Image there(buffer.address(), twin.data_bytes);
  twin.build(&there);
  if (spoil) spoil(&there);
  Upload(gpu, buffer.address(), there.bytes());
  for (const Image::Step& step : there.steps()) {
    kernels.LaunchWith(step.kernel, step.launch, step.parameters.data(), gpu.stream());
  }
  const auto got = Download(gpu, buffer.address(), twin.data_bytes);
  const auto [first, second] = std::mismatch(got.begin(), got.end(), expected);
  if (first == got.end()) return std::nullopt;
  uint64_t count = 0;
  for (size_t i = 0; i < got.size(); ++i) count += got[i] != expected[i] ? 1 : 0;
  return fmt::format(
      "{} differs from its twin in {} of {} bytes, first at {}: {:#04x}, not {:#04x}", twin.kernel,
      count, got.size(), first - got.begin(), static_cast<unsigned>(*first),
      static_cast<unsigned>(*second));
}

}  // namespace tangram::gpu
