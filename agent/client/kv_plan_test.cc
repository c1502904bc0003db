// tg_kv_plan against kv::MakePlan: the same manifest in C structs gives the same plan.
#include "tangram/kv_plan.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "agent/kv/plan.h"
#include "agent/kv/testing.h"

namespace tangram {
namespace {

using kv::testing::Pick;
using kv::testing::RandomInput;
using kv::testing::Rng;

// An array with `gap` bytes after each element, as from a caller with longer structs. The gap has
// values that must not be read.
template <typename T>
class Spaced {
 public:
  Spaced(const std::vector<T>& items, size_t gap)
      : size_(sizeof(T) + gap), bytes_(size_ * items.size(), 0xee) {
    for (size_t i = 0; i < items.size(); ++i) {
      std::memcpy(bytes_.data() + i * size_, &items[i], sizeof(T));
    }
  }
  const T* data() const { return reinterpret_cast<const T*>(bytes_.data()); }
  size_t size() const { return size_; }

 private:
  size_t size_;
  std::vector<unsigned char> bytes_;
};

// A manifest of `in`; array elements have a gap of `gap` bytes (a multiple of 8) after them.
class Manifest {
 public:
  Manifest(const kv::Input& in, int32_t rank, size_t gap) : gap_(gap) {
    out.rank = rank;
    out.query_heads = in.shape.query_heads;
    out.kv_heads = in.shape.kv_heads;
    out.block_tokens = in.shape.block_tokens;
    out.head_token_bytes = in.shape.head_token_bytes;
    out.layers = in.old_groups.size();
    out.old_groups = Layers(in.old_groups);
    out.new_groups = Layers(in.new_groups);
    out.layer_size = sizeof(tg_kv_layer) + gap;
    out.group_size = sizeof(tg_attention_group) + gap;
    out.old_ranks = in.ranks.size();
    out.new_of_old = in.new_of_old.data();
    out.ranks = Ranks(in.ranks);
    out.rank_size = sizeof(tg_kv_rank) + gap;
    out.strip_size = sizeof(tg_kv_strip) + gap;
    out.new_ranks = in.new_ranks;
    out.joined_pages = in.joined_pages.data();
    std::vector<tg_kv_request> requests;
    for (const kv::Request& r : in.requests) {
      requests.push_back({r.id.c_str(), r.home, r.length, r.reserved,
                          static_cast<uint32_t>(r.blocks.size()), r.blocks.data()});
    }
    out.requests = requests.size();
    out.request = Keep(requests);
    out.request_size = sizeof(tg_kv_request) + gap;
  }

  tg_kv_manifest out = TG_INIT(tg_kv_manifest);

 private:
  template <typename T>
  const T* Keep(const std::vector<T>& items) {
    auto spaced = std::make_shared<Spaced<T>>(items, gap_);
    kept_.push_back(spaced);
    return spaced->data();
  }

  const tg_kv_layer* Layers(const std::vector<kv::LayerGroups>& layers) {
    std::vector<tg_kv_layer> out;
    for (const kv::LayerGroups& layer : layers) {
      std::vector<tg_attention_group> groups;
      for (const kv::Group& g : layer) {
        groups.push_back(
            {static_cast<uint32_t>(g.ranks.size()), g.ranks.data(), g.query_head_bounds.data()});
      }
      out.push_back({groups.size(), Keep(groups)});
    }
    return Keep(out);
  }

  const tg_kv_rank* Ranks(const std::vector<kv::RankState>& ranks) {
    std::vector<tg_kv_rank> out;
    for (const kv::RankState& rank : ranks) {
      std::vector<tg_kv_strip> strips;
      for (const kv::Strip& s : rank.strips) {
        strips.push_back({s.home, s.block, s.kv_head, s.layer, s.layers, s.page, s.stride});
      }
      out.push_back({rank.total_pages, rank.free_pages, strips.size(), Keep(strips)});
    }
    return Keep(out);
  }

