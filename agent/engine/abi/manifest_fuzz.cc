// Messages of another rank in a flip: decoded, or an error. A decoded one survives a round trip and
// is within the region.
#include <cstdlib>

#include "agent/engine/abi/manifest.h"

using namespace tangram::engine;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr uint32_t kLayers = 3, kTokens = 16;
  constexpr uint64_t kBytes = 1 << 20;
  const auto came = BlockManifest::Decode({data, data + size}, kLayers, kBytes, kTokens);
  if (!came.ok()) return 0;
  const BlockLayout& kv = came->kv;
  for (const BlockSet& set : kv.sets) {
    if (set.layers == 0 || kv.blocks == 0) continue;
    if (set.At(set.layers - 1, kv.blocks - 1) + set.block_bytes > kBytes) std::abort();
  }
  if (kv.sets.empty() || kv.sets[0].layers != kLayers || kv.sets.size() > BlockLayout::kMostSets) {
    std::abort();
  }
  for (const BlockRequest& request : came->requests) {
    if (request.computed > request.blocks.size() * kTokens) std::abort();
    for (const uint32_t block : request.blocks) {
      if (block >= kv.blocks) std::abort();
    }
  }
  if (!BlockManifest::Decode(came->Encode(), kLayers, kBytes, kTokens).ok()) std::abort();
  return 0;
}
