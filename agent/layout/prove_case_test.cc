// ProvePart on a small world in which every byte is known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "agent/layout/prove.h"
#include "agent/layout/testing.h"

namespace tangram::layout {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kPage = 4096;
constexpr uint64_t kShard = 3 * 768, kWhole = 6 * 768;  // bytes of 3 and of 6 granules

void SetGroup(v1::ExpertGroup* group, std::vector<uint32_t> ranks, std::vector<uint32_t> slots) {
  group->mutable_ranks()->Assign(ranks.begin(), ranks.end());
  group->mutable_slots()->Assign(slots.begin(), slots.end());
}

// Two experts of 6 granules in two layers, for three ranks. Rank 1 gets the upper half of both
// experts of layer 0 in bank 0. It already has expert 1 of layer 1, and expert 1 of layer 0 whole,
// in bank 2.
class ProveCase : public ::testing::Test {
 protected:
  void SetUp() override {
    target_.set_banks(3);
    for (const char* id : {"a", "b", "c"}) target_.add_members()->set_id(id);
    for (uint32_t l = 0; l < 2; ++l) target_.add_layers()->set_layer(l);
    target_.mutable_layers(0)->set_expert_group_size(2);
    SetGroup(target_.mutable_layers(0)->add_experts(), {0, 1}, {1, 2});
    target_.mutable_layers(1)->set_expert_group_size(1);
    SetGroup(target_.mutable_layers(1)->add_experts(), {0}, {1});
    SetGroup(target_.mutable_layers(1)->add_experts(), {1}, {2});
    for (const uint32_t r : {0, 1, 2}) target_.mutable_dense()->add_ranks(r);
    Copy(0, 1, 3, 3);
    Fetch(0, 0, 3, 1, 1);
    Fetch(0, 0, 4, 2, 0);
    SetPages(9, 7);
  }

  void Copy(uint32_t layer, uint32_t expert, uint32_t start, uint32_t count) {
    auto* copies = part_.mutable_copies();
    copies->add_layer(layer);
    copies->add_expert(expert);
    copies->add_granule_start(start);
    copies->add_granule_count(count);
  }

  void Fetch(uint32_t layer, uint32_t expert, uint32_t start, uint32_t count, uint32_t source) {
    auto* fetches = part_.mutable_fetches();
    fetches->add_layer(layer);
    fetches->add_expert(expert);
    fetches->add_granule_start(start);
    fetches->add_granule_count(count);
    fetches->add_source(source);
  }

  void SetPages(uint64_t peak, uint64_t steady) {
    part_.set_peak_bytes(peak * kPage);
    part_.set_steady_bytes(steady * kPage);
  }

  void FetchDense(int parts, uint32_t source) {
    part_.clear_dense();
    for (int i = 0; i < parts; ++i) part_.mutable_dense()->add_source_by_part(source);
  }

  Result<PartProof> Prove(int32_t rank = 1, bool holds_dense = true) {
    return ProvePart(geometry_, target_, rank, held_, holds_dense, part_);
  }

  std::string Refusal(int32_t rank = 1, bool holds_dense = true) {
    const auto proof = Prove(rank, holds_dense);
    EXPECT_TRUE(proof.ok() || proof.status().code() == Code::kBadPlan);
    return proof.status().message();
  }

