// Cases of the kernels of a decode step: both sides give the same bits.
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/gpu/draw.h"
#include "tests/gpu/twin_case.h"

namespace tangram::gpu {
namespace {

constexpr uint32_t kManyBlocks = 512;

// The data of a case, allocated piece by piece; undrawn data is 0.
class Pieces {
 public:
  Pieces(Image* image, uint64_t seed) : image_(*image), draw_(seed) {}

  uint64_t Floats(uint64_t count) {
    const uint64_t at = Room(count * 4);
    for (uint64_t i = 0; i < count; ++i) {
      // Various magnitudes, some close to 0.
      const auto whole =
          static_cast<double>(static_cast<int64_t>(draw_.Below(1 << 25)) - (1 << 24));
      Put(at + 4 * i, static_cast<float>(std::ldexp(whole, -static_cast<int>(draw_.From(22, 34)))));
    }
    return image_.base() + at;
  }
  uint64_t Bf16(uint64_t count) {
    const uint64_t at = Room(count * 2);
    for (uint64_t i = 0; i < count; ++i) {
      const auto bits = static_cast<uint16_t>(draw_.From(0x3b00, 0x3f80) | draw_.Below(2) << 15);
      Put(at + 2 * i, bits);
    }
    return image_.base() + at;
  }
  uint64_t Below(uint64_t count, uint32_t end) {
    const uint64_t at = Room(count * 4);
    for (uint64_t i = 0; i < count; ++i) Put(at + 4 * i, static_cast<uint32_t>(draw_.Below(end)));
    return image_.base() + at;
  }
  uint64_t Choices(uint64_t count, uint32_t experts) {
    const uint64_t at = Room(count * sizeof(kernels::Choice));
    for (uint64_t i = 0; i < count; ++i) {
      Put(at + i * sizeof(kernels::Choice),
          kernels::Choice{static_cast<uint32_t>(draw_.Below(experts)), 0.125f});
    }
    return image_.base() + at;
  }
  uint64_t Room(uint64_t bytes) {
    const uint64_t at = std::exchange(next_, RoundUp(next_ + bytes, 64));
    if (next_ > image_.data().size()) std::abort();  // the case declared too little data
    return at;
  }
  uint64_t Results(uint64_t bytes) { return image_.base() + Room(bytes); }
  Draw& draw() { return draw_; }

 private:
  template <typename T>
  void Put(uint64_t at, T value) {
    std::memcpy(&image_.data()[at], &value, sizeof value);
  }

