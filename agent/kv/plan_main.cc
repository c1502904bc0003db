// tangram-kv-plan: the cost of planning a flip's KV for a rank at the size of a large model. 256
// requests of 4,096 tokens in blocks of 16, the 94 layers and 4 KV heads of Qwen3-235B, on 8 ranks.
// Cases: from attention data (Expert) to heads split over all (Tensor, each KV head on two ranks),
// back, and to the same again. Each case has the CPU milliseconds of the slowest rank for the plan,
// its part and their proof, over the time to sort one 64-bit key per strip of the manifest; pages,
// and heap. One JSON object per case, then the summary.
#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "agent/kv/cover.h"
#include "agent/kv/plan.h"

namespace tangram::kv {
namespace {

constexpr uint32_t kRanks = 8, kLayers = 94, kRequests = 256, kTokens = 4096, kRounds = 3;
constexpr Shape kShape{64, 4, 16, 2 * 128 * 2};

double CpuMilliseconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

template <typename T>
T Must(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "tangram-kv-plan: %s\n", result.status().message().c_str());
  std::exit(1);
}

void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "tangram-kv-plan: %s\n", status.message().c_str());
  std::exit(1);
}

// Groups of `t` ranks in every layer.
std::vector<LayerGroups> GroupsOf(uint32_t t) {
  LayerGroups groups;
  for (uint32_t first = 0; first < kRanks; first += t) {
    Group& group = groups.emplace_back();
    for (uint32_t p = 0; p <= t; ++p) {
      if (p < t) group.ranks.push_back(first + p);
      group.query_head_bounds.push_back(kShape.query_heads * p / t);
    }
  }
  return std::vector<LayerGroups>(kLayers, groups);
}

// Data-parallel attention; blocks given in turn to growing requests; each head's layers adjacent.
Input Data() {
  Input in;
  in.shape = kShape;
  in.old_groups = in.new_groups = GroupsOf(1);
  in.new_ranks = kRanks;
  for (uint32_t r = 0; r < kRanks; ++r) in.new_of_old.push_back(static_cast<int32_t>(r));
  std::mt19937 rng(7);
  for (uint32_t i = 0; i < kRequests; ++i) {
    Request& q = in.requests.emplace_back();
    q.id = "request-" + std::to_string(i);
    q.home = i % kRanks;
    q.length = kTokens - rng() % kShape.block_tokens;
    q.reserved = kTokens + 512;
  }
  // Room for twice the pages in use: in Tensor each KV head is on two ranks.
  const uint32_t blocks = (kTokens + 512) / kShape.block_tokens * kRequests / kRanks;
  for (uint32_t r = 0; r < kRanks; ++r) {
    RankState& state = in.ranks.emplace_back();
    state.total_pages = blocks * kLayers * kShape.kv_heads * 4;
    uint32_t next = 0, block = 0;
    for (uint32_t round = 0; round < kTokens / kShape.block_tokens; ++round) {
      for (uint32_t i = r; i < kRequests; i += kRanks) {
        in.requests[i].blocks.push_back(block);
        for (uint32_t head = 0; head < kShape.kv_heads; ++head) {
          state.strips.push_back({r, block, head, 0, kLayers, next, 1});
          next += kLayers;
        }
        ++block;
      }
    }
    state.free_pages = state.total_pages - next;
  }
  return in;
}

// The world after the parts were executed, with arriving pages after those that were in use.
Input After(const Input& in, const Plan& plan, const std::vector<RankPlan>& parts) {
  Input out = in;
  out.old_groups = in.new_groups;
  for (uint32_t r = 0; r < kRanks; ++r) {
    RankState& state = out.ranks[r];
    uint32_t next = 0, pages = 0;
    for (const Strip& s : state.strips) next = std::max(next, s.page + s.layers);
    state.strips.clear();
    for (const Keep& k : parts[r].kept) {
      state.strips.push_back({k.home, k.block, k.kv_head, k.layer, k.layers, k.page, k.stride});
    }
    for (const Move& m : parts[r].moves) {
      state.strips.push_back({m.home, m.block, m.kv_head, m.layer, m.layers, next, 1});
      next += m.layers;
    }
    std::sort(state.strips.begin(), state.strips.end());
    for (const Strip& s : state.strips) pages += s.layers;
    state.free_pages = state.total_pages - pages;
  }
  for (size_t i = 0; i < out.requests.size(); ++i) {
    out.requests[i].home = plan.requests[i].home;
    out.requests[i].blocks = plan.requests[i].blocks;
  }
  return out;
}

