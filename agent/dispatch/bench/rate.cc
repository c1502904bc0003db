// Rate of large dispatches and combines, next to plain copies of the bytes that they cannot avoid,
// and next to their parts, timed alone. Also the savings by FP8.
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "agent/dispatch/bench/benches.h"
#include "agent/dispatch/bench/phases.h"
#include "agent/dispatch/bench/ranks.h"

namespace tangram::dispatch::bench {
namespace {

constexpr Format kFormat{.hidden = 7168, .top_k = 8, .experts = 256, .most_tokens = 4096};
// Figures of each round, one after another, then those of all rounds.
enum : size_t { kPair, kDispatch, kCopy, kPhases, kOfRound = kPhases + kPhasesOfAPair.size() };
constexpr size_t kWire = 4000, kBytes = 4001, kError = 4002, kPhaseBytes = 4003;

// Rings that stay in the caches: rows of a slot are read before the next is written.
BufferOptions Options(const Format& format) {
  BufferOptions options{.format = format, .geometry = {4, 256 << 10}, .exchange = {}};
  options.exchange.timeout = std::chrono::seconds(60);
  return options;
}

uint64_t PartialRows(const Drawn& drawn, uint32_t ranks) {
  uint64_t rows = 0;
  for (uint32_t t = 0; t < drawn.rows.count; ++t) {
    uint64_t seen = 0;
    for (uint32_t k = 0; k < kFormat.top_k; ++k) {
      const auto e = static_cast<uint32_t>(drawn.experts[t * kFormat.top_k + k]);
      seen |= uint64_t{1} << (e * ranks / kFormat.experts);
    }
    rows += static_cast<uint64_t>(__builtin_popcountll(seen));
  }
  return rows;
}

}  // namespace

int Rate(bool quick, bool (*print)(const nlohmann::json&)) {
  nlohmann::json metrics;
  double worst = 1e9;
  const uint32_t tokens = quick ? 1024 : 4096;
  for (const uint32_t ranks : quick ? std::vector<uint32_t>{2} : std::vector<uint32_t>{2, 4, 8}) {
    const int rounds = quick ? 5 : 7;
    Folder folder;
    Stage stage(ranks);
    const bool good = OnRanks(stage, [&](uint32_t rank) -> Status {
      auto buffer = Enter(folder, rank, ranks, Options(kFormat));
      if (!buffer.ok()) return buffer.status();
      Exchange& exchange = (*buffer)->exchange();
      const Drawn drawn = Draw(kFormat, tokens, rank + 1);
      std::vector<uint16_t> y(drawn.x.size());
      const size_t row = kFormat.hidden * sizeof(uint16_t);
      const uint64_t bytes = (uint64_t{tokens} * kFormat.top_k + PartialRows(drawn, ranks)) * row;
      Status status;
      double dispatched = 0;
      const auto pair = [&] {
        const auto begin = std::chrono::steady_clock::now();
        const auto handle = (*buffer)->Dispatch(0, drawn.rows);
        dispatched =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        status = handle.ok()
                     // Experts do no work: their outputs are their inputs.
                     ? (*buffer)->Combine(*handle, exchange.packed(*handle).x, y.data())
                     : handle.status();
      };
      const size_t block = uint64_t{tokens} * kFormat.top_k * row;
      RowMemory from, to;
      // Numbers of an ordinary size: products of the smallest ones would be slower.
      std::memset(from.Get(block), 0x3f, block);
      std::memset(to.Get(block), 2, block);
      const auto copy = [&] {
        std::memcpy(to.data(), from.data(), block);
        std::memcpy(to.data(), from.data(), std::min<size_t>(block, bytes - block));
      };
      const uint64_t partials = PartialRows(drawn, ranks);
      const uint64_t sent = partials * (ranks - 1) / ranks;
      std::vector<uint16_t> other(y.size());
      const Phases phases(kFormat, tokens, partials, sent, size_t{1} << 20, drawn.x.data(), from,
                          to, other.data());
      for (size_t p = 0; p < kPhasesOfAPair.size(); ++p)
        stage.figure(rank, kPhaseBytes + p) = phases.bytes(p);
      // Touches the memory of both pairs first.
      for (int i = 0; i < 2; ++i) pair();
      const uint64_t before =
          exchange.wire_bytes(Lane::kDispatch) + exchange.wire_bytes(Lane::kCombine);
      for (int i = 0; i < rounds && status.ok(); ++i) {
        const size_t round = kOfRound * static_cast<size_t>(i);
        stage.Meet();
        stage.figure(rank, round + kPair) = Seconds(pair);
        stage.figure(rank, round + kDispatch) = dispatched;
        stage.Meet();
        stage.figure(rank, round + kCopy) = Seconds(copy);
        for (size_t p = 0; p < kPhasesOfAPair.size(); ++p) {
          stage.Meet();
          stage.figure(rank, round + kPhases + p) = Seconds([&] { phases.Run(p); });
        }
      }
      stage.figure(rank, kWire) =
          static_cast<double>(exchange.wire_bytes(Lane::kDispatch) +
                              exchange.wire_bytes(Lane::kCombine) - before) /
          rounds;
      stage.figure(rank, kBytes) = static_cast<double>(bytes);
      // Weights add up to 1, and each expert returns its input.
      for (size_t i = 0; i < y.size(); i += 1009) {
        float was = 0, is = 0;
        ToFloat(Element::kBf16, &drawn.x[i], 1, &was);
        ToFloat(Element::kBf16, &y[i], 1, &is);
        if (std::abs(is - was) > .02f * std::abs(was) + 1e-6f)
          return {Code::kInternal, "a number came back as another"};
      }
      return status;
    });
    if (!good) return 1;
    const auto median = [&](size_t of) {
      std::vector<double> values;
      for (int i = 0; i < rounds; ++i)
        values.push_back(stage.MostOf(kOfRound * static_cast<size_t>(i) + of));
      return Median(values);
    };
    const double pair = median(kPair), copy = median(kCopy), bytes = stage.figure(0, kBytes);
    const double ratio = copy / pair;
    worst = std::min(worst, ratio);
    double needed = 0, done = 0;
    nlohmann::json phases;
    for (size_t p = 0; p < kPhasesOfAPair.size(); ++p) {
      const Phase& phase = kPhasesOfAPair[p];
      const double took = median(kPhases + p);
      if (phase.needed) needed += took;
      if (phase.done) done += took;
      phases[phase.name] = {{"ms", took * 1e3},
                            {"gb_s_per_rank", stage.figure(0, kPhaseBytes + p) / took / 1e9}};
    }
    const std::string of = std::to_string(ranks);
    metrics["over_copy_" + of] = ratio;
    metrics["of_needed_traffic_" + of] = needed / pair;
    metrics["of_phases_" + of] = done / pair;
    metrics["over_copy_limit_" + of] = copy / needed;
    print({{"ranks", ranks},
           {"tokens", tokens},
           {"pair_ms", pair * 1e3},
           {"dispatch_ms", median(kDispatch) * 1e3},
           {"copy_ms", copy * 1e3},
           {"needed_traffic_ms", needed * 1e3},
           {"phases_ms", done * 1e3},
           {"phases", phases},
           {"bytes_per_rank", bytes},
           {"rate_gb_s_per_rank", bytes / pair / 1e9},
           {"copy_gb_s_per_rank", bytes / copy / 1e9},
           {"wire_bytes_per_rank", stage.figure(0, kWire)},
           {"over_copy", ratio}});
  }
  print({{"bench", "dispatch"},
         {"value", worst},
         {"unit", "bytes/s of packed rows and reduced rows over those of a plain copy, the worst"},
         {"metrics", metrics}});
  return 0;
}

int Fp8(bool quick, bool (*print)(const nlohmann::json&)) {
  const uint32_t tokens = quick ? 128 : 1024;
  constexpr uint32_t kRanks = 2;
  Folder folder[2];
  Stage stage(kRanks);
  const bool good = OnRanks(stage, [&](uint32_t rank) -> Status {
    const Drawn drawn = Draw(kFormat, tokens, rank + 1);
    std::vector<uint16_t> y[2];
    double wire[2];
    for (const bool fp8 : {false, true}) {
      Format format = kFormat;
      if (fp8) format.wire = Element::kFp8;
      auto buffer = Enter(folder[fp8], rank, kRanks, Options(format));
      if (!buffer.ok()) return buffer.status();
      Exchange& exchange = (*buffer)->exchange();
      const auto handle = (*buffer)->Dispatch(0, drawn.rows);
      if (!handle.ok()) return handle.status();
      const Packed packed = exchange.packed(*handle);
      auto* const outputs = static_cast<uint16_t*>(exchange.NextCombineBuffer(*handle));
      std::vector<uint8_t> row(RowBytes(format.wire, format.hidden));
      std::vector<float> numbers(format.hidden);
      const size_t size = format.hidden * BytesOf(format.wire);
      const size_t scales = ScalesOf(format.wire, format.hidden);
      for (uint32_t i = 0; i < packed.rows; ++i) {
        std::memcpy(row.data(), static_cast<const uint8_t*>(packed.x) + i * size, size);
        if (fp8) std::memcpy(row.data() + size, packed.scales + i * scales, scales * sizeof(float));
        ToFloat(format.wire, row.data(), format.hidden, numbers.data());
        Convert(Element::kF32, numbers.data(), format.hidden, Element::kBf16,
                outputs + size_t{i} * format.hidden);
      }
      y[fp8].resize(drawn.x.size());
      TANGRAM_RETURN_IF_ERROR((*buffer)->Combine(*handle, outputs, y[fp8].data()));
      wire[fp8] = static_cast<double>(exchange.wire_bytes(Lane::kDispatch));
      stage.Meet();
    }
    double error = 0, sum = 0;
    for (size_t i = 0; i < y[0].size(); ++i) {
      float a = 0, b = 0;
      ToFloat(Element::kBf16, &y[0][i], 1, &a);
      ToFloat(Element::kBf16, &y[1][i], 1, &b);
      error += (a - b) * (a - b);
      sum += a * a;
    }
    stage.figure(rank, kWire) = wire[1] / wire[0];
    stage.figure(rank, kError) = std::sqrt(error / sum);
    return OkStatus();
  });
  if (!good) return 1;
  print({{"bench", "dispatch-fp8"},
         {"value", stage.MostOf(kWire)},
         {"unit", "bytes of dispatched slots in FP8 over those in BF16"},
         {"metrics", {{"relative_error", stage.MostOf(kError)}}}});
  return 0;
}

}  // namespace tangram::dispatch::bench