  Image& image_;
  Draw draw_;
  uint64_t next_ = 0;
};

template <typename Parameters>
void Launch(Image* image, const char* kernel, uint64_t results, const Parameters& parameters) {
  image->Launch(kernel, kernels::ItemsLaunch(results, kManyBlocks), parameters);
}

TwinCase MatvecCase(uint32_t seed, uint64_t rows, uint64_t outputs, uint64_t columns) {
  const uint64_t bytes = (rows * columns + rows * outputs) * 4 + outputs * columns * 2 + 256;
  return {"matvec", bytes, [=](Image* image) {
            Pieces data(image, seed);
            const kernels::MatvecParameters p{data.Results(rows * outputs * 4),
                                              outputs * 4,
                                              data.Floats(rows * columns),
                                              columns * 4,
                                              data.Bf16(outputs * columns),
                                              columns * 2,
                                              rows,
                                              outputs,
                                              columns};
            Launch(image, "matvec", rows * outputs, p);
          }};
}

// Rows that are embedded, normalised, rotated and summed.
TwinCase RowsCase(uint32_t seed) {
  constexpr uint64_t kRows = 5, kHeads = 4, kDim = 64, kColumns = kHeads * kDim;
  return {"rope", 1 << 20, [=](Image* image) {
            Pieces data(image, seed);
            const uint64_t x = data.Results(kRows * kColumns * 4);
            const uint64_t weights = data.Results(1000 * kColumns * 2);
            Launch(image, "fill_bf16", 1000 * kColumns,
                   kernels::FillParameters{weights, 1000 * kColumns, 5, seed, 0.7f});
            Launch(image, "embed", kRows * kColumns,
                   kernels::EmbedParameters{x, kRows, kColumns, data.Below(kRows, 1000), weights});
            Launch(image, "rms_norm", kRows * kHeads,
                   kernels::RmsNormParameters{x, x, kRows * kHeads, kDim, 1e-6f});
            Launch(image, "rope", kRows * kHeads * kDim / 2,
                   kernels::RopeParameters{x, kRows, kHeads, kDim, data.Below(kRows, 9),
                                           data.Floats(9 * kDim)});
            const uint64_t parts = data.Floats(3 * kRows * kColumns);
            Launch(
                image, "add_parts", kRows * kColumns,
                kernels::AddPartsParameters{x, kRows * kColumns, parts, 3, kRows * kColumns * 4});
          }};
}

TwinCase AttentionCase(uint32_t seed) {
  constexpr uint64_t kRows = 3, kHeads = 8, kKv = 2, kDim = 32, kBlock = 16, kBlocks = 4;
  constexpr uint64_t kMost = kBlock * kBlocks, kPage = 2 * kBlock * kDim * 4;
  return {"attend_mix", 1 << 20, [=](Image* image) {
            Pieces data(image, seed);
            std::vector<uint64_t> table(kRows * kKv * kBlocks);
            for (uint64_t& page : table) page = data.Floats(kPage / 4);
            const uint64_t positions = data.Below(kRows, kMost);
            const kernels::PagesOf pages{
                image->Append(table), kKv, kBlocks, kBlock, kDim, positions};
            const uint64_t k = data.Floats(kRows * kKv * kDim), v = data.Floats(kRows * kKv * kDim);
            Launch(image, "kv_write", kRows * kKv * kDim,
                   kernels::KvWriteParameters{pages, k, v, kRows});
            const kernels::AttendParameters attend{pages,
                                                   data.Floats(kRows * kHeads * kDim),
                                                   kRows,
                                                   kHeads,
                                                   kHeads / kKv,
                                                   data.Results(kRows * kHeads * kMost * 4),
                                                   kMost,
                                                   data.Results(kRows * kHeads * kDim * 4),
                                                   kHeads * kDim * 4,
                                                   0.17f};
            Launch(image, "attend_scores", kRows * kHeads * kMost, attend);
            Launch(image, "attend_mix", kRows * kHeads * kDim, attend);
          }};
}

// Half of the experts are on this rank.
TwinCase ExpertsCase(uint32_t seed, uint64_t hidden, uint64_t inner) {
  constexpr uint64_t kRows = 4, kTop = 3, kExperts = 6;
  return {"expert_down", 4 << 20, [=](Image* image) {
            Pieces data(image, seed);
            std::vector<uint64_t> places(kExperts);
            for (uint64_t e = 0; e < kExperts; e += 2) places[e] = data.Bf16(3 * inner * hidden);
            const uint64_t choices = data.Choices(kRows * kTop, kExperts);
            Launch(image, "route", kRows,
                   kernels::RouteParameters{data.Results(kRows * kTop * sizeof(kernels::Choice)),
                                            data.Floats(kRows * 40), kRows, 40, kTop});
            const kernels::ExpertParameters p{choices,
                                              kRows,
                                              kTop,
                                              image->Append(places),
                                              hidden,
                                              inner,
                                              data.Floats(kRows * hidden),
                                              data.Results(kRows * kTop * inner * 4),
                                              data.Results(kRows * hidden * 4)};
            Launch(image, "expert_up", kRows * kTop * inner, p);
            Launch(image, "expert_down", kRows * hidden, p);
          }};
}

TwinCase PickCase(uint32_t seed) {
  constexpr uint64_t kRows = 6, kVocabulary = 700;
  return {"pick_token", 1 << 18, [=](Image* image) {
            Pieces data(image, seed);
            const uint64_t positions = data.Below(kRows, 30);
            Launch(image, "pick_token", kRows,
                   kernels::PickParameters{data.Floats(kRows * kVocabulary), kRows, kVocabulary,
                                           data.Results(kRows * 4), positions,
                                           data.Below(kRows * 32, kVocabulary), 32 * 4,
                                           data.Below(kRows, 32)});
          }};
}

}  // namespace

void AddDecodeCases(uint32_t seed, uint64_t scale, std::vector<TwinCase>* cases) {
  cases->push_back(MatvecCase(seed, 3, 70, 33));
  cases->push_back(MatvecCase(seed + 1, 8, 64 * scale, 512));
  for (const uint32_t other : {10U, 20U}) {
    cases->push_back(RowsCase(seed + other));
    cases->push_back(AttentionCase(seed + other + 1));
    cases->push_back(PickCase(seed + other + 2));
  }
  cases->push_back(ExpertsCase(seed + 4, 24, 10));
  cases->push_back(ExpertsCase(seed + 5, 256, 64));
}

}  // namespace tangram::gpu
