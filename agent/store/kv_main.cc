// tangram-kv-move: moves KV of one layer of Qwen3-30B-A3B between data-parallel attention and heads
// split over 8 ranks (4 KV heads, each then on two ranks), and back. 256 requests with the lengths
// of a trace, scaled to memory, move by the engines' plan. Each rank is an agent on the same node
// (agent/mover, `node`); all pull concurrently. Compared with plain copies of the same ranges by 1,
// 2 and 8 threads, and with a copy of as many consecutive bytes. Pulled bytes are compared with the
// minimum that the shapes allow.
//
//   tangram-kv-move TRACE.jsonl
//
// One JSON object per direction, then the summary.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "agent/kv/cover.h"
#include "agent/kv/format.h"
#include "agent/kv/plan.h"
#include "agent/store/testing/world.h"

namespace tangram::store {
namespace {

constexpr uint32_t kRanks = 8, kRequests = 256, kBlock = 16;
constexpr kv::Shape kShape{32, 4, kBlock, 2 * 128 * 2};
constexpr uint64_t kPage = uint64_t{kBlock} * kShape.head_token_bytes;

void Fail(const std::string& why) {
  std::fprintf(stderr, "tangram-kv-move: %s\n", why.c_str());
  std::exit(1);
}
template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) Fail(result.status().message());
  return std::move(result).value();
}

double Seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Prompt and answer lengths of a trace's requests, repeated as needed, scaled to `tokens` in all.
std::vector<uint32_t> Lengths(const char* trace, uint64_t tokens) {
  std::ifstream file(trace);
  std::vector<uint64_t> all;
  for (std::string line; all.size() < kRequests && std::getline(file, line);) {
    const auto request = nlohmann::json::parse(line);
    all.push_back(request.at("input_length").get<uint64_t>() +
                  request.at("output_length").get<uint64_t>());
  }
  if (all.empty()) Fail(std::string(trace) + ": no requests");
  for (size_t i = 0; all.size() < kRequests; ++i) all.push_back(all[i]);
  uint64_t sum = 0;
  for (const uint64_t length : all) sum += length;
  std::vector<uint32_t> out;
  for (const uint64_t length : all) {
    out.push_back(static_cast<uint32_t>(std::max<uint64_t>(1, length * tokens / sum)));
  }
  return out;
}

std::vector<kv::LayerGroups> GroupsOf(uint32_t t) {
  kv::LayerGroups groups;
  for (uint32_t first = 0; first < kRanks; first += t) {
    kv::Group& group = groups.emplace_back();
    for (uint32_t p = 0; p <= t; ++p) {
      if (p < t) group.ranks.push_back(first + p);
      group.query_head_bounds.push_back(kShape.query_heads * p / t);
    }
  }
  return {groups};
}

// Data-parallel attention as in a running world: requests grow in parallel, each takes the next
// free block on demand. Homes are the ranks with the fewest tokens.
kv::Input Data(const std::vector<uint32_t>& lengths, uint32_t pages) {
  kv::Input in;
  in.shape = kShape;
  in.old_groups = GroupsOf(1);
  in.new_groups = GroupsOf(kRanks);
  in.new_ranks = kRanks;
  std::vector<uint64_t> load(kRanks, 0);
  for (uint32_t r = 0; r < kRanks; ++r) in.new_of_old.push_back(static_cast<int32_t>(r));
  for (const uint32_t length : lengths) {
    kv::Request& q = in.requests.emplace_back();
    q.id = "request-" + std::to_string(in.requests.size());
    q.home = static_cast<uint32_t>(std::min_element(load.begin(), load.end()) - load.begin());
    q.length = q.reserved = length;
    load[q.home] += length;
  }
  for (uint32_t r = 0; r < kRanks; ++r) {
    kv::RankState& state = in.ranks.emplace_back();
    state.total_pages = pages;
    uint32_t block = 0;
    for (uint32_t at = 0, grew = 1; grew > 0; at += kBlock) {
      grew = 0;
      for (kv::Request& q : in.requests) {
        if (q.home != r || at >= q.length) continue;
        q.blocks.push_back(block);
        for (uint32_t head = 0; head < kShape.kv_heads; ++head) {
          state.strips.push_back({r, block, head, 0, 1, block * kShape.kv_heads + head, 1});
        }
        ++block, ++grew;
      }
    }
    state.free_pages = pages - block * kShape.kv_heads;
  }
  return in;
}

// The minimum bytes from other ranks. To heads: a rank needs one head of every request of which it
// was not the home. Back: a home lacks all heads except one.
uint64_t Fewest(const kv::Input& in, const kv::Plan& plan, bool to_heads) {
  uint64_t out = 0;
  for (const kv::Request& q : in.requests) {
    const uint64_t head = uint64_t{q.length} * kShape.head_token_bytes;
    out += head * (to_heads ? kRanks - 1 : kShape.kv_heads - 1);
  }
  return plan.requests.size() == in.requests.size() ? out : 0;
}

