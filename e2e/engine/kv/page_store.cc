#include "e2e/engine/kv/page_store.h"

#include <string>

namespace tangram::engine {
namespace {

constexpr uint32_t kNoPage = ~0u;

std::string Name(uint32_t home, uint32_t block) {
  return "block " + std::to_string(block) + " of home " + std::to_string(home);
}

}  // namespace

PageStore::PageStore(uint32_t total_pages) : total_(total_pages) {
  free_.reserve(total_pages);
  for (uint32_t page = total_pages; page > 0; --page) free_.push_back(page - 1);
}

Result<std::span<const uint32_t>> PageStore::Ensure(uint32_t home, uint32_t block, uint32_t count) {
  const auto it = blocks_.find({home, block});
  if (it != blocks_.end()) return std::span<const uint32_t>(it->second);
  if (count > free_.size()) {
    return Status{Code::kNoMemory, Name(home, block) + " needs " + std::to_string(count) +
                                       " KV pages, " + std::to_string(free_.size()) + " of " +
                                       std::to_string(total_) + " are free"};
  }
  std::vector<uint32_t>& pages = blocks_[{home, block}];
  pages.assign(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - count);
  return std::span<const uint32_t>(pages);
}

std::span<const uint32_t> PageStore::Find(uint32_t home, uint32_t block) const {
  const auto it = blocks_.find({home, block});
  if (it == blocks_.end()) return {};
  return it->second;
}

void PageStore::Drop(uint32_t home, uint32_t block) {
  const auto it = blocks_.find({home, block});
  if (it == blocks_.end()) return;
  free_.insert(free_.end(), it->second.rbegin(), it->second.rend());
  blocks_.erase(it);
}

kv::RankState PageStore::State() const {
  kv::RankState out;
  out.total_pages = total_;
  out.free_pages = free();
  for (const auto& [name, pages] : blocks_) {
    out.blocks.push_back({name.first, name.second, pages});
  }
  return out;
}

Result<PageStore> PageStore::After(const kv::RankPlan& plan, const HeldMap& held, uint32_t rank,
                                   std::vector<uint32_t>* targets) const {
  targets->clear();
  if (plan.moves.size() > free_.size()) {
    return Status{Code::kNoMemory, "the KV plan brings " + std::to_string(plan.moves.size()) +
                                       " pages, " + std::to_string(free_.size()) + " are free"};
  }
  PageStore out(0);
  out.total_ = total_;
  const auto place = [&](uint32_t home, uint32_t block, uint32_t layer, uint32_t kv_head,
                         uint32_t page) -> Status {
    const HeldMap::Layer& at = held.At(home, rank, layer);
    std::vector<uint32_t>& pages = out.blocks_[{home, block}];
    pages.resize(held.PagesPerBlock(home, rank), kNoPage);
    if (kv_head < at.first || kv_head >= at.first + at.heads) {
      return {Code::kInternal, "the KV plan gives rank " + std::to_string(rank) + " KV head " +
                                   std::to_string(kv_head) + " of layer " + std::to_string(layer) +
                                   ", which it does not hold"};
    }
    uint32_t& slot = pages[at.offset + kv_head - at.first];
    if (slot != kNoPage) {
      return {Code::kInternal, "the KV plan fills a page of " + Name(home, block) + " twice"};
    }
    slot = page;
    return OkStatus();
  };
  std::vector<bool> used(total_, false);
  for (const kv::Keep& keep : plan.kept) {
    TANGRAM_RETURN_IF_ERROR(place(keep.home, keep.block, keep.layer, keep.kv_head, keep.page));
    used[keep.page] = true;
  }
  for (size_t i = 0; i < plan.moves.size(); ++i) {
    const kv::Move& move = plan.moves[i];
    const uint32_t page = free_[free_.size() - 1 - i];
    TANGRAM_RETURN_IF_ERROR(place(move.home, move.block, move.layer, move.kv_head, page));
    used[page] = true;
    targets->push_back(page);
  }
  for (const auto& [name, pages] : out.blocks_) {
    for (const uint32_t page : pages) {
      if (page == kNoPage) {
        return Status{Code::kInternal,
                      "the KV plan leaves a page of " + Name(name.first, name.second) + " empty"};
      }
    }
  }
  for (uint32_t page = total_; page > 0; --page) {
    if (!used[page - 1]) out.free_.push_back(page - 1);
  }
  return out;
}

PageStore PageStore::OnlyOf(uint32_t home, const std::set<uint32_t>& blocks, uint32_t now) const {
  PageStore out(0);
  out.total_ = total_;
  std::vector<bool> used(total_, false);
  for (const auto& [name, pages] : blocks_) {
    if (name.first != home || !blocks.contains(name.second)) continue;
    out.blocks_[{now, name.second}] = pages;
    for (const uint32_t page : pages) used[page] = true;
  }
  for (uint32_t page = total_; page > 0; --page) {
    if (!used[page - 1]) out.free_.push_back(page - 1);
  }
  return out;
}

Status PageStore::Audit() const {
  std::vector<bool> seen(total_, false);
  size_t count = 0;
  const auto see = [&](uint32_t page) {
    const bool ok = page < total_ && !seen[page];
    if (ok) seen[page] = true;
    ++count;
    return ok;
  };
  for (const uint32_t page : free_) {
    if (!see(page)) return {Code::kInternal, "free KV page " + std::to_string(page) + " twice"};
  }
  for (const auto& [name, pages] : blocks_) {
    for (const uint32_t page : pages) {
      if (!see(page)) {
        return {Code::kInternal, "KV page " + std::to_string(page) + " of " +
                                     Name(name.first, name.second) + " is owned twice"};
      }
    }
  }
  if (count != total_) {
    return {Code::kInternal, std::to_string(count) + " of " + std::to_string(total_) +
                                 " KV pages are owned or free"};
  }
  return OkStatus();
}

}  // namespace tangram::engine