  size_t gap_;
  std::vector<std::shared_ptr<void>> kept_;
};

// The whole content of a plan, line by line.
std::string Text(const kv::Plan& plan, const kv::RankPlan& part) {
  std::string out;
  for (const kv::Placement& p : plan.requests) {
    out += fmt::format("{} at {}:", p.id, p.home);
    for (const uint32_t b : p.blocks) out += fmt::format(" {}", b);
    out += "\n";
  }
  for (const uint32_t next : plan.next_block) out += fmt::format("next {}\n", next);
  for (const kv::Move& m : part.moves) {
    out += fmt::format("move {} {} {} {} {} {} {} {} {}\n", m.home, m.block, m.kv_head, m.layer,
                       m.layers, m.source_rank, m.source_page, m.source_stride, m.tokens);
  }
  for (const kv::Keep& k : part.kept) {
    out += fmt::format("keep {} {} {} {} {} {} {} {}\n", k.home, k.block, k.kv_head, k.layer,
                       k.layers, k.page, k.stride, k.tokens);
  }
  for (const kv::Strip& s : part.freed) {
    out += fmt::format("free {} {} {} {} {} {} {}\n", s.home, s.block, s.kv_head, s.layer, s.layers,
                       s.page, s.stride);
  }
  return out + fmt::format("{} {} {}", part.moved_bytes, part.local_bytes, plan.requests_moved);
}

std::string Text(const tg_kv_planned& plan) {
  std::string out;
  for (size_t i = 0; i < plan.requests; ++i) {
    const tg_kv_home& p = *TG_AT(tg_kv_home, plan.request, plan.request_size, i);
    out += fmt::format("{} at {}:", p.id, p.home);
    for (uint32_t b = 0; b < p.block_count; ++b) out += fmt::format(" {}", p.blocks[b]);
    out += "\n";
  }
  for (size_t r = 0; r < plan.new_ranks; ++r) out += fmt::format("next {}\n", plan.next_block[r]);
  for (size_t i = 0; i < plan.moves; ++i) {
    const tg_kv_strip_move& m = *TG_AT(tg_kv_strip_move, plan.move, plan.move_size, i);
    out += fmt::format("move {} {} {} {} {} {} {} {} {}\n", m.home, m.block, m.kv_head, m.layer,
                       m.layers, m.source_rank, m.source_page, m.source_stride, m.tokens);
  }
  for (size_t i = 0; i < plan.kept_strips; ++i) {
    const tg_kv_kept& k = *TG_AT(tg_kv_kept, plan.kept, plan.kept_size, i);
    out += fmt::format("keep {} {} {} {} {} {} {} {}\n", k.home, k.block, k.kv_head, k.layer,
                       k.layers, k.page, k.stride, k.tokens);
  }
  for (size_t i = 0; i < plan.freed_strips; ++i) {
    const tg_kv_strip& s = *TG_AT(tg_kv_strip, plan.freed, plan.freed_size, i);
    out += fmt::format("free {} {} {} {} {} {} {}\n", s.home, s.block, s.kv_head, s.layer, s.layers,
                       s.page, s.stride);
  }
  return out + fmt::format("{} {} {}", plan.moved_bytes, plan.local_bytes, plan.requests_moved);
}

TEST(KvPlanAbi, MatchesPlanOfInternalFunction) {
  uint32_t fits = 0, refused = 0, leavers = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    kv::Input in = RandomInput(rng, 4000, 1);
    for (kv::Request& q : in.requests) q.idle = false;  // the ABI has none
    if (seed % 2 == 1) {                                // tight
      for (kv::RankState& rank : in.ranks) rank.free_pages = Pick(rng, 0, 60);
      for (uint32_t& pages : in.joined_pages) pages = std::min(pages, Pick(rng, 0, 100));
    }
    const int32_t rank = static_cast<int32_t>(Pick(rng, 0, in.new_ranks)) - 1;
    const Result<kv::testing::Whole> want = kv::testing::MakeWhole(in);
    const Manifest manifest(in, rank, seed % 3 * 8);
    tg_error error = TG_INIT(tg_error);
    const tg_kv_planned* got = nullptr;
    const tg_code code = tg_kv_plan(&manifest.out, &got, &error);
    if (want.ok()) {
      ++fits;
      leavers += rank < 0 ? 1 : 0;
      ASSERT_EQ(code, TG_OK) << error.message;
      EXPECT_EQ(Text(*got), Text(want->plan, rank < 0 ? kv::RankPlan{}
                                                      : want->parts[static_cast<size_t>(rank)]));
      tg_kv_plan_free(got);
    } else {
      ++refused;
      ASSERT_EQ(code, TG_NO_ROOM) << error.message;
      EXPECT_EQ(error.message, want.status().message().substr(0, sizeof error.message - 1));
      EXPECT_EQ(got, nullptr);
    }
  }
  EXPECT_GT(fits, 50U);
  EXPECT_GT(refused, 20U);
  EXPECT_GT(leavers, 10U);
}

TEST(KvPlanAbi, RejectsContradictionsAndNulls) {
  Rng rng(2);
  const kv::Input in = RandomInput(rng, 4000, 1);
  tg_error error = TG_INIT(tg_error);
  const tg_kv_planned* got = nullptr;
  const auto refused = [&](const char* why, auto change) {
    Manifest manifest(in, 0, 0);
    change(manifest.out);
    EXPECT_EQ(tg_kv_plan(&manifest.out, &got, &error), TG_INVALID) << why;
    EXPECT_NE(std::string(error.message).find(why), std::string::npos) << error.message;
    EXPECT_EQ(got, nullptr);
  };
  refused("layers is null", [](tg_kv_manifest& m) { m.old_groups = nullptr; });
  refused("ranks is null", [](tg_kv_manifest& m) { m.ranks = nullptr; });
  refused("new_of_old is null", [](tg_kv_manifest& m) { m.new_of_old = nullptr; });
  refused("groups are 8 bytes apart", [](tg_kv_manifest& m) { m.group_size = 8; });
  refused("strips are 4 bytes apart", [](tg_kv_manifest& m) { m.strip_size = 4; });
  refused("rank is -2, want one of", [](tg_kv_manifest& m) { m.rank = -2; });
  refused("rank is 99, want one of", [](tg_kv_manifest& m) { m.rank = 99; });
  refused("0 KV heads", [](tg_kv_manifest& m) { m.kv_heads = 0; });
  EXPECT_EQ(tg_kv_plan(nullptr, &got, &error), TG_INVALID);
}

}  // namespace
}  // namespace tangram
