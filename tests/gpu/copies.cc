// The best way to copy by the shape of lines (copy engine or kernel), the number of blocks that the
// kernel needs, and the speed of hashes by the size and the number of ranges.
#include <fmt/format.h>

#include <algorithm>

#include "tests/gpu/acts.h"
#include "tests/gpu/kernel.h"
#include "tests/gpu/timing.h"

namespace tangram::gpu {
namespace {

constexpr int kRounds = 5;

// Lines that are copied from a matrix into a contiguous piece.
struct Shape {
  const char* name;
  uint64_t bytes, pitch;
};
constexpr Shape kShapes[] = {
    {"lines of 192 B of 1,536 (Qwen3-30B at 8)", 192, 1536},
    {"lines of 384 B of 3,072 (Qwen3-235B at 8)", 384, 3072},
    {"lines of 1,536 B of 3,072 (Qwen3-235B at 2)", 1536, 3072},
    {"lines of 64 KiB of 512 KiB", 64 << 10, 512 << 10},
    {"lines of 1 MiB of 2 MiB", 1 << 20, 2 << 20},
};

class Copies {
 public:
  Copies(const Gpu& gpu, const Kernels& kernels, uint64_t total, Recorder* out)
      : gpu_(gpu),
        kernels_(kernels),
        total_(total),
        out_(*out),
        from_(gpu, 8 * total),
        to_(gpu, total),
        watch_(gpu, 1) {
    plain_ = Rate(total_, [&] { Copy(gpu_, to_.address(), from_.address(), total_, stream()); });
  }
  double plain() const { return plain_; }

  void Run(const Shape& shape) {
    const uint64_t lines = total_ / shape.bytes, bytes = lines * shape.bytes;
    Tell(shape, "copy engine, one 2D copy", Rate(bytes, [&] { TwoDimensions(shape, lines); }));
    if (lines > 16384) {
      out_.NotRun(fmt::format("{}: copy engine, a batch", shape.name),
                  fmt::format("it would be one of {} copies", lines));
    } else if (gpu_.more().MemcpyBatchAsync == nullptr) {
      out_.NotRun(fmt::format("{}: copy engine, a batch", shape.name),
                  "the driver has no cuMemcpyBatchAsync (of CUDA 13)");
    } else {
      Tell(shape, "copy engine, a batch", Rate(bytes, [&] { Batch(shape, lines); }));
    }
    const StripList list(
        gpu_, {{to_.address(), shape.bytes, from_.address(), shape.pitch, shape.bytes, lines, 0}});
    for (const uint32_t blocks : {8u, 16u, 24u, 32u, 64u, AllBlocks(gpu_)}) {
      Tell(shape, fmt::format("copy_strips, {} blocks", blocks),
           Rate(bytes, [&] { list.Launch(kernels_, blocks, stream()); }));
    }
  }

 private:
  CUstream stream() const { return watch_.stream(0); }
  double Rate(uint64_t bytes, const std::function<void()>& copy) {
    return 1e-9 * static_cast<double>(bytes) / watch_.Seconds(kRounds, copy);
  }
  void TwoDimensions(const Shape& shape, uint64_t lines) {
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = from_.address();
    copy.srcPitch = shape.pitch;
    copy.dstDevice = to_.address();
    copy.dstPitch = copy.WidthInBytes = shape.bytes;
    copy.Height = lines;
    gpu_.Check(gpu_.driver().Memcpy2DAsync(&copy, stream()), "a copy of lines");
  }
  void Batch(const Shape& shape, uint64_t lines) {
    std::vector<CUdeviceptr> to(lines), from(lines);
    std::vector<size_t> bytes(lines, shape.bytes);
    for (uint64_t i = 0; i < lines; ++i) {
      to[i] = to_.address() + i * shape.bytes;
      from[i] = from_.address() + i * shape.pitch;
    }
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    size_t first = 0;
    gpu_.Check(gpu_.more().MemcpyBatchAsync(to.data(), from.data(), bytes.data(), lines,
                                            &attributes, &first, 1, stream()),
               fmt::format("a batch of {} copies", lines));
  }
  void Tell(const Shape& shape, const std::string& how, double rate) {
    out_.Add({.name = fmt::format("{}: {}", shape.name, how),
              .value = rate,
              .unit = "GB/s",
              .ceiling = plain_,
              .ceiling_is = "GB/s of one range",
              .note = watch_.Note()});
  }

  const Gpu& gpu_;
  const Kernels& kernels_;
  const uint64_t total_;
  Recorder& out_;
  const Buffer from_, to_;
  Stopwatch watch_;
  double plain_ = 0;
};

void RunHashes(const Gpu& gpu, const Kernels& kernels, uint64_t most, double plain, Recorder* out) {
  const Buffer bytes(gpu, most);
  Stopwatch watch(gpu, 1);
  for (const uint64_t size :
       {uint64_t{4} << 10, uint64_t{64} << 10, uint64_t{1536} << 10, uint64_t{36} << 20}) {
    for (const uint64_t count : {1, 8, 64, 512, 8192}) {
      if (size * count > most) continue;
      std::vector<HashList::Bytes> ranges;
      for (uint64_t i = 0; i < count; ++i) ranges.push_back({bytes.address() + i * size, size});
      const HashList list(gpu, ranges);
      const double seconds =
          watch.Seconds(kRounds, [&] { list.Launch(kernels, AllBlocks(gpu), watch.stream(0)); });
      out->Add({.name = fmt::format("hashes of {} ranges of {} KiB", count, size >> 10),
                .value = 1e-9 * static_cast<double>(size * count) / seconds,
                .unit = "GB/s",
                .ceiling = 2 * plain,
                .ceiling_is = "GB/s that a copy reads and writes",
                .note = watch.Note()});
    }
  }
}

}  // namespace

void RunCopies(const Task& task) {
  const Gpu gpu(task.driver);
  const Kernels kernels(gpu);
  const uint64_t total =
      task.small ? 2 << 20 : std::min<uint64_t>(512 << 20, gpu.free_bytes() / 16) >> 21 << 21;
  Copies copies(gpu, kernels, total, task.out);
  for (const Shape& shape : kShapes) copies.Run(shape);
  RunHashes(gpu, kernels, task.small ? 4 << 20 : 4 * total, copies.plain(), task.out);
}

}  // namespace tangram::gpu
