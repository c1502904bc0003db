// Rows to the ranks of their experts and sums back, with the shapes of DeepSeek-V3: each phase of a
// pair on all ranks concurrently, compared with a copy of as many bytes. Ranks are streams and
// address ranges of this one GPU: this measures its memory, and no link. No kernel waits for
// another, because streams synchronize between phases.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tests/gpu/acts.h"
#include "tests/gpu/kernel.h"
#include "tests/gpu/timing.h"
#include "tests/gpu/virtual_ranks.h"

namespace tangram::gpu {
namespace {

constexpr int kRounds = 5;

VirtualShape ShapeFor(const Gpu& gpu, bool small, uint32_t ranks, uint32_t tokens) {
  VirtualShape shape{ranks, tokens, 7168, 256, 8};
  shape.x = shape.wire = shape.sums = kernels::kRowBf16;
  if (small) shape.hidden = 256, shape.experts = 16, shape.tokens = std::min(tokens, 48u);
  while (VirtualRanks::DataBytes(shape) > gpu.free_bytes() / 2 && shape.tokens > 1)
    shape.tokens /= 2;
  return shape;
}

class World {
 public:
  World(const Gpu& gpu, const Kernels& kernels, const VirtualShape& shape)
      : gpu_(gpu),
        kernels_(kernels),
        shape_(shape),
        data_(gpu, VirtualRanks::DataBytes(shape)),
        ranks_(shape, data_.address(),
               [&](const std::vector<std::byte>& list) {
                 lists_.push_back(UploadList(gpu, list));
                 return lists_.back()->address();
               }),
        watch_(gpu, shape.ranks) {
    // Integers below 8, so that sums of eight halves of them are exact.
    std::vector<std::byte> x(ranks_.x_bytes());
    for (size_t i = 0; i + 2 <= x.size(); i += 2) {
      const auto number = static_cast<float>(i / 2 % 15) - 7;
      uint32_t bits = 0;
      std::memcpy(&bits, &number, sizeof bits);
      bits >>= 16;
      std::memcpy(&x[i], &bits, 2);
    }
    // Clears flags of an earlier run.
    Upload(gpu, data_.address(), std::vector<std::byte>(data_.bytes()));
    Upload(gpu, data_.address() + ranks_.x_at(), x);
    x_ = std::move(x);
    for (uint32_t r = 0; r < shape.ranks; ++r)
      ranks_.of(r).given = ranks_.of(r).packed;  // the experts return their input
  }

  void Run(Recorder* out) {
    const uint32_t blocks = std::max(1u, AllBlocks(gpu_) / shape_.ranks);
    const auto phase = [&](size_t number) {
      const auto& [kernels, lane] = VirtualRanks::Phases()[number];
      for (uint32_t r = 0; r < shape_.ranks; ++r) {
        kernels::DispatchParameters& p = ranks_.of(r);
        p.lane = lane;
        for (const char* const kernel : kernels)
          kernels_.Launch(kernel, kernels::DispatchLaunch(kernel, p, blocks), p, watch_.stream(r));
      }
      watch_.Meet();
    };
    const double whole = watch_.Seconds(kRounds, [&] {
      for (size_t number = 0; number < 4; ++number) phase(number);
    });
    const double dispatch = watch_.Seconds(kRounds, [&] {
      phase(0);
      phase(1);
    });
    // Sends back the pair that was begun there.
    const double combine = watch_.Seconds(kRounds, [&] {
      phase(2);
      phase(3);
    });
    Judge(out);
    const auto [sent, packed] = Rows(out);
    const uint64_t row = kernels::BytesOfRow(kernels::kRowBf16, shape_.hidden);
    const uint64_t y = uint64_t{shape_.ranks} * shape_.tokens;
    const std::string name =
        fmt::format("{} ranks of {} tokens, hidden {}, top {} of {}, BF16", shape_.ranks,
                    shape_.tokens, shape_.hidden, shape_.top_k, shape_.experts);
    // Reads and writes in halves, as a copy counts them.
    Tell(out, "dispatch: " + name, dispatch, (sent + packed) * row);
    Tell(out, "combine: " + name, combine, (packed + sent + sent + y) * row / 2);
    Tell(out, "both: " + name, whole, (sent + packed) * row + (packed + sent + sent + y) * row / 2);
    out->Add({.name = "time of a pair: " + name, .value = 1e6 * whole, .unit = "us"});
  }

