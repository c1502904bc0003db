#include "e2e/engine/kv/ahead_pages.h"

#include <algorithm>

namespace tangram::engine {

std::vector<kv::Strip> AheadPages::Take(device::Arena* arena, uint32_t home, uint32_t block,
                                        const kv::Strip& lane, uint32_t tokens) {
  std::vector<kv::Strip> out;
  const auto runs = arena->Take(lane.layers);
  if (!runs.ok()) return out;
  uint32_t layer = lane.layer;
  for (const device::Extent& run : *runs) {
    const auto layers = static_cast<uint32_t>(run.length);
    const auto page = static_cast<uint32_t>(run.offset);
    out.push_back({home, block, lane.kv_head, layer, layers, page, 1});
    copies_.emplace(Name{{home, block}, {lane.kv_head, layer}},
                    Copy{page, layers, tokens, State::kWritten});
    layer += layers;
    ++writing_;
  }
  pages_ += lane.layers;
  return out;
}

void AheadPages::Give(device::Arena* arena, const Copy& copy) {
  const device::Extent extent{copy.page, copy.layers};
  arena->Give({&extent, 1});
  pages_ -= copy.layers;
}

void AheadPages::Came(device::Arena* arena, bool here) {
  for (auto it = copies_.begin(); it != copies_.end();) {
    Copy& copy = it->second;
    if (copy.state == State::kGone || (copy.state == State::kWritten && !here)) {
      Give(arena, copy);
      it = copies_.erase(it);
      continue;
    }
    copy.state = State::kHere;
    ++it;
  }
  writing_ = 0;
}

void AheadPages::Drop(device::Arena* arena, uint32_t home, uint32_t block) {
  auto it = copies_.lower_bound(Name{{home, block}, {0, 0}});
  while (it != copies_.end() && it->first.first == std::pair(home, block)) {
    if (it->second.state != State::kHere) {
      it->second.state = State::kGone;
      ++it;
      continue;
    }
    Give(arena, it->second);
    it = copies_.erase(it);
  }
}

void AheadPages::Forget(device::Arena* arena, uint32_t home, uint32_t block) {
  auto it = copies_.lower_bound(Name{{home, block}, {0, 0}});
  while (it != copies_.end() && it->first.first == std::pair(home, block)) {
    if (it->second.state == State::kHere) {
      ++it;
      continue;
    }
    Give(arena, it->second);
    --writing_;
    it = copies_.erase(it);
  }
}

void AheadPages::DropAll(device::Arena* arena) {
  DropUnless(arena, [](uint32_t, uint32_t) { return false; });
  for (auto& [name, copy] : copies_) copy.state = State::kGone;
}

Status AheadPages::TakeOver(device::Arena* arena, const AheadPages& before) {
  for (const auto& [name, copy] : before.copies_) {
    if (copy.state == State::kHere) continue;
    const device::Extent extent{copy.page, copy.layers};
    TANGRAM_RETURN_IF_ERROR(arena->Claim({&extent, 1}));
    copies_.emplace(name, copy)->second.state = State::kGone;
    pages_ += copy.layers;
    ++writing_;
  }
  return OkStatus();
}

std::vector<device::Extent> AheadPages::Extents() const {
  std::vector<device::Extent> out;
  for (const auto& [name, copy] : copies_) out.push_back({copy.page, copy.layers});
  return out;
}

AheadPages::Found AheadPages::Find(uint32_t home, uint32_t block, uint32_t kv_head, uint32_t layer,
                                   uint32_t end, uint32_t tokens) const {
  Found out{0, end - layer, false};
  for (auto it = copies_.lower_bound(Name{{home, block}, {kv_head, 0}});
       it != copies_.end() && it->first.first == std::pair(home, block) &&
       it->first.second.first == kv_head && it->first.second.second < end;
       ++it) {
    const Copy& copy = it->second;
    const uint32_t first = it->first.second.second;
    // A copy with another number of filled tokens has other content: the flip fetches it again.
    if (copy.state != State::kHere || copy.tokens != tokens || first + copy.layers <= layer) {
      continue;
    }
    if (first > layer) {
      out.layers = first - layer;
      return out;
    }
    return {copy.page + (layer - first), std::min(first + copy.layers, end) - layer, true};
  }
  return out;
}

}  // namespace tangram::engine
