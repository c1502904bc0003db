// Experts of every family of the loader, in slabs of both formats, through transitions. Ranks hold
// exactly the results of a slow reference reader, and move no byte more than the plan counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "agent/store/rank_store.h"
#include "agent/store/testing/fixture.h"

namespace tangram::store {
namespace {

using layout::PlacedPiece;
using loader::testing::Family;
using testing::Small;
using testing::StoreTest;
using testing::World;

struct Bytes {
  uint64_t checkpoint = 0, ranks = 0, local = 0;
  bool operator==(const Bytes&) const = default;
};

// The planner's counts (operator/pkg/planner, `need`): granules by source, and the tail of each
// piece that is not in place: local if the rank holds anything of the expert, from the checkpoint
// if a granule of the piece is, else from a rank.
Bytes Planned(const World& world, const std::vector<PlacedPiece>& held,
              const std::vector<PlacedPiece>& wanted, const v1::RankPart& part) {
  Bytes out;
  const uint64_t granule = world.geometry().granule_bytes(), tail = world.geometry().tail_bytes();
  std::set<std::array<uint32_t, 3>> read;  // layer, expert, granule
  for (int i = 0; i < part.fetches().layer_size(); ++i) {
    const uint64_t bytes = part.fetches().granule_count(i) * granule;
    (part.fetches().source(i) == 0 ? out.checkpoint : out.ranks) += bytes;
    for (uint32_t g = 0; part.fetches().source(i) == 0 && g < part.fetches().granule_count(i);
         ++g) {
      read.insert(
          {part.fetches().layer(i), part.fetches().expert(i), part.fetches().granule_start(i) + g});
    }
  }
  for (const uint32_t count : part.copies().granule_count()) out.local += count * granule;
  for (const PlacedPiece& piece : wanted) {
    if (std::find(held.begin(), held.end(), piece) != held.end()) continue;
    const bool knows = std::any_of(held.begin(), held.end(), [&](const PlacedPiece& has) {
      return has.layer == piece.layer && has.expert == piece.expert;
    });
    bool any = false;
    for (uint32_t g = 0; g < piece.run.count; ++g) {
      any = any || read.contains({piece.layer, piece.expert, piece.run.start + g});
    }
    (knows ? out.local : any ? out.checkpoint : out.ranks) += tail;
  }
  for (int p = 0; p < part.dense().source_by_part_size(); ++p) {
    for (size_t t = static_cast<size_t>(p); t < world.checkpoint->dense().size();
         t += kDenseParts) {
      (part.dense().source_by_part(p) == 0 ? out.checkpoint : out.ranks) +=
          world.checkpoint->dense()[t].info.bytes;
    }
  }
  return out;
}

class Styles : public StoreTest,
               public ::testing::WithParamInterface<std::tuple<Family, v1::SlabFormat>> {
 protected:
  static World::Options Options(uint64_t seed) {
    World::Options out = Small(std::get<0>(GetParam()), seed);
    out.format = std::get<1>(GetParam());
    return out;
  }
  // A flip that moves exactly the bytes of its parts.
  static void FlipAsPlanned(World& world, const v1::Layout& target) {
    const auto pieces = [&](const v1::Layout& layout, const std::string& id) {
      const int32_t rank = layout::RankOf(layout, id);
      return rank < 0 ? std::vector<PlacedPiece>()
                      : layout::PiecesOf(layout, world.geometry(), static_cast<uint32_t>(rank));
    };
    ASSERT_OK(world.Prepare(target));
    ASSERT_OK(world.Stage(target));
    for (const auto& [id, progress] : world.progress) {
      const Bytes moved{progress->checkpoint, progress->shared + progress->tcp, progress->local};
      const Bytes planned =
          Planned(world, pieces(world.layout, id), pieces(target, id), world.parts.at(id));
      EXPECT_EQ(moved.checkpoint, planned.checkpoint) << id;
      EXPECT_EQ(moved.ranks, planned.ranks) << id;
      EXPECT_EQ(moved.local, planned.local) << id;
      EXPECT_EQ(progress->done, progress->total) << id;
    }
    ASSERT_OK(world.CommitAndRetire(target));
    ASSERT_OK(world.Check());
  }
  static void ReshapeAsPlanned(World& world, uint32_t group, uint32_t active) {
    for (bool done = false; !done;) FlipAsPlanned(world, world.Reshaped(group, active, &done));
  }
};

// All widths, from and to: whole experts, groups, shards of one granule, and even more ranks.
TEST_P(Styles, MatchesFilesAtEveryWorldAndGroupSize) {
  for (const bool one_node : {false, true}) {
    World::Options options = Options(one_node ? 31 : 30);
    options.shared_memory = one_node;
    World world(options);
    for (int i = 0; i < 6; ++i) world.AddMember();
    FlipAsPlanned(world, world.First(3));
    for (const auto& [group, active] : std::vector<std::pair<uint32_t, uint32_t>>{
             {1, 6}, {2, 6}, {3, 6}, {5, 5}, {1, 5}, {4, 4}, {2, 4}, {1, 2}, {2, 2}, {1, 1}}) {
      ReshapeAsPlanned(world, group, active);
      if (HasFatalFailure()) return;
    }
  }
}

// Random joins, leaves, switches and deaths of agents.
TEST_P(Styles, MatchesFilesInRandomTransitions) {
  for (uint64_t seed = 40; seed < 46; ++seed) {
    SCOPED_TRACE(seed);
    World world(Options(seed));
    for (int i = 0; i < 3; ++i) world.AddMember();
    FlipAsPlanned(world, world.First(seed % 2 == 0 ? 1 : 3));
    for (int step = 0; step < 6 && !HasFatalFailure(); ++step) {
      const auto ranks = static_cast<uint32_t>(world.layout.members_size());
      switch (world.random() % 4) {
        case 0:
          if (ranks < 6) FlipAsPlanned(world, world.Joined({world.AddMember().id}));
          break;
        case 1:
          if (ranks < 3) break;
          ReshapeAsPlanned(world, world.random() % 2 == 0 ? 1 : std::min(ranks - 1, 5U), ranks - 1);
          FlipAsPlanned(world, world.Left(ranks - 1));
          break;
        case 2:
          ASSERT_OK(world.Restart(world.at(static_cast<uint32_t>(world.random() % ranks))));
          ASSERT_OK(world.Check());
          break;
        default: {
          const uint32_t groups[] = {1, std::min(ranks, 5U), ranks % 2 == 0 ? 2U : 1U};
          ReshapeAsPlanned(world, groups[world.random() % 3], ranks);
        }
      }
    }
  }
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<Family, v1::SlabFormat>>& info) {
  const auto [family, format] = info.param;
  const std::map<Family, std::string> names{{Family::kQwen3, "Qwen3"},
                                            {Family::kQwen3Fp8, "Qwen3Fp8"},
                                            {Family::kGptOss, "GptOss"},
                                            {Family::kMixtral, "Mixtral"},
                                            {Family::kDeepSeekV2, "DeepSeekV2"},
                                            {Family::kDeepSeekV3, "DeepSeekV3"},
                                            {Family::kGlm4, "Glm4"},
                                            {Family::kLlama4, "Llama4"}};
  const std::string& name = names.at(family);
  return name + (format == v1::SLAB_FORMAT_ROW_MAJOR ? "RowMajor" : "GranuleMajor");
}
INSTANTIATE_TEST_SUITE_P(
    Store, Styles,
    ::testing::Combine(::testing::Values(Family::kQwen3, Family::kQwen3Fp8, Family::kGptOss,
                                         Family::kMixtral, Family::kDeepSeekV2, Family::kDeepSeekV3,
                                         Family::kGlm4, Family::kLlama4),
                       ::testing::Values(v1::SLAB_FORMAT_GRANULE_MAJOR, v1::SLAB_FORMAT_ROW_MAJOR)),
    NameOf);

}  // namespace
}  // namespace tangram::store
