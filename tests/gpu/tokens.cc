// A GPU decodes with a graph per layout while experts and KV move from whole to sliced and back,
// experts exchange places, and a rank dies. The results equal, bit for bit, those of the same
// layout loaded from scratch, and within a bound those of one rank.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "tests/gpu/acts.h"
#include "tests/gpu/decoder.h"
#include "tests/gpu/decoder_experts.h"

namespace tangram::gpu {
namespace {

constexpr uint64_t kSeed = 5;
// Relative to the largest logit: sums of 1536 to 8192 fp32 products, in a different order on other
// ranks.
constexpr double kBound = 1e-4;

// Layers of Qwen3-235B-A22B, as many as fit four times: both layouts, and another world for
// comparison.
DecoderShape ShapeFor(const Gpu& gpu, bool small) {
  if (small) return {2, 64, 8, 2, 16, 8, 2, 32, 128, 8, 4, 12};
  DecoderShape out{4, 4096, 64, 4, 128, 128, 8, 1536, 4096, 8, 16, 8};
  const auto needs = [&] { return out.layers * out.experts * out.expert_bytes() / 2 * 9; };
  while (needs() > gpu.free_bytes() && out.layers > 1) --out.layers;
  if (needs() > gpu.free_bytes()) {
    throw Lacks(
        fmt::format("{} bytes of memory are needed, {} are free", needs(), gpu.free_bytes()));
  }
  return out;
}

class Walk {
 public:
  Walk(const Gpu& gpu, const Kernels& kernels, const DecoderShape& shape, uint64_t ranks,
       Recorder* out)
      : gpu_(gpu),
        kernels_(kernels),
        shape_(shape),
        ranks_(ranks),
        out_(out),
        decoder_(gpu, kernels, shape, kSeed),
        experts_(gpu, kernels, shape, ranks, kSeed),
        staging_(gpu),
        whole_(ExpertMode(shape, ranks)),
        sliced_(TensorMode(shape, ranks)),
        left_(WithoutTheLast(whole_)) {}

  void Run() {
    experts_.LoadWhole(experts_.InOrder());
    const size_t expert = decoder_.Capture(whole_), tensor = decoder_.Capture(sliced_);
    const size_t repaired = decoder_.Capture(left_, static_cast<int>(expert));
    decoder_.Place(expert, experts_.WholePlaces());
    Steps(expert, kSteps);
    Check("experts whole", expert, whole_, expert);

    Stage(expert, [&] { experts_.StageSliced(staging_); });
    Gap("to sliced", [&] {
      decoder_.MoveKv(expert, tensor, shape_.rows);
      decoder_.Place(tensor, experts_.SlicedPlaces());
    });
    experts_.SpoilWhole();
    Check("experts sliced", tensor, sliced_, expert);
    Steps(tensor, kSteps);

    Stage(tensor, [&] { experts_.StageWhole(staging_); });
    Gap("to whole", [&] {
      decoder_.MoveKv(tensor, expert, shape_.rows);
      decoder_.Place(expert, experts_.WholePlaces());
    });
    experts_.SpoilSliced();
    Check("whole again", expert, whole_, tensor);
    Steps(expert, kSteps);

    Gap("two experts exchanged", [&] {
      experts_.Exchange(0, 0, shape_.experts - 1);
      decoder_.Place(expert, experts_.WholePlaces());
    });
    Check("two experts exchanged", expert, whole_, expert);

    const std::vector<std::byte> lost = decoder_.Kv(expert);
    experts_.KillTheLast();
    Gap("a rank killed", [&] {
      experts_.Repair();
      decoder_.StartAgain(whole_.of.back().row);
      decoder_.Place(repaired, experts_.WholePlaces());
    });
    Steps(repaired, kSteps);
    CheckComputedAgain(lost, decoder_.Kv(repaired));
    Check("a rank killed", repaired, left_, repaired);

    const auto of = [this](const char* what) { return fmt::format("{} ranks: {}", ranks_, what); };
    out_->Right(of("layouts that compute as if loaded afresh, bit for bit"), afresh_);
    out_->Right(of("layouts that compute what one rank does, to 1e-4"), as_one_);
    out_->Right(of("replays by three graphs, none of them made again"), steps_.size());
    out_->Add({.name = of("memory of three graphs, all resident"),
               .value = static_cast<double>(decoder_.graph_bytes()) / (1 << 20),
               .unit = "MiB"});
    const double step = Quantile(steps_, 0.5);
    out_->Add({.name = fmt::format("a step, {} ranks", ranks_),
               .value = step,
               .unit = "ms",
               .p99 = Quantile(steps_, 0.99),
               .samples = steps_.size()});
    for (const auto& [name, gap] : gaps_) {
      Figure figure{.name = fmt::format("between replays, {} ranks: {}", ranks_, name),
                    .value = gap,
                    .unit = "ms",
                    .ceiling = step,
                    .ceiling_is = "a step"};
      // A repair has no goal: it loads the dead rank's experts again.
      if (name != "a rank killed") {
        figure.goal = 1.1;
        figure.at_most = true;
      }
      out_->Add(figure);
    }
  }

 private:
  static constexpr int kSteps = 4;