double SortMilliseconds(const Input& in) {
  std::vector<uint64_t> keys;
  std::mt19937_64 rng(1);
  for (const RankState& state : in.ranks) {
    for (size_t i = 0; i < state.strips.size(); ++i) keys.push_back(rng());
  }
  const double begin = CpuMilliseconds();
  std::sort(keys.begin(), keys.end());
  const double spent = CpuMilliseconds() - begin;
  if (keys.front() == keys.back()) std::exit(1);  // keeps the sort from being optimized away
  return spent;
}

struct Case {
  Plan plan;
  std::vector<RankPlan> parts;
  double ms = 0, over_sort = 0;
  uint64_t heap = 0;
};

Case Play(const char* name, const Input& in) {
  Case out;
  std::vector<double> totals, ratios, plans, parts, checks;
  for (uint32_t round = 0; round < kRounds; ++round) {
    const double sort = SortMilliseconds(in);
    out.parts.clear();
    const auto heap = mallinfo2().uordblks;
    double begin = CpuMilliseconds();
    out.plan = Must(MakePlan(in));
    const double plan = CpuMilliseconds() - begin;
    double part = 0, check = 0, worst = 0;
    for (uint32_t r = 0; r < kRanks; ++r) {
      begin = CpuMilliseconds();
      RankPlan mine = Must(MakePart(in, out.plan, r));
      const double made = CpuMilliseconds() - begin;
      if (r == 0) out.heap = mallinfo2().uordblks - heap;
      begin = CpuMilliseconds();
      Must(CheckPart(in, out.plan, r, mine));
      const double checked = CpuMilliseconds() - begin;
      out.parts.push_back(std::move(mine));
      if (plan + made + checked > worst)
        worst = plan + made + checked, part = made, check = checked;
    }
    plans.push_back(plan), parts.push_back(part), checks.push_back(check);
    totals.push_back(worst), ratios.push_back(worst / sort);
  }
  const auto median = [](std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  out.ms = median(totals), out.over_sort = median(ratios);
  uint64_t moved = 0, kept = 0, strips = 0;
  for (const RankPlan& part : out.parts) {
    for (const Move& m : part.moves) moved += m.layers;
    for (const Keep& k : part.kept) kept += k.layers;
  }
  for (const RankState& state : in.ranks) strips += state.strips.size();
  const nlohmann::json line = {
      {"case", name},
      {"ms_a_rank", out.ms},
      {"plan_ms", median(plans)},
      {"part_ms", median(parts)},
      {"check_ms", median(checks)},
      {"over_sort", out.over_sort},
      {"pages_moved", moved},
      {"pages_kept", kept},
      {"requests_moved", out.plan.requests_moved},
      {"manifest_mib", static_cast<double>(strips * sizeof(Strip)) / (1 << 20)},
      {"plan_heap_mib", static_cast<double>(out.heap) / (1 << 20)}};
  std::printf("%s\n", line.dump().c_str());
  return out;
}

int Main() {
  Input in = Data();
  // An engine checks this before it plans.
  const double begin = CpuMilliseconds();
  const bool same = in.old_groups == in.new_groups;
  const double unchanged = CpuMilliseconds() - begin;
  if (!same) return 1;
  in.new_groups = GroupsOf(kRanks);
  const Case there = Play("data to heads", in);
  Input back = After(in, there.plan, there.parts);
  back.new_groups = GroupsOf(1);
  const Case here = Play("heads to data", back);
  const nlohmann::json summary = {
      {"bench", "kv-plan"},
      {"value", std::max(there.ms, here.ms)},
      {"unit", "ms of CPU a rank"},
      {"metrics",
       {{"over_sort", std::max(there.over_sort, here.over_sort)},
        {"unchanged_ms", unchanged},
        {"heap_mib", static_cast<double>(std::max(there.heap, here.heap)) / (1 << 20)}}}};
  std::printf("%s\n", summary.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace tangram::kv

int main() { return tangram::kv::Main(); }
