// Effects of a delta.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "agent/layout/testing.h"

namespace tangram::layout {
namespace {

using ::testing::HasSubstr;

// Members a, b and c; layers 0 and 1 are on ranks 1 and 2.
v1::Layout Base() {
  v1::Layout out;
  out.set_epoch(1);
  out.set_banks(2);
  for (const char* id : {"a", "b", "c"}) out.add_members()->set_id(id);
  for (uint32_t l = 0; l < 2; ++l) {
    v1::LayerLayout* layer = out.add_layers();
    layer->set_layer(l);
    v1::ExpertGroup* experts = layer->add_experts();
    v1::AttentionGroup* heads = layer->add_attention();
    for (const uint32_t rank : {2, 1}) {
      experts->add_ranks(rank);
      heads->add_ranks(rank);
    }
  }
  out.mutable_dense()->add_ranks(1);
  out.add_stages();
  return out;
}

v1::Layout Applied(const v1::LayoutDelta& delta) {
  const auto out = Apply(Base(), delta, 2);
  EXPECT_TRUE(out.ok()) << out.status().message();
  return out.ok() ? *out : v1::Layout();
}

std::string Refusal(const v1::LayoutDelta& delta) {
  const auto out = Apply(Base(), delta, 2);
  EXPECT_EQ(out.status().code(), Code::kBadPlan);
  return out.status().message();
}

TEST(Delta, ChangesOnlyEpochWhenEmpty) {
  v1::Layout want = Base();
  want.set_epoch(2);
  EXPECT_EQ(Applied({}).DebugString(), want.DebugString());
}

TEST(Delta, ReplacesOnlyNamedParts) {
  const std::vector<std::function<void(v1::LayoutDelta*, v1::Layout*)>> changes = {
      [](v1::LayoutDelta* delta, v1::Layout* want) {
        delta->set_banks(5);
        want->set_banks(5);
      },
      [](v1::LayoutDelta* delta, v1::Layout* want) {
        delta->mutable_dense()->add_ranks(2);
        want->mutable_dense()->set_ranks(0, 2);
      },
      [](v1::LayoutDelta* delta, v1::Layout* want) {
        for (int i = 0; i < 2; ++i) delta->add_stages();
        want->add_stages();
      },
      [](v1::LayoutDelta* delta, v1::Layout* want) {
        delta->set_members_changed(true);
        delta->add_members()->set_id("d");
        want->clear_members();
        want->add_members()->set_id("d");
      },
      // members that did not change are not read
      [](v1::LayoutDelta* delta, v1::Layout*) { delta->add_members()->set_id("d"); },
      [](v1::LayoutDelta* delta, v1::Layout* want) {
        v1::LayerLayout* layer = delta->add_layers();
        layer->set_layer(1);
        layer->set_bank_offset(7);
        *want->mutable_layers(1) = *layer;
      },
  };
  for (const auto& change : changes) {
    v1::LayoutDelta delta;
    v1::Layout want = Base();
    want.set_epoch(2);
    change(&delta, &want);
    EXPECT_EQ(Applied(delta).DebugString(), want.DebugString());
  }
}

TEST(Delta, RejectsUnknownLayer) {
  v1::LayoutDelta delta;
  delta.add_layers()->set_layer(2);
  EXPECT_THAT(Refusal(delta), HasSubstr("delta names layer 2 of 2"));
}

v1::LayoutDelta Renumbered(std::vector<uint32_t> numbers) {
  v1::LayoutDelta delta;
  delta.mutable_renumber()->Assign(numbers.begin(), numbers.end());
  return delta;
}

TEST(Delta, RenumbersUnreplacedLayers) {
  v1::LayoutDelta delta = Renumbered({0, 1, 2});  // a leaves, b becomes 0 and c 1
  v1::LayerLayout* layer = delta.add_layers();
  layer->set_layer(1);
  layer->add_experts()->add_ranks(2);
  v1::Layout want = Base();
  want.set_epoch(2);
  *want.mutable_layers(1) = *layer;
  for (auto* ranks : {want.mutable_layers(0)->mutable_experts(0)->mutable_ranks(),
                      want.mutable_layers(0)->mutable_attention(0)->mutable_ranks()}) {
    ranks->Set(0, 1);
    ranks->Set(1, 0);
  }
  EXPECT_EQ(Applied(delta).DebugString(), want.DebugString());
}

TEST(Delta, RejectsLeaverWithExpertsOrHeads) {
  EXPECT_THAT(Refusal(Renumbered({1, 2})), HasSubstr("renumber has 2 entries for 3 members"));
  EXPECT_THAT(Refusal(Renumbered({1, 0, 2})),
              HasSubstr("layer 0: a leaving rank still owns experts"));
  v1::LayoutDelta replaces_one = Renumbered({1, 0, 2});
  replaces_one.add_layers()->set_layer(0);
  EXPECT_THAT(Refusal(replaces_one), HasSubstr("layer 1: a leaving rank still owns experts"));

  // A rank that no member has.
  for (const uint32_t rank : {3, 9}) {
    v1::Layout base = Base();
    base.mutable_layers(1)->mutable_experts(0)->set_ranks(0, rank);
    EXPECT_THAT(Apply(base, Renumbered({1, 2, 3}), 2).status().message(),
                HasSubstr("layer 1: a leaving rank still owns experts"));
  }
  v1::Layout heads = Base();
  heads.mutable_layers(0)->mutable_attention(0)->set_ranks(1, 0);
  EXPECT_THAT(Apply(heads, Renumbered({0, 1, 2}), 2).status().message(),
              HasSubstr("layer 0: a leaving rank still has heads"));
}

}  // namespace
}  // namespace tangram::layout
