#include "agent/engine/abi/told.h"

#include <algorithm>
#include <set>

#include "agent/engine/world/groups.h"

namespace tangram::engine {

Bytes BlockNews::Encode() const {
  ByteWriter writer;
  writer.Put(attempt);
  kv.Encode(&writer);
  writer.Put<uint64_t>(ended.size());
  for (const std::string& request : ended) writer.PutString(request);
  writer.Put<uint64_t>(grown.size());
  for (const Grown& g : grown) {
    writer.PutString(g.request);
    writer.Put(g.generation);
    writer.Put(g.computed);
    writer.Put(g.reserved);
    writer.Put(g.had);
    writer.PutVector(g.blocks);
  }
  return writer.Take();
}

Result<BlockNews> BlockNews::Decode(const Bytes& bytes, uint32_t layers, uint64_t kv_bytes) {
  BlockNews out;
  if (bytes.empty()) return out;
  const auto wrong = [](const std::string& what) {
    return Status{Code::kInternal, "KV ahead of a flip: " + what};
  };
  ByteReader reader(bytes);
  out.attempt = reader.Get<uint64_t>();
  out.kv = BlockLayout::Decode(&reader);
  const auto ended = reader.Get<uint64_t>();
  for (uint64_t i = 0; i < ended && reader.ok(); ++i) out.ended.push_back(reader.GetString());
  const auto grown = reader.Get<uint64_t>();
  for (uint64_t i = 0; i < grown && reader.ok(); ++i) {
    Grown g;
    g.request = reader.GetString();
    g.generation = reader.Get<uint64_t>();
    g.computed = reader.Get<uint32_t>();
    g.reserved = reader.Get<uint32_t>();
    g.had = reader.Get<uint32_t>();
    g.blocks = reader.GetVector<uint32_t>();
    if (std::ranges::any_of(g.blocks, [&](uint32_t b) { return b >= out.kv.blocks; })) {
      return wrong("\"" + g.request + "\" has a block beyond " + std::to_string(out.kv.blocks));
    }
    out.grown.push_back(std::move(g));
  }
  if (!reader.done()) return wrong("malformed");
  if (const Status lies = out.kv.LiesIn(layers, kv_bytes); !lies.ok()) return wrong(lies.message());
  return out;
}

BlockNews Teller::Tell(const std::vector<BlockRequest>& running, uint32_t block_tokens) {
  BlockNews out;
  out.ended = std::move(ended_);
  ended_.clear();
  behind_ = false;
  std::set<std::string_view> here;
  for (const BlockRequest& request : running) here.insert(request.request);
  for (auto it = requests_.begin(); it != requests_.end();) {
    const bool stays = here.contains(it->first);
    if (!stays) out.ended.push_back(it->first);
    it = stays ? std::next(it) : requests_.erase(it);
  }
  size_t told = 0;
  for (const BlockRequest& request : running) {
    auto [it, added] = requests_.try_emplace(request.request);
    Known& known = it->second;
    const size_t full = std::min<size_t>(request.computed / block_tokens, request.blocks.size());
    // If an engine takes a block back without a report, the generation changes all the same.
    const bool as_told =
        known.blocks.size() <= full &&
        std::equal(known.blocks.begin(), known.blocks.end(), request.blocks.begin());
    if (added || known.engines != request.generation || !as_told) {
      if (++turn_ == 0) ++turn_;  // it wraps, and 0 means not reported
      known = {turn_, request.generation, {}};
      added = true;
    }
    const size_t had = known.blocks.size();
    const size_t count = std::min(full - had, kBlocks - std::min(kBlocks, told));
    behind_ = behind_ || had + count < full;
    if (count == 0 && !added) continue;
    const auto first = request.blocks.begin() + static_cast<ptrdiff_t>(had);
    const std::vector<uint32_t> blocks(first, first + static_cast<ptrdiff_t>(count));
    known.blocks.insert(known.blocks.end(), blocks.begin(), blocks.end());
    told += count;
    out.grown.push_back({request.request, Join(known.turn, known.engines), request.computed,
                         request.reserved, static_cast<uint32_t>(had), blocks});
  }
  return out;
}

void Teller::Renewed(const std::string& request) {
  if (requests_.erase(request) > 0) ended_.push_back(request);
}

uint64_t Teller::GenerationOf(const std::string& request, uint32_t engines) const {
  const auto it = requests_.find(request);
  return it == requests_.end() ? 0 : Join(it->second.turn, engines);
}

void Board::Hear(std::vector<BlockNews> news) {
  uint64_t latest = 0;
  for (const BlockNews& n : news) {
    if (n.attempt != over_) latest = std::max(latest, n.attempt);
  }
  if (latest != attempt_ && latest != 0) {
    const uint64_t over = over_;
    *this = {};
    over_ = over;
    attempt_ = latest;
  }
  if (attempt_ == 0) return;
  ranks_.resize(news.size());
  all_ = true;
  for (size_t r = 0; r < news.size(); ++r) {
    BlockNews& n = news[r];
    all_ = all_ && n.attempt == attempt_;
    if (n.attempt != attempt_) continue;
    Rank& rank = ranks_[r];
    // Blocks reported earlier are in places of the earlier layout.
    if (rank.kv.blocks != n.kv.blocks || !rank.kv.Alike(n.kv)) rank.requests.clear();
    rank.kv = n.kv;
    for (const std::string& request : n.ended) rank.requests.erase(request);
    for (BlockNews::Grown& g : n.grown) {
      Told& told = rank.requests[g.request];
      if (g.had == 0) {
        told.generation = g.generation;
        told.blocks.clear();
      } else if (told.generation != g.generation || told.blocks.size() != g.had) {
        continue;  // its beginning was not reported for this attempt
      }
      told.computed = g.computed;
      told.reserved = g.reserved;
      told.blocks.insert(told.blocks.end(), g.blocks.begin(), g.blocks.end());
    }
  }
}

void Board::Forget(uint64_t attempt) {
  if (attempt_ == attempt) *this = {};  // but keep one that others report already
  over_ = attempt;
}

const Board::Told* Board::Find(uint32_t rank, const std::string& request) const {
  if (rank >= ranks_.size()) return nullptr;
  const auto it = ranks_[rank].requests.find(request);
  return it == ranks_[rank].requests.end() ? nullptr : &it->second;
}

void Board::Promise(const kv::Shape& shape, uint32_t layers, const Side& from, const Side& to) {
  if (pause_ > 0) {
    --pause_;
    return;
  }
  const auto homeless = [&](size_t rank, const Told& told) {
    const auto stays = std::ranges::find(to.members, from.members[rank]);
    if (told.promised != kNowhere || told.blocks.empty()) return false;
    // A leaving rank first loses its requests, and its membership in a later flip.
    return stays == to.members.end() ||
           !Accepts(to.groups, static_cast<uint32_t>(stays - to.members.begin()));
  };
  bool any = false;
  std::vector<BlockManifest> manifests;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    BlockManifest& manifest = manifests.emplace_back();
    manifest.kv = ranks_[r].kv;
    for (const auto& [name, told] : ranks_[r].requests) {
      any = any || homeless(r, told);
      BlockRequest& request = manifest.requests.emplace_back();
      request.request = name;
      request.running = true;
      request.computed = static_cast<uint32_t>(told.blocks.size()) * shape.block_tokens;
      request.reserved = std::max(told.reserved, request.computed);
      request.blocks = told.blocks;
      request.promised = told.promised;
    }
  }
  if (!any) return;
  const auto plan = PlanBlocks(shape, layers, from, to, manifests);
  if (!plan.ok()) {  // it would not fit now: left to the flip
    pause_ = kAgain;
    return;
  }
  size_t at = 0;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    for (auto& [name, told] : ranks_[r].requests) {
      const uint32_t home = plan->plan.requests[at++].home;
      if (homeless(r, told)) told.promised = static_cast<int32_t>(home);
    }
  }
}

}  // namespace tangram::engine
