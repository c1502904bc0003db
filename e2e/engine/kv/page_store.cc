#include "e2e/engine/kv/page_store.h"

#include <algorithm>
#include <string>
#include <tuple>

namespace tangram::engine {
namespace {

std::string Name(uint32_t home, uint32_t block) {
  return "block " + std::to_string(block) + " of home " + std::to_string(home);
}

device::Extent PagesOf(const kv::Strip& strip) { return {strip.page, strip.layers}; }

std::vector<device::Extent> PagesOf(std::span<const kv::Strip> strips) {
  std::vector<device::Extent> out;
  for (const kv::Strip& strip : strips) out.push_back(PagesOf(strip));
  return out;
}

// Taken pages, handed out from the front.
class Taken {
 public:
  explicit Taken(std::vector<device::Extent> runs) : runs_(std::move(runs)) {}

  // At most `pages` adjacent pages.
  device::Extent Next(uint32_t pages) {
    device::Extent& run = runs_[at_];
    const device::Extent out{run.offset, std::min<uint64_t>(run.length, pages)};
    run.offset += out.length;
    run.length -= out.length;
    if (run.length == 0) ++at_;
    return out;
  }

 private:
  std::vector<device::Extent> runs_;
  size_t at_ = 0;
};

// Runs of the strip's layers that are among `layers`, or that are not.
void Cut(const kv::Strip& strip, const std::vector<bool>& layers, bool among,
         std::vector<kv::Strip>* out) {
  const auto begin = layers.begin() + strip.layer, end = begin + strip.layers;
  for (auto first = std::find(begin, end, among); first != end;) {
    const auto last = std::find(first, end, !among);
    const auto skip = static_cast<uint32_t>(first - begin);
    kv::Strip& run = out->emplace_back(strip);
    run.layer += skip;
    run.page += skip * strip.stride;
    run.layers = static_cast<uint32_t>(last - first);
    first = std::find(last, end, among);
  }
}

// nullptr: the home has no such block.
const kv::PlacedBlock* Find(const PageStore::Placed& placed, uint32_t home, uint32_t block) {
  if (home >= placed.size()) return nullptr;
  const auto before = [](const kv::PlacedBlock& b, uint32_t name) { return b.block < name; };
  const auto it = std::lower_bound(placed[home].begin(), placed[home].end(), block, before);
  return it == placed[home].end() || it->block != block ? nullptr : &*it;
}

// Whether these strips of a block cover all of its lanes, each page once.
Status CheckLanes(const std::vector<kv::Strip>& strips, const std::vector<HeldMap::Lane>& lanes) {
  auto next = strips.begin();
  for (const HeldMap::Lane& lane : lanes) {
    for (uint32_t layer = lane.layer; layer < lane.layer + lane.layers; layer += next++->layers) {
      if (next == strips.end() || next->kv_head != lane.kv_head || next->layer != layer ||
          next->layers > lane.layer + lane.layers - layer || next->layers == 0) {
        return {Code::kInternal, "the KV plan leaves KV head " + std::to_string(lane.kv_head) +
                                     " of layer " + std::to_string(layer) + " of " +
                                     Name(strips[0].home, strips[0].block) +
                                     " empty, or fills an earlier one twice"};
      }
    }
  }
  if (next == strips.end()) return OkStatus();
  return {Code::kInternal, "the KV plan assigns to this rank KV head " +
                               std::to_string(next->kv_head) + " of layer " +
                               std::to_string(next->layer) + " of " +
                               Name(next->home, next->block) + ", which it does not hold"};
}

}  // namespace

PageStore::PageStore(uint32_t total_pages)
    : total_(total_pages), free_(std::make_unique<device::Arena>(total_pages, 1)) {}

Result<PageStore> PageStore::Of(uint32_t total_pages, ByName blocks) {
  std::vector<device::Extent> used;
  for (const auto& [name, strips] : blocks) {
    for (const kv::Strip& strip : strips) used.push_back(PagesOf(strip));
  }
  auto free = device::Arena::Without(total_pages, 1, std::move(used));
  if (!free.ok()) return Status{Code::kInternal, "KV pages: " + free.status().message()};
  PageStore out;
  out.total_ = total_pages;
  out.free_ = std::move(*free);
  out.blocks_ = std::move(blocks);
  return out;
}

Result<std::span<const kv::Strip>> PageStore::Ensure(uint32_t home, uint32_t block,
                                                     const HeldMap& held, uint32_t rank) {
  const auto it = blocks_.find({home, block});
  if (it != blocks_.end()) return std::span<const kv::Strip>(it->second);
  const uint32_t count = held.PagesPerBlock(home, rank);
  if (count > free_->free_bytes()) DropAhead();
  if (count > free_->free_bytes()) {
    return Status{Code::kNoMemory, Name(home, block) + " needs " + std::to_string(count) +
                                       " KV pages, " + std::to_string(free()) + " of " +
                                       std::to_string(total_) + " are free"};
  }
  std::vector<kv::Strip>& strips = blocks_[{home, block}];
  for (const HeldMap::Lane& lane : held.Lanes(home, rank)) {
    auto runs = free_->Take(lane.layers);
    if (!runs.ok()) return runs.status();
    uint32_t layer = lane.layer;
    for (const device::Extent& run : *runs) {
      const auto layers = static_cast<uint32_t>(run.length);
      strips.push_back(
          {home, block, lane.kv_head, layer, layers, static_cast<uint32_t>(run.offset), 1});
      layer += layers;
    }
  }
  return std::span<const kv::Strip>(strips);
}

std::span<const kv::Strip> PageStore::Find(uint32_t home, uint32_t block) const {
  const auto it = blocks_.find({home, block});
  if (it == blocks_.end()) return {};
  return it->second;
}

void PageStore::Drop(uint32_t home, uint32_t block) {
  ahead_.Drop(free_.get(), home, block);
  const auto it = blocks_.find({home, block});
  if (it == blocks_.end()) return;
  free_->Give(PagesOf(it->second));
  blocks_.erase(it);
}

kv::RankState PageStore::State(const std::vector<bool>& layers) const {
  kv::RankState out;
  out.total_pages = total_;
  out.free_pages = free();
  for (const auto& [name, strips] : blocks_) {
    if (layers.empty()) {
      out.strips.insert(out.strips.end(), strips.begin(), strips.end());
    } else {
      for (const kv::Strip& strip : strips) Cut(strip, layers, true, &out.strips);
    }
  }
  return out;
}

Result<PageStore> PageStore::After(const kv::RankPlan& plan, const Placed& placed,
                                   const HeldMap& held, uint32_t rank,
                                   std::vector<kv::PageCopy>* copies, uint64_t* ready,
                                   const std::vector<bool>& layers) {
  copies->clear();
  *ready = 0;
  // Layers of a move, run by run; each copy is used once.
  std::vector<std::vector<AheadPages::Found>> runs_of(plan.moves.size());
  std::vector<bool> used(total_);
  const auto uses = [&](uint32_t first, uint32_t layers) {
    const auto begin = used.begin() + first;
    return std::find(begin, begin + layers, true) != begin + layers;
  };
  uint64_t pages = 0;
  for (size_t i = 0; i < plan.moves.size(); ++i) {
    const kv::Move& m = plan.moves[i];
    const kv::PlacedBlock* const block = engine::Find(placed, m.home, m.block);
    if (block == nullptr) return Status{Code::kInternal, "the KV plan moves an unknown block"};
    for (uint32_t layer = m.layer, end = m.layer + m.layers; layer < end;) {
      AheadPages::Found run =
          ahead_.Find(block->old_home, block->old_block, m.kv_head, layer, end, m.tokens);
      run.here = run.here && !uses(run.page, run.layers);
      if (run.here) std::fill_n(used.begin() + run.page, run.layers, true);
      (run.here ? *ready : pages) += run.layers;
      layer += run.layers;
      runs_of[i].push_back(run);
    }
  }
  std::vector<device::Extent> runs;
  if (pages > 0) {
    if (pages > free_->free_bytes()) {
      ahead_.DropUnless(free_.get(), uses);
    }
    auto taken = free_->Take(pages);
    if (!taken.ok() && ahead() > 0) {  // copies use part of their pages only
      DropAhead();
      return After(plan, placed, held, rank, copies, ready, layers);
    }
    if (!taken.ok()) {
      return Status{Code::kNoMemory, "the KV plan needs " + std::to_string(pages) + " pages, " +
                                         std::to_string(free_->free_bytes()) + " are free"};
    }
    free_->Give(*taken);  // the next store owns them
    runs = std::move(*taken);
  }
  // Both are ordered by name.
  ByName blocks;
  auto last = blocks.end();
  const auto strips_of = [&](uint32_t home, uint32_t block) -> std::vector<kv::Strip>& {
    const std::pair name(home, block);
    if (last == blocks.end() || last->first != name) last = blocks.try_emplace(blocks.end(), name);
    return last->second;
  };
  for (const kv::Keep& k : plan.kept) {
    if (k.layers > 1 && k.stride != 1) {
      return Status{Code::kInternal, "the KV plan retains pages that are not contiguous"};
    }
    strips_of(k.home, k.block)
        .push_back({k.home, k.block, k.kv_head, k.layer, k.layers, k.page, 1});
  }
  Taken taken(std::move(runs));
  for (size_t i = 0; i < plan.moves.size(); ++i) {
    const kv::Move& m = plan.moves[i];
    std::vector<kv::Strip>& strips = strips_of(m.home, m.block);
    uint32_t done = 0;
    for (const AheadPages::Found& found : runs_of[i]) {
      if (found.here) {
        strips.push_back({m.home, m.block, m.kv_head, m.layer + done, found.layers, found.page, 1});
        done += found.layers;
        continue;
      }
      for (const uint32_t end = done + found.layers; done < end;) {
        const device::Extent run = taken.Next(end - done);
        const auto page = static_cast<uint32_t>(run.offset);
        const auto count = static_cast<uint32_t>(run.length);
        copies->push_back({m.source_rank, m.source_page + done * m.source_stride, m.source_stride,
                           page, 1, count, m.tokens});
        strips.push_back({m.home, m.block, m.kv_head, m.layer + done, count, page, 1});
        done += count;
      }
    }
  }
  for (uint32_t home = 0; !layers.empty() && home < placed.size(); ++home) {
    for (const kv::PlacedBlock& block : placed[home]) {
      std::vector<kv::Strip> rest;
      for (const kv::Strip& strip : Find(block.old_home, block.old_block)) {
        Cut(strip, layers, false, &rest);
      }
      if (rest.empty()) continue;
      std::vector<kv::Strip>& all = blocks[{home, block.block}];
      for (kv::Strip& strip : rest) {
        strip.home = home;
        strip.block = block.block;
        all.push_back(strip);
      }
    }
  }
  uint32_t home = ~0U;
  std::vector<HeldMap::Lane> lanes;
  for (auto& [name, strips] : blocks) {
    if (name.first != home) lanes = held.Lanes(home = name.first, rank);
    std::sort(strips.begin(), strips.end(), [](const kv::Strip& a, const kv::Strip& b) {
      return std::tie(a.kv_head, a.layer) < std::tie(b.kv_head, b.layer);
    });
    TANGRAM_RETURN_IF_ERROR(CheckLanes(strips, lanes));
  }
  return Of(total_, std::move(blocks));
}

Result<PageStore> PageStore::OnlyOf(uint32_t home, const std::set<uint32_t>& blocks,
                                    uint32_t now) const {
  ByName stay;
  for (const auto& [name, strips] : blocks_) {
    if (name.first != home || !blocks.contains(name.second)) continue;
    std::vector<kv::Strip>& renamed = stay[{now, name.second}] = strips;
    for (kv::Strip& strip : renamed) strip.home = now;
  }
  return Of(total_, std::move(stay));
}

Status PageStore::Audit() const {
  std::vector<device::Extent> owned;
  uint64_t count = 0;
  for (const auto& [name, strips] : blocks_) {
    for (const kv::Strip& strip : strips) {
      owned.push_back(PagesOf(strip));
      count += strip.layers;
    }
  }
  for (const device::Extent& extent : ahead_.Extents()) owned.push_back(extent);
  const auto rest = device::Arena::Without(total_, 1, std::move(owned));
  if (!rest.ok()) return {Code::kInternal, "KV pages: " + rest.status().message()};
  if ((*rest)->free_bytes() != free_->free_bytes()) {
    return {Code::kInternal, std::to_string(count) + " KV pages are owned, " +
                                 std::to_string(ahead()) + " copied ahead and " +
                                 std::to_string(free_->free_bytes()) + " free, of " +
                                 std::to_string(total_)};
  }
  return OkStatus();
}

}  // namespace tangram::engine
