// Each rule of a layout, violated alone in an otherwise valid one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "agent/layout/testing.h"

namespace tangram::layout {
namespace {

using ::testing::HasSubstr;

// Layer 0 is dense; layer 1 has 4 experts on two ranks, layer 2 the same 4 on both together.
v1::Geometry Geometry() {
  v1::Geometry g = testing::SmallGeometry(3, 4, 6);
  g.clear_moe_layers();
  g.add_moe_layers(1);
  g.add_moe_layers(2);
  return g;
}

void SetGroup(v1::ExpertGroup* group, std::vector<uint32_t> ranks, std::vector<uint32_t> slots) {
  group->mutable_ranks()->Assign(ranks.begin(), ranks.end());
  group->mutable_slots()->Assign(slots.begin(), slots.end());
}

v1::Layout TwoRanks(const GeometryView& geometry) {
  v1::Layout out;
  out.set_geometry_fingerprint(geometry.fingerprint());
  out.set_banks(3);
  for (const char* id : {"a", "b"}) out.add_members()->set_id(id);
  for (uint32_t l = 0; l < 3; ++l) {
    v1::LayerLayout* layer = out.add_layers();
    layer->set_layer(l);
    layer->set_attention_group_size(2);
    v1::AttentionGroup* attention = layer->add_attention();
    for (const uint32_t rank : {0, 1}) attention->add_ranks(rank);
    for (const uint32_t bound : {0, 6, 12}) attention->add_query_head_bounds(bound);
  }
  out.mutable_layers(1)->set_expert_group_size(1);
  SetGroup(out.mutable_layers(1)->add_experts(), {0}, {1, 0, 3});
  SetGroup(out.mutable_layers(1)->add_experts(), {1}, {2, 4});
  out.mutable_layers(2)->set_expert_group_size(2);
  SetGroup(out.mutable_layers(2)->add_experts(), {0, 1}, {4, 3, 2, 1});
  out.mutable_dense()->add_ranks(1);
  return out;
}

struct Fault {
  std::string message;
  std::function<void(v1::Layout*)> make;
};

v1::ExpertGroup* Alone(v1::Layout* l, int rank) {
  return l->mutable_layers(1)->mutable_experts(rank);
}
v1::ExpertGroup* Together(v1::Layout* l) { return l->mutable_layers(2)->mutable_experts(0); }
v1::AttentionGroup* Heads(v1::Layout* l) { return l->mutable_layers(0)->mutable_attention(0); }

const std::vector<Fault>& Faults() {
  static const std::vector<Fault> faults = {
      {"no members", [](v1::Layout* l) { l->clear_members(); }},
      {"made for geometry 616e6f74686572",
       [](v1::Layout* l) { l->set_geometry_fingerprint("another"); }},
      {"member id '' is empty", [](v1::Layout* l) { l->mutable_members(1)->clear_id(); }},
      {"member id 'a' is empty or there twice",
       [](v1::Layout* l) { l->mutable_members(1)->set_id("a"); }},
      {"1 banks for 2 MoE layers", [](v1::Layout* l) { l->set_banks(1); }},
      {"4099 banks for 2", [](v1::Layout* l) { l->set_banks(2 + kMostSpareBanks + 1); }},
      {"2 layers, the geometry has 3", [](v1::Layout* l) { l->mutable_layers()->RemoveLast(); }},
      {"entry 2 is for layer 1", [](v1::Layout* l) { l->mutable_layers(2)->set_layer(1); }},
      {"layer 0 has no experts in this model",
       [](v1::Layout* l) { *l->mutable_layers(0)->add_experts() = l->layers(1).experts(0); }},
      {"layer 1, expert group 2: 0 ranks, expert_group_size says 1",
       [](v1::Layout* l) { l->mutable_layers(1)->add_experts(); }},
      {"expert group 0: 0 ranks, expert_group_size says 0",
       [](v1::Layout* l) {
         l->mutable_layers(1)->set_expert_group_size(0);
         Alone(l, 0)->clear_ranks();
       }},
      {"layer 2, expert group 0: 2 ranks, expert_group_size says 3",
       [](v1::Layout* l) { l->mutable_layers(2)->set_expert_group_size(3); }},
      {"7 ranks share an expert of 6 granules",
       [](v1::Layout* l) {
         l->mutable_layers(2)->set_expert_group_size(7);
         while (Together(l)->ranks_size() < 7) Together(l)->add_ranks(0);
       }},
      {"37 slots, a bank has 36",
       [](v1::Layout* l) {
         while (Alone(l, 0)->slots_size() < 37) Alone(l, 0)->add_slots(0);
       }},
      {"layer 1, expert group 1: rank 2 of 2", [](v1::Layout* l) { Alone(l, 1)->set_ranks(0, 2); }},
      {"layer 1, expert group 1: rank 0 is in two groups",
       [](v1::Layout* l) { Alone(l, 1)->set_ranks(0, 0); }},
      {"expert group 0: expert 4 of 4", [](v1::Layout* l) { Alone(l, 0)->set_slots(1, 5); }},
      {"expert group 0: expert 2 twice", [](v1::Layout* l) { Alone(l, 0)->set_slots(1, 3); }},
      {"layer 1: expert 3 has no owner", [](v1::Layout* l) { Alone(l, 1)->set_slots(1, 0); }},
      {"layer 0: no attention group",
       [](v1::Layout* l) { l->mutable_layers(0)->clear_attention(); }},
      {"layer 0, attention group 0: 2 ranks, attention_group_size says 1",
       [](v1::Layout* l) { l->mutable_layers(0)->set_attention_group_size(1); }},
      {"attention group 0: 0 ranks, attention_group_size says 0",
       [](v1::Layout* l) {
         l->mutable_layers(0)->set_attention_group_size(0);
         Heads(l)->clear_ranks();
         Heads(l)->clear_query_head_bounds();
       }},
      {"attention group 0: rank 2 of 2", [](v1::Layout* l) { Heads(l)->set_ranks(1, 2); }},
      {"attention group 0: rank 0 is in two groups",
       [](v1::Layout* l) { Heads(l)->set_ranks(1, 0); }},
      {"query_head_bounds must be 3 numbers from 0 to 12",
       [](v1::Layout* l) { Heads(l)->add_query_head_bounds(12); }},
      {"query_head_bounds must be 3", [](v1::Layout* l) { Heads(l)->set_query_head_bounds(0, 1); }},
      {"query_head_bounds must be 3",
       [](v1::Layout* l) { Heads(l)->set_query_head_bounds(2, 11); }},
      {"attention group 0: position 0 has no query head",
       [](v1::Layout* l) { Heads(l)->set_query_head_bounds(1, 0); }},
      {"attention group 0: position 1 has no query head",
       [](v1::Layout* l) { Heads(l)->set_query_head_bounds(1, 12); }},
      {"layer 1: bank -1 of 3", [](v1::Layout* l) { l->mutable_layers(1)->set_bank_offset(-1); }},
      {"layer 2: bank 3 of 3", [](v1::Layout* l) { l->mutable_layers(2)->set_bank_offset(2); }},
      {"layers 1 and 2 share bank 1",
       [](v1::Layout* l) { l->mutable_layers(1)->set_bank_offset(1); }},
      {"dense ranks must ascend below 2, found 2",
       [](v1::Layout* l) { l->mutable_dense()->add_ranks(2); }},
      {"dense ranks must ascend below 2, found 1",
       [](v1::Layout* l) { l->mutable_dense()->add_ranks(1); }},
      {"no rank holds the dense weights", [](v1::Layout* l) { l->clear_dense(); }},
  };
  return faults;
}

TEST(ValidateRules, RejectsEachViolationWithPlaceAndNumbers) {
  const GeometryView geometry = GeometryView::Make(Geometry()).value();
  const v1::Layout good = TwoRanks(geometry);
  ASSERT_TRUE(Validate(good, geometry).ok()) << Validate(good, geometry).message();
  for (const Fault& fault : Faults()) {
    v1::Layout bad = good;
    fault.make(&bad);
    const Status status = Validate(bad, geometry);
    ASSERT_FALSE(status.ok()) << fault.message;
    EXPECT_THAT(status.message(), HasSubstr(fault.message));
    EXPECT_EQ(status.code(),
              fault.message.starts_with("made for") ? Code::kBadGeometry : Code::kBadPlan);
  }
}

TEST(ValidateRules, AcceptsValuesAtLimits) {
  const GeometryView geometry = GeometryView::Make(Geometry()).value();
  const std::vector<std::function<void(v1::Layout*)>> changes = {
      [](v1::Layout* l) { l->set_banks(2); },
      [](v1::Layout* l) { l->set_banks(2 + kMostSpareBanks); },
      [](v1::Layout* l) { l->mutable_layers(2)->set_bank_offset(1); },
      [](v1::Layout* l) {  // the dense layer has no bank, whatever it declares
        l->mutable_layers(0)->set_bank_offset(-9);
      },
      [](v1::Layout* l) {
        while (Alone(l, 0)->slots_size() < 36) Alone(l, 0)->add_slots(0);
      },
      [](v1::Layout* l) { Alone(l, 0)->add_slots(4); },  // a replica next to another rank's
      [](v1::Layout* l) {
        l->mutable_dense()->set_ranks(0, 0);
        l->mutable_dense()->add_ranks(1);
      },
      [](v1::Layout* l) {  // as many positions as granules, a rank at several
        l->mutable_layers(2)->set_expert_group_size(6);
        while (Together(l)->ranks_size() < 6) Together(l)->add_ranks(1);
      },
      [](v1::Layout* l) { Heads(l)->set_query_head_bounds(1, 1); },
      [](v1::Layout* l) { Heads(l)->set_query_head_bounds(1, 11); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    v1::Layout layout = TwoRanks(geometry);
    changes[i](&layout);
    EXPECT_TRUE(Validate(layout, geometry).ok())
        << i << ": " << Validate(layout, geometry).message();
  }
}

TEST(ValidateRules, RejectsSharedBankOfFirstLayer) {
  const GeometryView geometry = GeometryView::Make(testing::SmallGeometry(2, 4, 6)).value();
  std::mt19937_64 random(1);
  v1::Layout layout = testing::RandomLayout(geometry, 2, 0, random);
  layout.mutable_layers(1)->set_bank_offset(-1);
  EXPECT_THAT(Validate(layout, geometry).message(), HasSubstr("layers 0 and 1 share bank 0"));
}

// One expert with a tail in every shard, on as many ranks as it has granules.
v1::Geometry Tailed(uint32_t granules, uint64_t tail) {
  v1::Geometry g = testing::SmallGeometry(1, 1, granules);
  g.set_query_heads(60);
  g.set_kv_heads(60);
  g.set_granule_bytes(256);
  g.set_expert_tail_bytes(256 * tail);
  g.set_page_bytes(256);
  return g;
}

Status ValidateOnAll(const v1::Geometry& g, uint32_t ranks) {
  const GeometryView geometry = GeometryView::Make(g).value();
  std::mt19937_64 random(1);
  v1::Layout layout = testing::RandomLayout(geometry, ranks, 0, random);
  v1::LayerLayout* layer = layout.mutable_layers(0);
  layer->clear_experts();
  layer->set_expert_group_size(ranks);
  layer->add_experts()->add_slots(1);
  for (uint32_t r = 0; r < ranks; ++r) layer->mutable_experts(0)->add_ranks(r);
  return Validate(layout, geometry);
}

TEST(ValidateRules, RejectsShardsBeyondBankSize) {
  // 34 shards of 1 + 1088 pages, and a bank of 33 experts of 34 + 1088.
  EXPECT_TRUE(ValidateOnAll(Tailed(34, 1088), 34).ok());
  EXPECT_THAT(ValidateOnAll(Tailed(34, 1089), 34).message(),
              HasSubstr("layer 0, expert group 0: its shards need"));
  // 34 of 36 shards of 1 + 1154 pages fill a bank of 33 experts of 36 + 1154 to its last byte.
  EXPECT_THAT(ValidateOnAll(Tailed(36, 1154), 36).message(), HasSubstr("its shards need"));
}

}  // namespace
}  // namespace tangram::layout