  static double Milliseconds(const std::function<void()>& work) {
    return HostMicroseconds(work) / 1000;
  }
  void Steps(size_t layout, int count) {
    for (int i = 0; i < count; ++i) {
      steps_.push_back(Milliseconds([&] { decoder_.Step(layout); }));
    }
  }
  // Runs while steps continue.
  void Stage(size_t layout, const std::function<void()>& put) {
    put();
    const Event staged(gpu_);
    staged.Record(staging_);
    do {
      decoder_.Step(layout);
    } while (!staged.Done() && decoder_.Told().positions[0] + 2 * kSteps < shape_.positions() / 2);
    staged.Wait();
  }
  void Gap(const std::string& what, const std::function<void()>& work) {
    gaps_.emplace_back(what, Milliseconds(work));
  }

  // Compares the next step, here and in others with the same requests, with the KV of layout `had`,
  // the one before a flip.
  void Check(const std::string& what, size_t layout, const Mode& mode, size_t had) {
    const Decoder::Requests before = decoder_.Told();
    const std::vector<std::byte> kv = decoder_.Kv(had);
    decoder_.Step(layout);
    const std::vector<std::byte> logits = decoder_.Logits();
    const auto other = [&](const Mode& as, Decoder::Requests* after) {
      Decoder decoder(gpu_, kernels_, shape_, kSeed);
      DecoderExperts experts(gpu_, kernels_, shape_, as.ranks(), kSeed);
      if (as.sliced) {
        experts.LoadSliced();
      } else {
        experts.LoadWhole(as.ranks() == 1 ? experts.InOrder() : experts_.owners());
      }
      const size_t at = decoder.Capture(as);
      decoder.Place(at, as.sliced ? experts.SlicedPlaces() : experts.WholePlaces());
      decoder.Take(before, at, kv);
      decoder.Step(at);
      *after = decoder.Told();
      return decoder.Logits();
    };
    Decoder::Requests after;
    if (other(mode, &after) == logits && after == decoder_.Told()) {
      ++afresh_;
    } else {
      out_->Wrong(fmt::format("{} ranks, {}: not what the layout computes that is loaded afresh",
                              ranks_, what));
    }
    const double apart = Apart(logits, other(ExpertMode(shape_, 1), &after));
    if (apart <= kBound) {
      ++as_one_;
    } else {
      out_->Wrong(
          fmt::format("{} ranks, {}: {:.2e} of the largest logit from what one rank "
                      "computes; the bound is {:.0e}",
                      ranks_, what, apart, kBound));
    }
  }
  // Compares the dead rank's KV, as far as it was computed again.
  void CheckComputedAgain(const std::vector<std::byte>& lost, const std::vector<std::byte>& again) {
    const auto positions = decoder_.Told().positions;
    const uint64_t row_bytes = shape_.dim * 4, part = shape_.block_tokens * row_bytes;
    std::vector<std::byte> a, b;
    for (uint64_t page = 0; page * shape_.page_bytes() < lost.size(); ++page) {
      const uint64_t block = page % shape_.blocks;
      const uint64_t row = page / shape_.blocks / shape_.kv_heads % shape_.rows;
      if (row < whole_.of.back().row) continue;
      for (uint64_t t = 0; t < shape_.block_tokens; ++t) {
        if (block * shape_.block_tokens + t >= positions[row]) continue;
        for (const uint64_t at : {t * row_bytes, part + t * row_bytes}) {  // K, V
          const auto begin = static_cast<int64_t>(page * shape_.page_bytes() + at);
          const auto end = begin + static_cast<int64_t>(row_bytes);
          a.insert(a.end(), again.begin() + begin, again.begin() + end);
          b.insert(b.end(), lost.begin() + begin, lost.begin() + end);
        }
      }
    }
    const double apart = Apart(a, b);
    if (apart <= kBound) {
      out_->Right(fmt::format("{} ranks: KV computed again after a death, to 1e-4", ranks_), 1);
    } else {
      out_->Wrong(
          fmt::format("{} ranks: KV that was computed again is {:.2e} of the largest from "
                      "what died; the bound is {:.0e}",
                      ranks_, apart, kBound));
    }
  }
  // The largest difference relative to the largest number. Infinite: NaN or infinity in the data.
  static double Apart(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
    double most = 0, largest = 0;
    for (size_t at = 0; at < a.size(); at += sizeof(float)) {
      float x = 0, y = 0;
      std::memcpy(&x, &a[at], sizeof x);
      std::memcpy(&y, &b[at], sizeof y);
      if (!std::isfinite(x) || !std::isfinite(y)) return INFINITY;
      most = std::max(most, std::abs(static_cast<double>(x) - y));
      largest = std::max(largest, std::abs(static_cast<double>(y)));
    }
    return largest == 0 ? INFINITY : most / largest;
  }

  const Gpu& gpu_;
  const Kernels& kernels_;
  const DecoderShape shape_;
  const uint64_t ranks_;
  Recorder* const out_;
  Decoder decoder_;
  DecoderExperts experts_;
  const Stream staging_;
  const Mode whole_, sliced_, left_;
  uint64_t afresh_ = 0, as_one_ = 0;
  std::vector<double> steps_;
  std::vector<std::pair<std::string, double>> gaps_;
};

}  // namespace

void RunTokens(const Task& task) {
  const Gpu gpu(task.driver);
  const Kernels kernels(gpu);
  const DecoderShape shape = ShapeFor(gpu, task.small);
  task.out->Fact("layers", fmt::format("{} of {} experts, hidden {}, {} requests", shape.layers,
                                       shape.experts, shape.hidden, shape.rows));
  for (const uint64_t ranks : {2, 4, 8}) {
    if (ranks > shape.rows) continue;
    Walk(gpu, kernels, shape, ranks, task.out).Run();
  }
}

}  // namespace tangram::gpu
