// tangram-critical-path: the cost that a flip adds to its step. Four ranks in threads of one
// process on a small model, four requests with contexts of 1,040 tokens and more, Expert -> Tensor
// -> Expert; with KV copied ahead, and with all KV moved in the flip. Per flip and rank: bytes
// moved in the flip, and CPU time of the step's thread from the votes to the new epoch (here that
// thread copies; with a real engine its agent copies while the thread waits). The two cases
// alternate in several runs, because one run has only two flips, and its CPU time is up to a third
// off. One JSON line per case, then the summary: bytes in the flip over KV moved; medians.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <random>
#include <vector>

#include "e2e/engine/testing/checkpoint_files.h"
#include "e2e/engine/testing/test_world.h"

namespace tangram::engine::testing {
namespace {

constexpr uint32_t kRanks = 4, kContext = 1040, kAnswer = 200, kPlays = 7;

struct Found {
  double flip = 0, used = 0, copied = 0, unique = 0;  // bytes of all ranks and flips
  double cpu = 0;                                     // microseconds per rank and flip
  uint64_t flips = 0;                                 // of a rank, with KV to migrate
};

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "tangram-critical-path: %s\n", why.c_str());
  std::exit(1);
}

v1::Submit Request(uint32_t n) {
  std::mt19937 random(n);
  v1::Submit out;
  out.set_request("r" + std::to_string(n));
  for (uint32_t i = 0; i < kContext + 5 * n; ++i) out.add_prompt(random() % 97);
  out.set_max_tokens(kAnswer);
  out.set_seed(n);
  return out;
}

Found Play(const model::Checkpoint& checkpoint, std::chrono::milliseconds ahead) {
  TestWorld::Options options{.members = kRanks, .kv_bytes = 24 << 20};
  options.engine.turn.kv_ahead = ahead;
  TestWorld world(&checkpoint, options);
  const uint32_t layers = checkpoint.config().layers;
  const auto flip = [&](uint32_t t) {
    const Status status = world.net.Flip(Uniform(world.names, layers, kRanks, t, t), 60);
    if (!status.ok()) Fail(status.message() + world.Failure());
  };
  flip(1);
  for (uint32_t n = 0; n < kRanks; ++n) world.Submit(n, Request(n));
  for (uint32_t n = 0; n < kRanks; ++n) {
    if (!world.sink.WaitTokens("r" + std::to_string(n), 2)) Fail("no tokens: " + world.Failure());
  }
  Found out;
  const double token_bytes =
      1.0 * layers * checkpoint.config().kv_heads * checkpoint.config().kv_row().floats() * 4;
  for (const uint32_t t : {kRanks, 1u}) {
    for (uint32_t n = 0; n < kRanks; ++n) {
      const size_t tokens = world.sink.Stream("r" + std::to_string(n)).size();
      if (tokens >= kAnswer) Fail("a request ended before the flip");
      out.unique += token_bytes * static_cast<double>(kContext + 5 * n + tokens);
    }
    flip(t);
  }
  if (!world.sink.WaitFinished(kRanks)) Fail("not finished: " + world.Failure());
  world.Stop();
  if (!world.Failure().empty()) Fail(world.Failure());
  for (const auto& rank : world.ranks) {
    const auto& carried = rank->engine->reference().carried();
    out.flip += static_cast<double>(carried.flip);
    out.used += static_cast<double>(carried.used);
    out.copied += static_cast<double>(carried.ahead);
    out.flips = rank->engine->turn().carried();
    out.cpu += static_cast<double>(rank->engine->turn().carrying().count()) / 1e3 /
               static_cast<double>(out.flips * kRanks);
  }
  return out;
}

// The run with the median `value`.
template <typename Value>
double Median(const std::vector<Found>& plays, Value value) {
  std::vector<double> all;
  for (const Found& play : plays) all.push_back(value(play));
  std::ranges::sort(all);
  return all[all.size() / 2];
}

void Tell(const char* what, const Found& found) {
  const nlohmann::json line = {{"case", what},
                               {"flips", found.flips},
                               {"unique_kv_bytes", found.unique},
                               {"moved_bytes", found.used + found.flip},
                               {"ahead_bytes", found.used},
                               {"copied_in_vain_bytes", found.copied - found.used},
                               {"flip_bytes", found.flip},
                               {"cpu_us", found.cpu}};
  std::printf("%s\n", line.dump().c_str());
}

int Main() {
  spdlog::set_level(spdlog::level::off);  // stdout is for figures only
  const std::filesystem::path dir = std::filesystem::temp_directory_path() /
                                    ("tangram-critical-path-" + std::to_string(getpid()));
  ModelSpec spec;
  spec.positions = 2048;
  WriteCheckpoint(dir, spec, 12);
  auto checkpoint = model::Checkpoint::Open(dir, spec.granule_rows);
  std::filesystem::remove_all(dir);
  if (!checkpoint.ok()) Fail(checkpoint.status().message());
  std::vector<Found> all, ahead;
  for (uint32_t play = 0; play < kPlays; ++play) {
    all.push_back(Play(**checkpoint, std::chrono::milliseconds(-1)));
    Tell("all in the flip", all.back());
    ahead.push_back(Play(**checkpoint, std::chrono::seconds(10)));
    Tell("ahead", ahead.back());
  }
  const double cpu = Median(ahead, [](const Found& play) { return play.cpu; });
  const double cpu_all = Median(all, [](const Found& play) { return play.cpu; });
  const auto in_flip = [](const Found& play) { return play.flip / (play.used + play.flip); };
  const nlohmann::json summary = {
      {"bench", "critical-path"},
      {"value", Median(ahead, in_flip)},
      {"unit", "bytes in the flip over KV moved"},
      {"metrics",
       {{"flips", ahead.back().flips},
        {"worst", in_flip(std::ranges::max(ahead, {}, in_flip))},
        {"flip_bytes_a_rank", Median(ahead,
                                     [](const Found& play) {
                                       return play.flip / kRanks / static_cast<double>(play.flips);
                                     })},
        {"flip_bytes_over_unique",
         Median(ahead, [](const Found& play) { return play.flip / play.unique; })},
        {"cpu_us_a_rank", cpu},
        {"cpu_us_a_rank_all_in_the_flip", cpu_all},
        {"cpu_over_all_in_the_flip", cpu / cpu_all}}}};
  std::printf("%s\n", summary.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace tangram::engine::testing

int main() { return tangram::engine::testing::Main(); }