 private:
  void Judge(Recorder* out) {
    // Each must be eight halves of x.
    const auto y = Download(gpu_, data_.address() + ranks_.y_at(), ranks_.y_bytes());
    uint64_t wrong = 0;
    const uint64_t of = uint64_t{shape_.tokens} * shape_.hidden * 2;
    for (uint32_t r = 0; r < shape_.ranks; ++r) {
      const uint64_t x_at = r * (ranks_.x_bytes() / shape_.ranks),
                     y_at = r * (ranks_.y_bytes() / shape_.ranks);
      for (uint64_t i = 0; i < of; i += 2)
        wrong +=
            Number(y, y_at + i) != Number(x_, x_at + i) * 0.5f * static_cast<float>(shape_.top_k)
                ? 1
                : 0;
    }
    if (wrong > 0) {
      out->Wrong(
          fmt::format("{} of {} sums are not those of their rows", wrong, of / 2 * shape_.ranks));
    } else {
      out->Right("sums of ranks that are those of their rows", of / 2 * shape_.ranks);
    }
  }
  static float Number(const std::vector<std::byte>& from, uint64_t at) {
    uint16_t half = 0;
    std::memcpy(&half, &from[at], 2);
    const uint32_t bits = uint32_t{half} << 16;
    float out = 0;
    std::memcpy(&out, &bits, sizeof out);
    return out;
  }

  // Total rows sent to ranks, and packed for experts.
  std::pair<uint64_t, uint64_t> Rows(Recorder* out) {
    uint64_t sent = 0, packed = 0;
    for (uint32_t r = 0; r < shape_.ranks; ++r) {
      const auto counts = Download(gpu_, ranks_.of(r).sent, shape_.ranks * 4);
      for (uint32_t s = 0; s < shape_.ranks; ++s) {
        uint32_t count = 0;
        std::memcpy(&count, &counts[s * 4], 4);
        sent += count;
      }
      kernels::DispatchPair pair;
      const auto bytes = Download(gpu_, ranks_.of(r).pair, sizeof pair);
      std::memcpy(static_cast<void*>(&pair), bytes.data(), sizeof pair);
      packed += pair.kept;
    }
    if (packed != uint64_t{shape_.ranks} * shape_.tokens * shape_.top_k)
      out->Wrong(fmt::format("{} rows are packed", packed));
    return {sent, packed};
  }

  void Tell(Recorder* out, const std::string& name, double seconds, uint64_t bytes) {
    // Between halves of one buffer, on all streams concurrently.
    const uint64_t each = std::min(bytes, data_.bytes() / 2) / shape_.ranks / 16 * 16;
    const Buffer to(gpu_, each * shape_.ranks);
    const double copy = watch_.Seconds(kRounds, [&] {
      for (uint32_t r = 0; r < shape_.ranks; ++r)
        Copy(gpu_, to.address() + r * each, data_.address() + r * each, each, watch_.stream(r));
    });
    out->Add({.name = name,
              .value = 1e-9 * static_cast<double>(bytes) / seconds,
              .unit = "GB/s",
              .ceiling = 1e-9 * static_cast<double>(each * shape_.ranks) / copy,
              .ceiling_is = "GB/s of a copy",
              .note = watch_.Note()});
  }

  const Gpu& gpu_;
  const Kernels& kernels_;
  const VirtualShape shape_;
  const Buffer data_;
  Buffers lists_;
  VirtualRanks ranks_;
  Stopwatch watch_;
  std::vector<std::byte> x_;
};

}  // namespace

void RunDispatch(const Task& task) {
  const Gpu gpu(task.driver);
  const Kernels kernels(gpu);
  for (const uint32_t ranks : {2u, 4u})
    for (const uint32_t tokens : {4096u, 128u})
      World(gpu, kernels, ShapeFor(gpu, task.small, ranks, tokens)).Run(task.out);
}

}  // namespace tangram::gpu
