// ProvePart with correct parts, and with the same parts after one wrong change.
#include "agent/layout/prove.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>

#include "agent/layout/testing.h"

namespace tangram::layout {
namespace {

using ::testing::HasSubstr;

struct Case {
  v1::Layout target;
  std::vector<PlacedPiece> held;
  v1::RankPart part;
};

class ProveTest : public ::testing::Test {
 protected:
  // Rank 0's part from `before` to `target`, granule by granule: slow, but obviously correct.
  // `turned`: groups of several ranks change their order, so that rank 0 has another shard.
  Case MakeCase(uint32_t ranks, bool turned = false) {
    Case c;
    const v1::Layout before = testing::RandomLayout(geometry_, ranks, kSpare, random_);
    c.held = PiecesOf(before, geometry_, 0);
    c.target = testing::RandomLayout(geometry_, ranks, kSpare, random_);
    const int32_t offset = before.layers(0).bank_offset() == 0 ? kSpare : 0;
    for (auto& layer : *c.target.mutable_layers())
      layer.set_bank_offset(offset);  // every layer is rewritten
    for (auto& layer : *c.target.mutable_layers()) {
      if (!turned || layer.expert_group_size() == 1) continue;
      auto* of = layer.mutable_experts(0)->mutable_ranks();
      std::reverse(of->begin(), of->end());
    }
    uint64_t pages_after = 0;
    const auto after = PiecesOf(c.target, geometry_, 0);
    for (const PlacedPiece& piece : after) {
      for (uint32_t g = piece.run.start; g < piece.run.start + piece.run.count; ++g) {
        const bool have = std::any_of(c.held.begin(), c.held.end(), [&](const PlacedPiece& h) {
          return h.layer == piece.layer && h.expert == piece.expert && h.run.start <= g &&
                 g < h.run.start + h.run.count;
        });
        const auto add = [&](auto* columns) {
          columns->add_layer(piece.layer);
          columns->add_expert(piece.expert);
          columns->add_granule_start(g);
          columns->add_granule_count(1);
        };
        if (have) {
          add(c.part.mutable_copies());
        } else {
          add(c.part.mutable_fetches());
          c.part.mutable_fetches()->add_source(2);
        }
      }
    }
    pages_after = testing::PagesOf(after, geometry_).size() + kDensePages;
    std::vector<PlacedPiece> all(c.held);
    all.insert(all.end(), after.begin(), after.end());
    c.part.set_steady_bytes(pages_after * 4096);
    c.part.set_peak_bytes((testing::PagesOf(all, geometry_).size() + kDensePages) * 4096);
    return c;
  }

  Result<PartProof> Prove(const Case& c) {
    return ProvePart(geometry_, c.target, 0, c.held, true, c.part);
  }

