// Latency of small dispatches and combines, next to a ping-pong of the same bytes through shared
// memory.
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "agent/dispatch/bench/benches.h"
#include "agent/dispatch/bench/ranks.h"

namespace tangram::dispatch::bench {
namespace {

constexpr Format kFormat{.hidden = 7168, .top_k = 8, .experts = 256, .most_tokens = 128};
constexpr size_t kBytes = 4000;

// Memory for each direction, and whose turn it is.
struct Table {
  alignas(64) std::atomic<uint64_t> ball;
  alignas(64) uint8_t there[32 << 20], back[32 << 20];
};

// Median microseconds of gloo's two all-to-alls, by bytes from rank to rank.
std::map<uint64_t, double> Gloo(const std::string& gloo, int rounds,
                                const std::vector<uint64_t>& sizes) {
  std::map<uint64_t, double> out;
  if (gloo.empty()) return out;
  std::string command = gloo + " 2 " + std::to_string(rounds);
  for (const uint64_t bytes : sizes) command += " " + std::to_string(bytes);
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return out;
  char line[256];
  while (std::fgets(line, sizeof line, pipe) != nullptr) {
    const auto said = nlohmann::json::parse(line, nullptr, false);
    if (said.is_object() && said.contains("p50_us")) out[said["bytes"]] = said["p50_us"];
  }
  (void)pclose(pipe);
  return out;
}

}  // namespace

int Latency(bool quick, bool (*print)(const nlohmann::json&), const std::string& gloo) {
  nlohmann::json metrics;
  double worst = 0;
  const int rounds = quick ? 200 : 1000;
  constexpr size_t kRow = kFormat.hidden * sizeof(uint16_t);
  const auto gloos = Gloo(gloo, rounds, {kRow, 8 * kRow, 32 * kRow, 128 * kRow});
  double over_gloo = 1e9;
  for (const uint32_t ranks : quick ? std::vector<uint32_t>{2} : std::vector<uint32_t>{2, 4, 8}) {
    for (const uint32_t tokens : {1u, 8u, 32u, 128u}) {
      if (ranks > 2 && tokens == 128) continue;  // needs buffers of whole messages for all pairs
      Folder folder;
      Stage stage(ranks);
      auto* const table = static_cast<Table*>(
          mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
      const bool good = OnRanks(stage, [&](uint32_t rank) -> Status {
        BufferOptions options{.format = kFormat, .geometry = {}, .exchange = {}};
        options.format.most_tokens = tokens;
        auto buffer = Enter(folder, rank, ranks, options);
        if (!buffer.ok()) return buffer.status();
        Exchange& exchange = (*buffer)->exchange();
        const Drawn drawn = Draw(options.format, tokens, rank + 1);
        std::vector<uint16_t> y(drawn.x.size());
        Status status;
        uint64_t packed = 0;
        const auto pair = [&] {
          const auto handle = (*buffer)->Dispatch(0, drawn.rows);
          if (!handle.ok()) {
            status = handle.status();
            return;
          }
          packed = exchange.packed(*handle).rows;
          status = (*buffer)->Combine(*handle, exchange.packed(*handle).x, y.data());
        };
        for (int i = 0; i < 20; ++i) pair();
        stage.Meet();
        for (int i = 0; i < rounds && status.ok(); ++i)
          stage.figure(rank, static_cast<size_t>(i)) = Seconds(pair);
        TANGRAM_RETURN_IF_ERROR(status);
        const size_t row = kFormat.hidden * sizeof(uint16_t);
        stage.figure(rank, kBytes) = static_cast<double>(packed * row);
        stage.Meet();
        // Writes as many bytes as packed rows have, and returns one reduced row per token. Then
        // only the bytes on the wire, one row per token.
        const size_t back = tokens * row;
        std::vector<uint8_t> mine(back * kFormat.top_k, 3), other(back * kFormat.top_k);
        for (int i = 0; rank < 2 && i < 2 * rounds; ++i) {
          const size_t there = i < rounds ? back * kFormat.top_k : back;
          const uint64_t turn = 2 * static_cast<uint64_t>(i);
          const auto wait = [&](uint64_t ball) {
            while (table->ball.load(std::memory_order_acquire) != ball) __builtin_ia32_pause();
          };
          if (rank == 0) {
            stage.figure(2, static_cast<size_t>(i)) = Seconds([&] {
              std::memcpy(table->there, mine.data(), there);
              table->ball.store(turn + 1, std::memory_order_release);
              wait(turn + 2);
              std::memcpy(other.data(), table->back, back);
            });
          } else {
            wait(turn + 1);
            std::memcpy(other.data(), table->there, there);
            std::memcpy(table->back, mine.data(), back);
            table->ball.store(turn + 2, std::memory_order_release);
          }
        }
        // The other work, by both ranks concurrently: writing packed rows, and summing them.
        std::vector<uint8_t> places((packed + 1) * row), sums(back);
        const uint64_t each = std::max<uint64_t>(1, packed / (2 * tokens));
        for (int i = 0; rank < 2 && i < rounds; ++i) {
          stage.Meet(2);
          const double took = Seconds([&] {
            for (uint64_t r = 0; r < packed; ++r)
              std::memcpy(&places[r * row], &mine[r / each % tokens * row], row);
            std::vector<uint8_t> partial[2];
            for (auto& of : partial) of.resize(row);
            for (uint32_t t = 0; t < tokens; ++t) {
              std::vector<const void*> both;
              for (uint32_t s = 0; s < 2; ++s) {
                std::vector<Weighted> rows;
                for (uint64_t k = 0; k < each; ++k)
                  rows.push_back({&places[((t * 2 + s) * each + k) % packed * row], .125f});
                Partial(Element::kBf16, rows, kFormat.hidden, Element::kBf16, partial[s].data());
                both.push_back(partial[s].data());
              }
              Sum(Element::kBf16, both, kFormat.hidden, &sums[t * row]);
            }
          });
          if (rank == 0) stage.figure(3, static_cast<size_t>(i)) = took;
        }
        return OkStatus();
      });
      std::vector<double> pairs, pongs, wires, works;
      for (int i = 0; i < rounds; ++i) {
        pairs.push_back(stage.figure(0, static_cast<size_t>(i)));
        if (ranks > 2) continue;
        pongs.push_back(stage.figure(2, static_cast<size_t>(i)));
        wires.push_back(stage.figure(2, static_cast<size_t>(i + rounds)));
        works.push_back(stage.figure(3, static_cast<size_t>(i)));
      }
      munmap(table, sizeof(Table));
      if (!good) return 1;
      nlohmann::json line{{"ranks", ranks},
                          {"tokens", tokens},
                          {"p50_us", Median(pairs) * 1e6},
                          {"p99_us", Quantile(pairs, .99) * 1e6}};
      if (ranks == 2) {
        const double over = Median(pairs) / Median(pongs);
        line["ping_pong_p50_us"] = Median(pongs) * 1e6;
        line["over_ping_pong"] = over;
        line["wire_ping_pong_p50_us"] = Median(wires) * 1e6;
        line["packing_and_sums_p50_us"] = Median(works) * 1e6;
        metrics["over_wire_packing_and_sums_" + std::to_string(tokens)] =
            Median(pairs) / (Median(wires) + Median(works));
        metrics["over_wire_ping_pong_" + std::to_string(tokens)] = Median(pairs) / Median(wires);
        metrics["over_ping_pong_" + std::to_string(tokens)] = over;
        worst = std::max(worst, over);
        if (const auto other = gloos.find(tokens * kRow); other != gloos.end()) {
          line["gloo_p50_us"] = other->second;
          const double here = other->second / (Median(pairs) * 1e6);
          line["gloo_over"] = here;
          // Relative to an exchange that only transfers, and to one that packs and adds too.
          metrics["gloo_over_" + std::to_string(tokens)] = here;
          metrics["gloo_over_wire_ping_pong_" + std::to_string(tokens)] =
              other->second / (Median(wires) * 1e6);
          metrics["gloo_over_wire_packing_and_sums_" + std::to_string(tokens)] =
              other->second / ((Median(wires) + Median(works)) * 1e6);
          over_gloo = std::min(over_gloo, here);
        }
      }
      print(line);
    }
  }
  // As in tests/bench.py for missing programs.
  metrics["gloo_over"] =
      gloos.empty() ? nlohmann::json("not installed") : nlohmann::json(over_gloo);
  print({{"bench", "dispatch-latency"},
         {"value", worst},
         {"unit",
          "p50 of a dispatch with its combine over a ping-pong of the same bytes, 2 ranks, "
          "the worst of 1 to 128 tokens"},
         {"metrics", metrics}});
  return 0;
}

}  // namespace tangram::dispatch::bench
