#include "agent/transition/kv_peers.h"

#include <map>
#include <set>

#include "agent/kv/sources.h"

namespace tangram {
namespace {

std::vector<kv::LayerGroups> GroupsOf(const v1::Layout& layout) {
  std::vector<kv::LayerGroups> out;
  for (const v1::LayerLayout& layer : layout.layers()) {
    kv::LayerGroups& groups = out.emplace_back();
    for (const v1::AttentionGroup& group : layer.attention()) {
      groups.push_back({{group.ranks().begin(), group.ranks().end()},
                        {group.query_head_bounds().begin(), group.query_head_bounds().end()}});
    }
  }
  return out;
}

}  // namespace

std::vector<v1::PeerAddress> KvPeers(const v1::Geometry& geometry, const v1::Layout& before,
                                     const v1::Layout& target, const std::string& member,
                                     const std::vector<v1::PeerAddress>& peers) {
  std::map<std::string, int32_t> numbers;
  for (int r = 0; r < target.members_size(); ++r) numbers[target.members(r).id()] = r;
  const auto mine = numbers.find(member);
  if (mine == numbers.end()) return {};
  kv::Input in;
  in.shape.query_heads = geometry.query_heads();
  in.shape.kv_heads = geometry.kv_heads();
  in.old_groups = GroupsOf(before);
  in.new_groups = GroupsOf(target);
  for (const v1::Member& old : before.members()) {
    const auto it = numbers.find(old.id());
    in.new_of_old.push_back(it == numbers.end() ? -1 : it->second);
  }
  in.new_ranks = static_cast<uint32_t>(target.members_size());
  in.ranks.resize(in.new_of_old.size());
  std::set<std::string> sources;
  for (const uint32_t rank : kv::LikelySources(in, static_cast<uint32_t>(mine->second))) {
    sources.insert(before.members(static_cast<int>(rank)).id());
  }
  std::vector<v1::PeerAddress> out;
  for (const v1::PeerAddress& peer : peers) {
    if (sources.contains(peer.member())) out.push_back(peer);
  }
  return out;
}

}  // namespace tangram