  static constexpr int32_t kSpare = 4;  // as many as layers, so that a walk never waits
  static constexpr uint64_t kDensePages = 3;
  std::mt19937_64 random_{42};
  GeometryView geometry_ = std::move(GeometryView::Make(testing::SmallGeometry(3, 8, 6))).value();
};

TEST_F(ProveTest, AcceptsCorrectParts) {
  for (int round = 0; round < 100; ++round) {
    const Case c = MakeCase(2 + random_() % 4);
    const auto proof = Prove(c);
    ASSERT_TRUE(proof.ok()) << proof.status().message();
    EXPECT_EQ(std::count(proof->stays.begin(), proof->stays.end(), true), 0);
    EXPECT_TRUE(std::is_sorted(proof->incoming.begin(), proof->incoming.end(), InOrder));
    EXPECT_EQ(proof->incoming.size(), PiecesOf(c.target, geometry_, 0).size());
    EXPECT_EQ(proof->copies.size(), static_cast<size_t>(c.part.copies().layer_size()));
    for (const auto* moves : {&proof->copies, &proof->fetches}) {
      for (const PartProof::Move& move : *moves) EXPECT_FALSE(move.tail) << "there are none";
    }
  }
}

// Each piece's tail comes once: from the rank itself if it holds anything of the expert, else with
// the first fetch from the checkpoint, else with the first fetch.
TEST_F(ProveTest, AssignsEachTailToOneMove) {
  v1::Geometry tailed = testing::SmallGeometry(3, 8, 6);
  tailed.set_expert_tail_bytes(40);
  geometry_ = GeometryView::Make(tailed).value();
  int alone = 0, read = 0, pulled = 0;
  for (int round = 0; round < 300; ++round) {
    Case c = MakeCase(2 + random_() % 4, random_() % 2 == 0);
    const uint64_t checkpoint = random_() % 3;  // this many of four fetches read it
    for (uint32_t& source : *c.part.mutable_fetches()->mutable_source()) {
      source = random_() % 4 < checkpoint ? 0 : 2;
    }
    const auto proof = Prove(c);
    ASSERT_TRUE(proof.ok()) << proof.status().message();
    for (const PlacedPiece& piece : proof->incoming) {
      std::vector<const PartProof::Move*> brings, fetches;
      for (const auto* moves : {&proof->copies, &proof->fetches}) {
        for (const PartProof::Move& move : *moves) {
          if (move.piece != piece) continue;
          if (move.tail) brings.push_back(&move);
          if (moves == &proof->fetches) fetches.push_back(&move);
          EXPECT_TRUE(move.run.count > 0 || move.tail);
        }
      }
      ASSERT_EQ(brings.size(), 1u);
      const PartProof::Move& tail = *brings[0];
      const auto is_of = [&](const PlacedPiece& held) {
        return held.layer == piece.layer && held.expert == piece.expert;
      };
      if (std::any_of(c.held.begin(), c.held.end(), is_of)) {
        EXPECT_EQ(std::find(fetches.begin(), fetches.end(), &tail), fetches.end());
        EXPECT_TRUE(is_of(c.held.at(tail.held)));
        alone += tail.run.count == 0 ? 1 : 0;
        continue;
      }
      const auto first = std::find_if(fetches.begin(), fetches.end(),
                                      [](const auto* move) { return move->source == 0; });
      EXPECT_EQ(&tail, first != fetches.end() ? *first : fetches.at(0));
      (tail.source == 0 ? read : pulled) += 1;
    }
  }
  EXPECT_GT(alone, 0) << "a piece of which the rank holds no granule, and holds the tail";
  EXPECT_GT(read, 0);
  EXPECT_GT(pulled, 0);
}

TEST_F(ProveTest, AcceptsUnchangedLayout) {
  const v1::Layout layout = testing::RandomLayout(geometry_, 3, kSpare, random_);
  const auto held = PiecesOf(layout, geometry_, 0);
  v1::RankPart part;
  part.set_peak_bytes((testing::PagesOf(held, geometry_).size() + kDensePages) * 4096);
  part.set_steady_bytes(part.peak_bytes());
  const auto proof = ProvePart(geometry_, layout, 0, held, true, part);
  ASSERT_TRUE(proof.ok()) << proof.status().message();
  EXPECT_EQ(proof->stays, std::vector<bool>(held.size(), true));
  EXPECT_TRUE(proof->incoming.empty());
}

TEST_F(ProveTest, RejectsEverySingleFault) {
  const auto shorten = [](google::protobuf::RepeatedField<uint32_t>* column) {
    column->RemoveLast();
  };
  const std::vector<std::pair<std::string, std::function<void(Case*)>>> faults = {
      {"has no source",
       [&](Case* c) {
         auto* f = c->part.mutable_fetches();
         for (auto* column : {f->mutable_layer(), f->mutable_expert(), f->mutable_granule_start(),
                              f->mutable_granule_count(), f->mutable_source()}) {
           shorten(column);
         }
       }},
      {"comes twice",
       [](Case* c) {
         auto* f = c->part.mutable_fetches();
         f->add_layer(f->layer(0));
         f->add_expert(f->expert(0));
         f->add_granule_start(f->granule_start(0));
         f->add_granule_count(1);
         f->add_source(2);
       }},
      {"differ in length", [&](Case* c) { shorten(c->part.mutable_fetches()->mutable_source()); }},
      {"source 99", [](Case* c) { c->part.mutable_fetches()->set_source(0, 99); }},
      {"own rank", [](Case* c) { c->part.mutable_fetches()->set_source(0, 1); }},
      {"shard is", [](Case* c) { c->part.mutable_fetches()->set_granule_count(0, 4000000000U); }},
      {"does not give", [](Case* c) { c->part.mutable_fetches()->set_expert(0, 77); }},
      {"does not hold",
       [](Case* c) {
         const auto& f = c->part.fetches();
         auto* k = c->part.mutable_copies();
         k->add_layer(f.layer(0));
         k->add_expert(f.expert(0));
         k->add_granule_start(f.granule_start(0));
         k->add_granule_count(1);
         auto* rest = c->part.mutable_fetches();
         for (auto* column :
              {rest->mutable_layer(), rest->mutable_expert(), rest->mutable_granule_start(),
               rest->mutable_granule_count(), rest->mutable_source()}) {
           column->erase(column->begin());
         }
       }},
      {"memory", [](Case* c) { c->part.set_peak_bytes(c->part.peak_bytes() - 4096); }},
      {"memory", [](Case* c) { c->part.set_steady_bytes(c->part.steady_bytes() + 4096); }},
      {"lie over each other",
       [](Case* c) {
         // Held pieces are where the target writes other pieces.
         for (PlacedPiece& piece : c->held) piece.expert = (piece.expert + 1) % 8;
         for (auto& layer : *c->target.mutable_layers()) {
           layer.set_bank_offset(layer.bank_offset() == 0 ? kSpare : 0);
         }
         c->part.clear_copies();
       }},
      {"dense", [](Case* c) { c->part.mutable_dense()->add_source_by_part(2); }},
  };
  for (const auto& [word, break_it] : faults) {
    int tried = 0;
    for (int round = 0; round < 20; ++round) {
      Case c = MakeCase(3);
      if (c.part.fetches().layer_size() == 0) continue;
      break_it(&c);
      const auto proof = Prove(c);
      ASSERT_FALSE(proof.ok()) << word;
      EXPECT_EQ(proof.status().code(), Code::kBadPlan);
      if (word != "lie over each other") {
        EXPECT_THAT(proof.status().message(), HasSubstr(word));
      }
      ++tried;
    }
    EXPECT_GT(tried, 0) << word;
  }
}

TEST_F(ProveTest, DetectsOverlapDespiteCompleteCover) {
  // Expert layout, in place: expert 1 arrives in the slot that expert 0 still fills.
  GeometryView geometry = std::move(GeometryView::Make(testing::SmallGeometry(1, 2, 6))).value();
  v1::Layout layout = testing::RandomLayout(geometry, 1, 1, random_);
  const auto held_all = PiecesOf(layout, geometry, 0);
  const std::vector<PlacedPiece> held = {held_all[0]};
  v1::Layout target = layout;
  std::swap(*target.mutable_layers(0)->mutable_experts(0)->mutable_slots()->Mutable(0),
            *target.mutable_layers(0)->mutable_experts(0)->mutable_slots()->Mutable(1));
  v1::RankPart part;
  for (const PlacedPiece& piece : PiecesOf(target, geometry, 0)) {
    const bool have = piece.expert == held[0].expert;
    auto* layer =
        have ? part.mutable_copies()->mutable_layer() : part.mutable_fetches()->mutable_layer();
    layer->Add(0);
    (have ? part.mutable_copies()->mutable_expert() : part.mutable_fetches()->mutable_expert())
        ->Add(piece.expert);
    (have ? part.mutable_copies()->mutable_granule_start()
          : part.mutable_fetches()->mutable_granule_start())
        ->Add(0);
    (have ? part.mutable_copies()->mutable_granule_count()
          : part.mutable_fetches()->mutable_granule_count())
        ->Add(6);
    if (!have) part.mutable_fetches()->add_source(0);
  }
  EXPECT_THAT(ProvePart(geometry, target, 0, held, true, part).status().message(),
              HasSubstr("lie over each other"));
}

}  // namespace
}  // namespace tangram::layout
