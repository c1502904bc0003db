#include "e2e/engine/transition/ahead.h"

#include <algorithm>

namespace tangram::engine {

void FilledBlocks::Hear(uint32_t rank, const Filled& filled) {
  if (filled.attempt == 0) return;
  if (filled.attempt != attempt_) {
    Clear();
    attempt_ = filled.attempt;
  }
  for (size_t i = 0; i < filled.blocks.size(); ++i) {
    Block& block = blocks_[{rank, filled.blocks[i]}];
    block.full = true;
    if (!filled.homes.empty()) block.home = static_cast<int32_t>(filled.homes[i]);
    news_.push_back({rank, filled.blocks[i]});
  }
  for (const kv::Strip& strip : filled.strips) {
    blocks_[{strip.home, strip.block}].strips[rank].push_back(strip);
    if (news_.empty() || news_.back() != BlockName(strip.home, strip.block)) {
      news_.push_back({strip.home, strip.block});
    }
  }
}

const FilledBlocks::Block* FilledBlocks::Find(const BlockName& name) const {
  const auto it = blocks_.find(name);
  return it == blocks_.end() ? nullptr : &it->second;
}

Ahead::Ahead(uint64_t attempt, Limits limits, const kv::Shape& shape, const Side& from,
             const Side& to, uint32_t rank, const std::vector<uint64_t>& reserved)
    : attempt_(attempt), limits_(limits), block_tokens_(shape.block_tokens), rank_(rank) {
  for (const std::string& member : from.members) {
    const auto it = std::find(to.members.begin(), to.members.end(), member);
    new_of_old_.push_back(it == to.members.end() ? -1
                                                 : static_cast<int32_t>(it - to.members.begin()));
  }
  target_ = HeldMap(to.groups, shape, static_cast<uint32_t>(to.members.size()));
  bool stay = from.members == to.members;
  for (uint32_t home = 0; home < from.members.size(); ++home) stay = stay && StaysAt(home) >= 0;
  moves_ = stay ? kv::LayersThatChange(from.groups, to.groups)
                : std::vector<bool>(to.groups.size(), true);
  load_.resize(to.members.size());
  for (uint32_t home = 0; home < std::min(reserved.size(), new_of_old_.size()); ++home) {
    if (StaysAt(home) >= 0) load_[static_cast<uint32_t>(StaysAt(home))] = reserved[home];
  }
}

int32_t Ahead::StaysAt(uint32_t home) const {
  if (home >= new_of_old_.size()) return -1;
  const int32_t stays = new_of_old_[home];
  return stays >= 0 && target_.Accepts(static_cast<uint32_t>(stays)) ? stays : -1;
}

void Ahead::IsFull(uint32_t block, uint32_t first, uint32_t most) {
  uint32_t home = 0;
  if (StaysAt(rank_) < 0) {
    const auto [it, added] = promised_.try_emplace(first);
    // Homes that leave in the same flip start their search at different ranks.
    for (uint32_t i = 0; added && i < load_.size(); ++i) {
      const uint32_t r = (rank_ + i) % load_.size();
      const bool takes = target_.Accepts(r);
      if (takes && (!target_.Accepts(it->second) || load_[r] < load_[it->second])) it->second = r;
    }
    if (added) load_[it->second] += most;
    home = it->second;
  }
  full_.push_back({block, home});
}

int32_t Ahead::PromiseOf(std::span<const uint32_t> blocks) const {
  const auto it = blocks.empty() ? promised_.end() : promised_.find(blocks[0]);
  return it == promised_.end() ? -1 : static_cast<int32_t>(it->second);
}

Filled Ahead::Tell(const PageStore& pages) {
  Filled out;
  out.attempt = attempt_;
  for (; !full_.empty() && out.blocks.size() < limits_.told; full_.pop_front()) {
    out.blocks.push_back(full_.front().block);
    if (StaysAt(rank_) < 0) out.homes.push_back(full_.front().home);
  }
  for (; !has_.empty() && out.strips.size() < limits_.told; has_.pop_front()) {
    for (const kv::Strip& strip : pages.Find(has_.front().first, has_.front().second)) {
      const auto first = moves_.begin() + strip.layer;
      if (std::find(first, first + strip.layers, true) != first + strip.layers) {
        out.strips.push_back(strip);
      }
    }
  }
  return out;
}

const std::vector<HeldMap::Lane>& Ahead::Wanted(uint32_t home, const FilledBlocks::Block& block) {
  static const std::vector<HeldMap::Lane> kNothing;
  const int32_t me = new_of_old_[rank_];
  // A request stays on its rank if possible (kv::MakePlan).
  const int32_t goes = StaysAt(home) >= 0 ? StaysAt(home) : block.home;
  if (me < 0 || goes < 0 || !target_.Accepts(static_cast<uint32_t>(goes))) return kNothing;
  const auto [it, added] = wanted_.try_emplace(static_cast<uint32_t>(goes));
  if (!added) return it->second;
  for (HeldMap::Lane lane : target_.Lanes(static_cast<uint32_t>(goes), static_cast<uint32_t>(me))) {
    for (const uint32_t end = lane.layer + lane.layers; lane.layer < end;
         lane.layer += lane.layers) {
      const auto first = moves_.begin() + lane.layer, last = moves_.begin() + end;
      lane.layers = static_cast<uint32_t>(std::find(first, last, !*first) - first);
      if (*first) it->second.push_back(lane);
    }
  }
  return it->second;
}

Ahead::Copied Ahead::Copy(const HeldMap& held, const BlockName& name,
                          const FilledBlocks::Block& block, PageStore* pages,
                          std::vector<kv::PageCopy>* copies) {
  const auto [home, id] = name;
  struct Piece {
    uint32_t rank = 0;
    kv::Strip strip;  // of the source
  };
  std::vector<Piece> pieces;
  for (const HeldMap::Lane& lane : Wanted(home, block)) {
    for (uint32_t layer = lane.layer, end = lane.layer + lane.layers; layer < end;) {
      if (kv::Has(held.At(home, rank_, layer), lane.kv_head)) {  // already on this rank
        ++layer;
        continue;
      }
      // Ranks that need the same replicated head start at different replicas.
      std::vector<uint32_t> holders;
      for (uint32_t r = 0; r < held.ranks(); ++r) {
        if (kv::Has(held.At(home, r, layer), lane.kv_head)) holders.push_back(r);
      }
      if (holders.empty()) return Copied::kNothing;
      const uint32_t source = holders[(id + rank_) % holders.size()];
      const auto told = block.strips.find(source);
      if (told == block.strips.end()) return Copied::kLater;
      const auto strip =
          std::find_if(told->second.begin(), told->second.end(), [&](const kv::Strip& s) {
            return s.kv_head == lane.kv_head && s.layer <= layer && layer < s.layer + s.layers;
          });
      if (strip == told->second.end()) return Copied::kLater;
      uint32_t last = layer;  // of this run, which the source has and this rank does not
      while (last < end && last < strip->layer + strip->layers &&
             !kv::Has(held.At(home, rank_, last), lane.kv_head) &&
             kv::Has(held.At(home, source, last), lane.kv_head)) {
        ++last;
      }
      const uint32_t page = strip->page + (layer - strip->layer) * strip->stride;
      pieces.push_back(
          {source, {home, id, lane.kv_head, layer, last - layer, page, strip->stride}});
      layer = last;
    }
  }
  if (pieces.empty()) return Copied::kNothing;
  const size_t before = copies->size();
  for (const Piece& piece : pieces) {
    const kv::Strip& from = piece.strip;
    const std::vector<kv::Strip> to = pages->TakeAhead(home, id, from, block_tokens_);
    if (to.empty()) {  // Came frees the pages taken so far
      copies->resize(before);
      return Copied::kNoRoom;
    }
    for (const kv::Strip& run : to) {
      copies->push_back({piece.rank, from.page + (run.layer - from.layer) * from.stride,
                         from.stride, run.page, 1, run.layers, block_tokens_});
    }
  }
  return Copied::kAll;
}

void Ahead::Look(FilledBlocks* filled) {
  if (filled->attempt() != attempt_) return;
  for (const BlockName& name : filled->TakeNews()) queue_.push_back(name);
}

std::vector<kv::PageCopy> Ahead::Next(const HeldMap& held, const FilledBlocks& filled,
                                      PageStore* pages) {
  std::vector<kv::PageCopy> copies;
  uint64_t asked = 0;
  while (!queue_.empty() && asked < limits_.pages) {
    const BlockName name = queue_.front();
    const FilledBlocks::Block* block = filled.Find(name);
    if (block == nullptr || !block->full || done_.contains(name)) {
      queue_.pop_front();
      continue;
    }
    const size_t before = copies.size();
    const Copied copied = Copy(held, name, *block, pages, &copies);
    if (copied == Copied::kNoRoom) {
      ++short_of_room;
      queue_.clear();  // the flip fetches it, and all later blocks
      pages->ForgetAhead(name.first, name.second);
      break;
    }
    queue_.pop_front();
    if (copied != Copied::kAll) continue;  // a later report queues it again
    for (size_t i = before; i < copies.size(); ++i) asked += copies[i].pages;
    done_.insert(name);
    going_.push_back(name);
  }
  return copies;
}

void Ahead::Came(bool here) {
  for (const BlockName& name : going_) {
    if (here) continue;
    done_.erase(name);
    queue_.push_back(name);
  }
  going_.clear();
}

}  // namespace tangram::engine