  const GeometryView geometry_ = GeometryView::Make(testing::SmallGeometry(2, 2, 6)).value();
  v1::Layout target_;
  v1::RankPart part_;
  std::vector<PlacedPiece> held_ = {{0, 2, 0, 1, {0, 6}, 0, kWhole},
                                    {1, 1, 0, 1, {0, 6}, 0, kWhole}};
  const PlacedPiece upper0_ = {0, 0, 0, 0, {3, 3}, 2 * kPage, kShard};
  const PlacedPiece upper1_ = {0, 0, 1, 1, {3, 3}, 2 * kPage + kShard, kShard};
};

bool Same(const PartProof::Move& move, const PartProof::Move& want) {
  return move.piece == want.piece && move.run == want.run && move.source == want.source &&
         move.held == want.held;
}

TEST_F(ProveCase, ReportsSourcesAndPageCounts) {
  const auto proof = Prove();
  ASSERT_TRUE(proof.ok()) << proof.status().message();
  EXPECT_EQ(proof->stays, (std::vector<bool>{false, true}));
  EXPECT_EQ(proof->incoming, (std::vector<PlacedPiece>{upper0_, upper1_}));
  ASSERT_EQ(proof->copies.size(), 1u);
  EXPECT_TRUE(Same(proof->copies[0], {upper1_, {3, 3}, 0, 0}));
  ASSERT_EQ(proof->fetches.size(), 2u);
  EXPECT_TRUE(Same(proof->fetches[0], {upper0_, {3, 1}, 1, 0}));
  EXPECT_TRUE(Same(proof->fetches[1], {upper0_, {4, 2}, 0, 0}));
  // Banks 2 and 1 unchanged and the shards in bank 0, two pages each; three of dense weights.
  EXPECT_EQ(proof->peak_pages, 9u);
  EXPECT_EQ(proof->steady_pages, 7u);
  EXPECT_FALSE(proof->brings_dense);
}

TEST_F(ProveCase, AllowsOnlyPeakToBeDeclaredHigher) {
  SetPages(10, 7);
  EXPECT_TRUE(Prove().ok());
  for (const auto& [peak, steady] : {std::pair(8, 7), {9, 6}, {9, 8}, {8, 8}}) {
    SetPages(peak, steady);
    EXPECT_THAT(Refusal(), HasSubstr("its pieces need 36864 and 28672")) << peak << ", " << steady;
  }
}

TEST_F(ProveCase, SortsIncomingRegardlessOfSlots) {
  SetGroup(target_.mutable_layers(0)->mutable_experts(0), {0, 1}, {2, 1});
  const auto proof = Prove();
  ASSERT_TRUE(proof.ok()) << proof.status().message();
  ASSERT_EQ(proof->incoming.size(), 2u);
  EXPECT_EQ(proof->incoming[0].expert, 0u);
  EXPECT_EQ(proof->incoming[1].expert, 1u);
}

TEST_F(ProveCase, ProvesTwoPiecesOfRankAtTwoPositions) {
  // Ranks 1, 0 and 1 share each expert: granules 0..2 and 4..6 are rank 1's.
  SetGroup(target_.mutable_layers(0)->mutable_experts(0), {1, 0, 1}, {1, 2});
  target_.mutable_layers(0)->set_expert_group_size(3);
  const auto with = [&](std::vector<std::pair<uint32_t, uint32_t>> fetches) {
    part_.clear_copies();
    part_.clear_fetches();
    for (const uint32_t expert : {0, 1}) {
      for (const auto& [start, count] : fetches) Fetch(0, expert, start, count, 1);
    }
    // In bank 0 now: 3072 bytes from page 0, 3072 from page 2; 1 page each.
    SetPages(2 + 2 + 2 + 3, 2 + 2 + 3);
    return Refusal();
  };
  EXPECT_EQ(with({{0, 2}, {4, 2}}), "");
  EXPECT_EQ(with({{4, 1}, {1, 1}, {5, 1}, {0, 1}}), "");
  EXPECT_THAT(with({{0, 2}, {3, 3}}), HasSubstr("granules 3..6: the rank's shard is 0..2"));
  EXPECT_THAT(with({{0, 3}, {4, 2}}), HasSubstr("granules 0..3: the rank's shard is 0..2"));
  EXPECT_THAT(with({{0, 6}}), HasSubstr("the rank's shard is 0..2"));
  EXPECT_THAT(with({{0, 2}, {4, 2}, {2, 0}}), HasSubstr("granules 2..2: the rank's shard"));
  EXPECT_THAT(with({{0, 2}, {4, 2}, {5, 1}}), HasSubstr("granule 5 comes twice"));
  EXPECT_THAT(with({{0, 2}, {4, 1}}), HasSubstr("granule 5 of layer 0, expert "));
  EXPECT_THAT(with({{0, 2}, {4, 4294967292U}}), HasSubstr("granules 4..4294967296: the rank's"));
}

TEST_F(ProveCase, RequiresOneHeldPieceToCoverCopy) {
  const auto from = [&](std::vector<layout::Run> runs, std::vector<layout::Run> copies) {
    held_.resize(2);
    held_[0].run = runs[0];
    for (size_t i = 1; i < runs.size(); ++i) {
      held_.push_back(held_[0]);
      held_.back().run = runs[i];
      held_.back().bank = 1 + static_cast<uint32_t>(i);
      held_.back().offset = 16 * kPage;
    }
    part_.clear_copies();
    for (const layout::Run run : copies) Copy(0, 1, run.start, run.count);
    SetPages(9 + 2 * (runs.size() - 1), 7);
    return Prove();
  };
  EXPECT_TRUE(from({{3, 3}}, {{3, 3}}).ok());
  EXPECT_TRUE(from({{2, 4}}, {{3, 1}, {4, 2}}).ok());
  const auto two = from({{0, 4}, {4, 2}}, {{3, 1}, {4, 2}});
  ASSERT_TRUE(two.ok()) << two.status().message();
  EXPECT_EQ(two->copies[0].held, 0u);
  EXPECT_EQ(two->copies[1].held, 2u);
  for (const std::vector<layout::Run>& runs :
       {std::vector<layout::Run>{{4, 2}}, {{3, 2}}, {{0, 4}, {4, 2}}, {{0, 2}}}) {
    EXPECT_THAT(from(runs, {{3, 3}}).status().message(),
                HasSubstr("copy of layer 0, expert 1, granules 3..6: the rank does not hold them"));
  }
}

TEST_F(ProveCase, RejectsRepeatedCopyOrCopyOutsideTarget) {
  Copy(0, 1, 2, 1);
  EXPECT_THAT(Refusal(),
              HasSubstr("copy of layer 0, expert 1, granules 2..3: the rank's shard is 3..6"));
  part_.mutable_copies()->set_granule_start(1, 4);
  EXPECT_THAT(Refusal(), HasSubstr("granule 4 comes twice"));
  part_.mutable_copies()->set_expert(1, 7);
  EXPECT_THAT(Refusal(), HasSubstr("the target does not give this expert to the rank"));
}

TEST_F(ProveCase, RejectsColumnsOfDifferentLength) {
  using Column = google::protobuf::RepeatedField<uint32_t>;
  const v1::RankPart good = part_;
  for (const bool longer : {false, true}) {
    const auto refused = [&](Column* column, const char* message) {
      if (longer) {
        column->Add(0);
      } else {
        column->RemoveLast();
      }
      EXPECT_THAT(Refusal(), HasSubstr(message));
      part_ = good;
    };
    for (int i = 0; i < 4; ++i) {
      auto* c = part_.mutable_copies();
      Column* const columns[] = {c->mutable_layer(), c->mutable_expert(),
                                 c->mutable_granule_start(), c->mutable_granule_count()};
      refused(columns[i], "columns of copies differ");
    }
    for (int i = 0; i < 5; ++i) {
      auto* f = part_.mutable_fetches();
      Column* const columns[] = {f->mutable_layer(), f->mutable_expert(),
                                 f->mutable_granule_start(), f->mutable_granule_count(),
                                 f->mutable_source()};
      refused(columns[i], "columns of fetches differ");
    }
  }
}

TEST_F(ProveCase, RequiresCheckpointOrOtherTargetRankAsSource) {
  for (const auto& [source, taken] :
       {std::pair(0, true), {1, true}, {2, false}, {3, true}, {4, false}}) {
    part_.mutable_fetches()->set_source(0, source);
    EXPECT_EQ(Prove().ok(), taken) << source;
    if (!taken) {
      EXPECT_THAT(Refusal(),
                  HasSubstr("layer 0, expert 0: source " + std::to_string(source) + " of 3 ranks"));
    }
  }
}

TEST_F(ProveCase, RequiresSixteenDensePartsWhenMissing) {
  for (const auto& [source, taken] :
       {std::pair(0, true), {1, true}, {2, false}, {3, true}, {4, false}}) {
    FetchDense(16, source);
    const auto proof = Prove(1, false);
    ASSERT_EQ(proof.ok(), taken) << proof.status().message();
    if (taken) {
      EXPECT_TRUE(proof->brings_dense);
      EXPECT_EQ(proof->peak_pages, 9u);
      EXPECT_EQ(proof->steady_pages, 7u);
    } else {
      EXPECT_THAT(Refusal(1, false), HasSubstr("dense source " + std::to_string(source) + " of 3"));
    }
  }
  for (const int parts : {0, 15, 17}) {
    FetchDense(parts, 1);
    EXPECT_THAT(Refusal(1, false), HasSubstr("16 parts, the plan names " + std::to_string(parts)));
  }
}

TEST_F(ProveCase, RejectsDenseFetchWhenHeldOrUnneeded) {
  target_.mutable_dense()->clear_ranks();
  target_.mutable_dense()->add_ranks(0);
  SetPages(9, 4);  // held until the end of the flip
  EXPECT_EQ(Refusal(1, true), "");
  SetPages(6, 4);
  EXPECT_EQ(Refusal(1, false), "");
  for (const bool holds : {false, true}) {
    FetchDense(16, 1);
    EXPECT_THAT(Refusal(1, holds),
                HasSubstr("dense weights are fetched that the rank holds or does not need"));
  }
  target_.mutable_dense()->add_ranks(1);
  EXPECT_THAT(Refusal(1, true), HasSubstr("dense weights are fetched that the rank holds"));
}

TEST_F(ProveCase, DropsAllPiecesOfLeaver) {
  const v1::RankPart before = part_;
  part_.Clear();
  SetPages(2 + 2 + 3, 0);
  const auto proof = Prove(-1, true);
  ASSERT_TRUE(proof.ok()) << proof.status().message();
  EXPECT_EQ(proof->stays, (std::vector<bool>{false, false}));
  EXPECT_TRUE(proof->incoming.empty());
  EXPECT_EQ(proof->steady_pages, 0u);
  *part_.mutable_fetches() = before.fetches();
  EXPECT_THAT(Refusal(-1), HasSubstr("the target does not give this expert to the rank"));
  part_.clear_fetches();
  FetchDense(16, 1);
  EXPECT_THAT(Refusal(-1, false), HasSubstr("holds or does not need"));
}

TEST_F(ProveCase, ProvesPartOfRankZero) {
  held_.clear();
  part_.Clear();
  for (const uint32_t expert : {0, 1}) Fetch(0, expert, 0, 3, 0);
  Fetch(1, 0, 0, 6, 0);
  FetchDense(16, 0);
  SetPages(2 + 2 + 3, 2 + 2 + 3);
  const auto proof = Prove(0, false);
  ASSERT_TRUE(proof.ok()) << proof.status().message();
  EXPECT_EQ(proof->incoming.size(), 3u);
}

TEST_F(ProveCase, RejectsOverlapWithHeldPieceByOneByte) {
  // A piece of layer 1 that will be dropped, in layer 0's bank, before and after the shards there.
  const uint64_t begin = 2 * kPage, end = begin + 2 * kShard;
  const auto at = [&](uint32_t bank, uint64_t offset) {
    held_.resize(2);
    held_.push_back({1, bank, 0, 0, {0, 6}, offset, 2 * kPage});
    // one more than it stays, so that pages do not decide
    SetPages(20, 7);
    return Refusal();
  };
  EXPECT_EQ(at(0, 0), "");
  EXPECT_EQ(at(0, end), "");
  EXPECT_EQ(at(2, begin), "");
  EXPECT_THAT(
      at(0, 1),
      HasSubstr("bank 0: layer 1 expert 0 and layer 0 expert 0 lie over each other at byte 8192"));
  EXPECT_THAT(
      at(0, end - 1),
      HasSubstr("bank 0: layer 0 expert 1 and layer 1 expert 0 lie over each other at byte 12799"));
  EXPECT_THAT(at(2, 0), HasSubstr("bank 2"));
}

TEST(InOrder, SortsByLayerThenExpertThenGranule) {
  const PlacedPiece piece = {1, 0, 0, 1, {1, 1}, 0, 0};
  EXPECT_FALSE(InOrder(piece, piece));
  for (const PlacedPiece& later :
       {PlacedPiece{2, 0, 0, 0, {0, 1}, 0, 0}, PlacedPiece{1, 0, 0, 2, {0, 1}, 0, 0},
        PlacedPiece{1, 0, 0, 1, {2, 1}, 0, 0}}) {
    EXPECT_TRUE(InOrder(piece, later));
    EXPECT_FALSE(InOrder(later, piece));
  }
}

}  // namespace
}  // namespace tangram::layout
