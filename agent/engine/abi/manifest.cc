#include "agent/engine/abi/manifest.h"

#include <algorithm>
#include <set>

namespace tangram::engine {
namespace {

Status Wrong(const std::string& what) { return {Code::kInternal, "manifest: " + what}; }

bool SplitsHeads(const std::vector<kv::LayerGroups>& groups) {
  return std::ranges::any_of(groups, [](const kv::LayerGroups& layer) {
    return std::ranges::any_of(layer,
                               [](const kv::Group& group) { return group.ranks.size() != 1; });
  });
}

// The pages of a rank in the form of the plan: a page is one KV head of a block in a layer of the
// model. Other sets have as many blocks, so the free blocks of this one decide the homes.
kv::RankState StateOf(const BlockManifest& manifest, uint32_t rank, const kv::Shape& shape,
                      uint32_t layers) {
  kv::RankState out;
  const uint32_t heads = shape.kv_heads, stride = manifest.kv.blocks * heads;
  out.total_pages = stride * layers;
  out.free_pages = manifest.kv.free_blocks * heads * layers;
  std::set<uint32_t> live;
  for (const BlockRequest& request : manifest.requests) {
    live.insert(request.blocks.begin(), request.blocks.end());
  }
  for (const uint32_t block : live) {
    for (uint32_t head = 0; head < heads; ++head) {
      out.strips.push_back({rank, block, head, 0, layers, block * heads + head, stride});
    }
  }
  return out;
}

}  // namespace

uint64_t BlockLayout::block_bytes() const {
  uint64_t out = 0;
  for (const BlockSet& set : sets) out += set.layers * set.block_bytes;
  return out;
}

bool BlockLayout::Alike(const BlockLayout& other) const {
  return std::ranges::equal(sets, other.sets, [](const BlockSet& a, const BlockSet& b) {
    return a.layers == b.layers && a.block_bytes == b.block_bytes;
  });
}

// Computes no sum that could wrap.
Status BlockLayout::LiesIn(uint32_t layers, uint64_t bytes) const {
  const auto within = [](uint64_t stride, uint64_t count, uint64_t* left) {
    if (count > 1 && stride > *left / (count - 1)) return false;
    *left -= stride * (count > 0 ? count - 1 : 0);
    return true;
  };
  if (free_blocks > blocks) return {Code::kInternal, "more KV blocks are free than exist"};
  if (sets.empty() || sets.size() > kMostSets || sets[0].layers != layers) {
    return {Code::kInternal, "the first KV set does not have the model's layers"};
  }
  for (const BlockSet& set : sets) {
    uint64_t left = bytes;
    bool lies = set.offset <= left;
    left -= lies ? set.offset : 0;
    lies = lies && within(set.layer_stride, set.layers, &left) &&
           within(set.block_stride, blocks, &left) && set.block_bytes <= left;
    // So the bytes of a block cannot wrap. Layers that share one place would still count here.
    lies = lies && (set.block_bytes == 0 || set.layers <= bytes / set.block_bytes);
    if (lies) continue;
    return {Code::kInternal, std::to_string(blocks) + " blocks of " + std::to_string(set.layers) +
                                 " layers do not fit in " + std::to_string(bytes) + " bytes"};
  }
  return OkStatus();
}

void BlockLayout::Encode(ByteWriter* to) const {
  to->PutVector(sets);
  to->Put(blocks);
  to->Put(free_blocks);
}

BlockLayout BlockLayout::Decode(ByteReader* from) {
  BlockLayout out;
  out.sets = from->GetVector<BlockSet>();
  if (out.sets.size() > kMostSets) out.sets.clear();
  out.blocks = from->Get<uint32_t>();
  out.free_blocks = from->Get<uint32_t>();
  return out;
}

Bytes BlockManifest::Encode() const {
  ByteWriter writer;
  kv.Encode(&writer);
  writer.Put<uint64_t>(requests.size());
  for (const BlockRequest& request : requests) {
    writer.PutString(request.request);
    writer.PutString(request.gateway);
    writer.Put<uint8_t>(request.running ? 1 : 0);
    writer.Put(request.computed);
    writer.Put(request.reserved);
    writer.PutVector(request.blocks);
    writer.PutVector(request.state);
    writer.Put(request.told);
    writer.Put(request.promised);
  }
  return writer.Take();
}

Result<BlockManifest> BlockManifest::Decode(const Bytes& bytes, uint32_t layers, uint64_t kv_bytes,
                                            uint32_t block_tokens) {
  ByteReader reader(bytes);
  BlockManifest out;
  out.kv = BlockLayout::Decode(&reader);
  const auto count = reader.Get<uint64_t>();
  for (uint64_t i = 0; i < count && reader.ok(); ++i) {
    BlockRequest request;
    request.request = reader.GetString();
    request.gateway = reader.GetString();
    request.running = reader.Get<uint8_t>() != 0;
    request.computed = reader.Get<uint32_t>();
    request.reserved = reader.Get<uint32_t>();
    request.blocks = reader.GetVector<uint32_t>();
    request.state = reader.GetVector<uint8_t>();
    request.told = reader.Get<uint64_t>();
    request.promised = reader.Get<int32_t>();
    const bool positions = request.computed <= request.blocks.size() * uint64_t{block_tokens} &&
                           (request.running || request.computed == 0);
    if (!positions) return Wrong("\"" + request.request + "\" has KV positions without blocks");
    if (std::ranges::any_of(request.blocks, [&](uint32_t b) { return b >= out.kv.blocks; })) {
      return Wrong("\"" + request.request + "\" has a block beyond " +
                   std::to_string(out.kv.blocks));
    }
    out.requests.push_back(std::move(request));
  }
  if (!reader.done()) return Wrong("malformed");
  if (const Status lies = out.kv.LiesIn(layers, kv_bytes); !lies.ok()) return Wrong(lies.message());
  return out;
}

Result<BlockPlan> PlanBlocks(const kv::Shape& shape, uint32_t layers, const Side& from,
                             const Side& to, const std::vector<BlockManifest>& manifests) {
  if (SplitsHeads(from.groups) || SplitsHeads(to.groups)) {
    return Status{Code::kInvalid, "this engine keeps all heads of a request on one rank"};
  }
  kv::Input input;
  input.shape = shape;
  input.old_groups = from.groups;
  input.new_groups = to.groups;
  input.new_ranks = static_cast<uint32_t>(to.members.size());
  for (const std::string& member : from.members) {
    const auto it = std::ranges::find(to.members, member);
    input.new_of_old.push_back(
        it == to.members.end() ? -1 : static_cast<int32_t>(it - to.members.begin()));
  }
  for (uint32_t r = 0; r < manifests.size(); ++r) {
    for (const BlockRequest& request : manifests[r].requests) {
      // A waiting request has and reserves no blocks yet, but needs a home.
      const uint32_t reserved = request.running ? std::max(request.reserved, request.computed) : 0;
      input.requests.push_back(
          {request.request, r, request.computed, reserved, request.blocks, request.promised});
    }
    input.ranks.push_back(StateOf(manifests[r], r, shape, layers));
  }
  auto plan = kv::MakePlan(input);
  if (!plan.ok()) return plan.status();
  return BlockPlan{std::move(input), std::move(*plan)};
}

}  // namespace tangram::engine
