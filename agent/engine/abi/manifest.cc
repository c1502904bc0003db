#include "agent/engine/abi/manifest.h"

#include <algorithm>
#include <set>

namespace tangram::engine {
namespace {

Status Wrong(const std::string& what) { return {Code::kInternal, "manifest: " + what}; }

// Do all blocks of all layers lie in the region? Without sums that wrap.
bool Fits(const BlockLayout& kv, uint32_t layers, uint64_t bytes) {
  const auto within = [&](uint64_t stride, uint64_t count, uint64_t* left) {
    if (count > 1 && stride > *left / (count - 1)) return false;
    *left -= stride * (count > 0 ? count - 1 : 0);
    return true;
  };
  uint64_t left = bytes;
  if (kv.offset > left) return false;
  left -= kv.offset;
  return within(kv.layer_stride, layers, &left) && within(kv.block_stride, kv.blocks, &left) &&
         kv.block_bytes <= left;
}

bool SplitsHeads(const std::vector<kv::LayerGroups>& groups) {
  return std::ranges::any_of(groups, [](const kv::LayerGroups& layer) {
    return std::ranges::any_of(layer,
                               [](const kv::Group& group) { return group.ranks.size() != 1; });
  });
}

// The pages of a rank in the words of the plan: a page is one KV head of a block in a layer.
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

Bytes BlockManifest::Encode() const {
  ByteWriter writer;
  writer.Put(kv);
  writer.Put<uint64_t>(requests.size());
  for (const BlockRequest& request : requests) {
    writer.PutString(request.request);
    writer.PutString(request.gateway);
    writer.Put<uint8_t>(request.running ? 1 : 0);
    writer.Put(request.computed);
    writer.Put(request.reserved);
    writer.PutVector(request.blocks);
    writer.PutVector(request.state);
  }
  return writer.Take();
}

Result<BlockManifest> BlockManifest::Decode(const Bytes& bytes, uint32_t layers, uint64_t kv_bytes,
                                            uint32_t block_tokens) {
  ByteReader reader(bytes);
  BlockManifest out;
  out.kv = reader.Get<BlockLayout>();
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
    const bool positions = request.computed <= request.blocks.size() * uint64_t{block_tokens} &&
                           (request.running || request.computed == 0);
    if (!positions) return Wrong("\"" + request.request + "\" has KV of positions without blocks");
    if (std::ranges::any_of(request.blocks, [&](uint32_t b) { return b >= out.kv.blocks; })) {
      return Wrong("\"" + request.request + "\" has a block beyond " +
                   std::to_string(out.kv.blocks));
    }
    out.requests.push_back(std::move(request));
  }
  if (!reader.done()) return Wrong("malformed");
  if (out.kv.free_blocks > out.kv.blocks || !Fits(out.kv, layers, kv_bytes)) {
    return Wrong(std::to_string(out.kv.blocks) + " blocks of " + std::to_string(layers) +
                 " layers do not lie in " + std::to_string(kv_bytes) + " bytes");
  }
  return out;
}

Result<kv::Plan> PlanBlocks(const kv::Shape& shape, uint32_t layers, const Side& from,
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
      // Who waits has nothing and reserves nothing yet, but needs a home.
      const uint32_t reserved = request.running ? std::max(request.reserved, request.computed) : 0;
      input.requests.push_back({request.request, r, request.computed, reserved, request.blocks});
    }
    input.ranks.push_back(StateOf(manifests[r], r, shape, layers));
  }
  return kv::MakePlan(input);
}

}  // namespace tangram::engine
