#include "agent/transition/kv_peers.h"

#include <gtest/gtest.h>

#include "agent/layout/testing.h"

namespace tangram {
namespace {

// Members m0, m1, ... from `first` on; one layer, whose attention is in groups of `group` ranks.
v1::Layout Attention(const v1::Geometry& geometry, uint32_t first, uint32_t ranks, uint32_t group) {
  v1::Layout out;
  for (uint32_t r = 0; r < ranks; ++r) {
    out.add_members()->set_id("m" + std::to_string(first + r));
  }
  v1::LayerLayout& layer = *out.add_layers();
  for (uint32_t r = 0; r < ranks; r += group) {
    v1::AttentionGroup& attention = *layer.add_attention();
    attention.add_query_head_bounds(0);
    for (uint32_t p = 0; p < group; ++p) {
      attention.add_ranks(r + p);
      attention.add_query_head_bounds((p + 1) * geometry.query_heads() / group);
    }
  }
  return out;
}

TEST(KvPeers, AreThoseWhoseKvMayMoveHere) {
  const v1::Geometry geometry = layout::testing::SmallGeometry(1, 4, 2);
  std::vector<v1::PeerAddress> all(5);
  for (int r = 0; r < 5; ++r) all[r].set_member("m" + std::to_string(r));
  const auto peers = [&](const v1::Layout& before, const v1::Layout& target, const char* member) {
    std::string out;
    for (const v1::PeerAddress& peer : KvPeers(geometry, before, target, member, all)) {
      out += peer.member();
    }
    return out;
  };
  const auto layout = [&](uint32_t first, uint32_t ranks, uint32_t group) {
    return Attention(geometry, first, ranks, group);
  };
  EXPECT_EQ(peers(layout(0, 2, 1), layout(0, 4, 1), "m3"), "") << "all homes stay";
  EXPECT_EQ(peers(layout(0, 4, 1), layout(1, 3, 1), "m2"), "m0") << "who leaves; numbers change";
  EXPECT_EQ(peers(layout(0, 4, 1), layout(1, 3, 1), "m0"), "") << "it leaves itself";
  EXPECT_EQ(peers(layout(0, 4, 1), layout(0, 4, 2), "m0"), "m1") << "its group";
  EXPECT_EQ(peers(layout(0, 4, 2), layout(0, 4, 1), "m3"), "m2");
}

}  // namespace
}  // namespace tangram