// One rank's fetches: incoming pages take the first free ones.
struct Part {
  v1::KvPull pull;               // from other ranks, consecutive ranges merged
  std::vector<kv::Strip> after;  // of its later manifest
};

Part PartOf(const kv::Input& in, const kv::RankPlan& plan, uint32_t rank) {
  Part out;
  std::vector<bool> used(in.ranks[rank].total_pages, false);
  for (const kv::Strip& strip : in.ranks[rank].strips) used[strip.page] = true;
  for (const kv::Keep& keep : plan.kept) {
    out.after.push_back({keep.home, keep.block, keep.kv_head, 0, 1, keep.page, 1});
  }
  std::vector<kv::PageCopy> copies;
  uint32_t next = 0;
  for (const kv::Move& move : plan.moves) {
    while (used[next]) ++next;
    out.after.push_back({move.home, move.block, move.kv_head, 0, 1, next, 1});
    copies.push_back({move.source_rank, move.source_page, 1, next, 1, 1, move.tokens});
    used[next] = true;
  }
  const kv::Format pool = kv::PoolOf(kShape, kv::Element::kBf16, in.ranks[rank].total_pages);
  const auto pull = [&](const kv::ByteMove& move) {
    out.pull.add_source_rank(move.source_rank);
    out.pull.add_source_offset(move.source);
    out.pull.add_target_offset(move.target);
    out.pull.add_length(move.length);
    return OkStatus();
  };
  const Status told = kv::TellMoves([&](uint32_t) { return &pool; }, pool, copies, pull);
  if (!told.ok()) Fail(told.message());
  std::sort(out.after.begin(), out.after.end());
  return out;
}

class Bench {
 public:
  Bench(uint64_t kv_bytes, int rounds)
      : rounds_(rounds), world_([kv_bytes] {
          testing::World::Options options;
          options.nodes = kRanks;
          options.kv_bytes = kv_bytes;
          options.shared_memory = true;
          return options;
        }()) {
    for (uint32_t r = 0; r < kRanks; ++r) {
      const std::span<std::byte> kv = world_.AddMember().store->kv();
      for (size_t i = 0; i < kv.size(); i += 8) std::memcpy(&kv[i], &i, 8);
      std::memset(kv.data(), static_cast<int>(r), kPage);
    }
    target_ = world_.First(1);
  }

  // Moves the KV; returns the world afterwards.
  kv::Input Play(const char* name, const kv::Input& in, bool to_heads) {
    const kv::Plan plan = Must(kv::MakePlan(in));
    std::vector<Part> parts;
    uint64_t planned = 0, ranges = 0;
    for (uint32_t r = 0; r < kRanks; ++r) {
      const kv::RankPlan part = Must(kv::MakePart(in, plan, r));
      if (const Status proof = kv::CheckPart(in, plan, r, part); !proof.ok()) Fail(proof.message());
      parts.push_back(PartOf(in, part, r));
      ranges += static_cast<uint64_t>(parts.back().pull.length_size());
      for (const uint32_t length : parts.back().pull.length()) planned += length;
    }
    std::vector<double> ours, side_by_side;
    std::map<size_t, std::vector<double>> plain;
    uint64_t pulled = 0;
    for (int round = 0; round < rounds_; ++round) {
      pulled = 0;
      ours.push_back(Seconds([&] { pulled = Pull(parts); }));
      for (const size_t threads : {size_t{1}, size_t{2}, size_t{kRanks}}) {
        plain[threads].push_back(Seconds([&] { Copy(parts, threads); }));
      }
      side_by_side.push_back(Seconds([&] { CopySideBySide(planned); }));
    }
    Check(parts);
    const auto rate = [&](const std::vector<double>& times) {
      return static_cast<double>(planned) / Median(times) / 1e9;
    };
    double best = 0;
    for (const auto& [threads, times] : plain) best = std::max(best, rate(times));
    const double over =
        static_cast<double>(pulled) / static_cast<double>(Fewest(in, plan, to_heads));
    std::printf("%s\n", nlohmann::json{{"case", name},
                                       {"mib", static_cast<double>(planned) / (1 << 20)},
                                       {"mean_range_bytes", planned / ranges},
                                       {"bytes_over_fewest", over},
                                       {"gb_per_s", rate(ours)},
                                       {"copy_gb_per_s", best},
                                       {"copy_side_by_side_gb_per_s", rate(side_by_side)},
                                       {"ratio", rate(ours) / best}}
                            .dump()
                            .c_str());
    worst_ratio_ = std::min(worst_ratio_, rate(ours) / best);
    most_bytes_ = std::max(most_bytes_, over);
    kv::Input out = in;
    out.old_groups = in.new_groups;
    for (uint32_t r = 0; r < kRanks; ++r) {
      out.ranks[r].strips = parts[r].after;
      out.ranks[r].free_pages =
          out.ranks[r].total_pages - static_cast<uint32_t>(parts[r].after.size());
    }
    for (size_t i = 0; i < out.requests.size(); ++i) {
      out.requests[i].home = plan.requests[i].home;
      out.requests[i].blocks = plan.requests[i].blocks;
    }
    return out;
  }

  void Summary(uint64_t tokens) const {
    std::printf(
        "%s\n",
        nlohmann::json{{"bench", "kv"},
                       {"value", worst_ratio_},
                       {"unit",
                        "of the rate of a plain copy of the same ranges, by 1, 2 or 8 threads; the "
                        "worse direction"},
                       {"ceiling", 1},
                       {"ratio", worst_ratio_},
                       {"metrics", {{"bytes_over_fewest", most_bytes_}}},
                       {"env", {{"tokens", tokens}, {"requests", kRequests}, {"ranks", kRanks}}}}
            .dump()
            .c_str());
  }

 private:
  uint64_t Pull(const std::vector<Part>& parts) {
    std::atomic<uint64_t> bytes{0};
    const std::vector<v1::PeerAddress> peers = world_.Addresses(target_);
    std::vector<std::jthread> ranks;
    for (uint32_t r = 0; r < kRanks; ++r) {
      ranks.emplace_back([&, r] {
        StageProgress progress;
        bytes += Must(world_.members[r]->store->KvPull(parts[r].pull, peers, &progress, {}));
      });
    }
    ranks.clear();
    return bytes;
  }
  template <typename Do>
  void EachRange(const v1::KvPull& pull, uint32_t rank, const Do& work) {
    std::byte* const to = world_.members[rank]->store->kv().data();
    for (int i = 0; i < pull.length_size(); ++i) {
      const std::byte* from = world_.members[pull.source_rank(i)]->store->kv().data();
      work(to + pull.target_offset(i), from + pull.source_offset(i), pull.length(i));
    }
  }
  void Copy(const std::vector<Part>& parts, size_t threads) {
    std::vector<std::jthread> all;
    for (size_t t = 0; t < threads; ++t) {
      all.emplace_back([&, t] {
        for (size_t r = t; r < kRanks; r += threads) {
          EachRange(parts[r].pull, static_cast<uint32_t>(r), std::memcpy);
        }
      });
    }
  }
  void CopySideBySide(uint64_t bytes) {
    const uint64_t most = world_.members[0]->store->kv().size();
    for (uint32_t r = 0; bytes > 0; r = (r + 1) % kRanks) {
      const uint64_t part = std::min(bytes, most);
      std::memcpy(world_.members[r]->store->kv().data(),
                  world_.members[(r + 1) % kRanks]->store->kv().data(), part);
      bytes -= part;
    }
    // The next moved data is no longer there, which does not matter to plain copies.
  }
  void Check(const std::vector<Part>& parts) {
    (void)Pull(parts);
    for (uint32_t r = 0; r < kRanks; ++r) {
      EachRange(parts[r].pull, r, [](const std::byte* to, const std::byte* from, size_t bytes) {
        if (std::memcmp(to, from, bytes) != 0) Fail("a range differs from where it came from");
      });
    }
  }

  const int rounds_;
  testing::World world_;
  v1::Layout target_;
  double worst_ratio_ = 1e9, most_bytes_ = 0;
};

int Main(const char* trace) {
  spdlog::set_level(
      spdlog::level::err);  // the certificates' files are gone, which would log an error per second
  const bool quick = std::getenv("QUICK") != nullptr && *std::getenv("QUICK") != '\0';
  const uint64_t tokens = quick ? 64 << 10 : 512 << 10;
  const std::vector<uint32_t> lengths = Lengths(trace, tokens);
  // Pages of both sides of a flip: by data a rank has an eighth of all, by heads a quarter.
  const auto pages = static_cast<uint32_t>((tokens / kBlock + kRequests) * 7 / 4);
  Bench bench(pages * kPage, quick ? 3 : 9);
  kv::Input back = bench.Play("data to heads", Data(lengths, pages), true);
  back.new_groups = GroupsOf(1);
  bench.Play("heads to data", back, false);
  bench.Summary(tokens);
  return 0;
}

}  // namespace
}  // namespace tangram::store

int main(int argc, char** argv) {
  if (argc == 2) return tangram::store::Main(argv[1]);
  std::fprintf(stderr, "usage: tangram-kv-move TRACE.jsonl\n");
  return 2;
}
