#include "agent/engine/abi/incoming.h"

#include <algorithm>

#include "agent/engine/abi/moves.h"

namespace tangram::engine {
namespace {

// Shares of the engine's blocks: reserving for others leaves one in kLeftFree free for its own
// requests. With fewer than one in kTooFew free, the reserved ones are freed.
constexpr uint32_t kLeftFree = 8, kTooFew = 16;  // one block in this many

}  // namespace

void Incoming::Stage(uint32_t rank, int32_t target) {
  Unstage();
  rank_ = rank;
  target_ = target;
  staged_ = true;
  closed_ = false;
  copies_.Restart();
}

void Incoming::Unstage() {
  staged_ = false;
  left_ = 0;
  for (Entry it = comings_.begin(); it != comings_.end();) it = Discard(it);
}

Incoming::Entry Incoming::Discard(Entry entry) {
  Coming& coming = entry->second;
  if (!coming.gone) {
    counts_.in_vain += std::ranges::count(coming.state, State::kHere) * block_bytes_;
  }
  coming.gone = true;
  if (coming.writing) return std::next(entry);
  if (!coming.mine.empty()) room_->Unreserve(entry->first);
  reserved_ -= static_cast<uint32_t>(coming.mine.size());
  return comings_.erase(entry);
}

void Incoming::TakeUp(Between* waits) {
  const std::optional<bool> came = copies_.TakeUp(waits);
  if (!came) return;
  for (Entry it = comings_.begin(); it != comings_.end();) {
    Coming& coming = it->second;
    coming.writing = false;
    for (State& state : coming.state) {
      if (state != State::kWritten) continue;
      state = *came && !coming.gone ? State::kHere : State::kNot;
      if (*came && coming.gone) counts_.in_vain += block_bytes_;
    }
    it = coming.gone ? Discard(it) : std::next(it);
  }
}

void Incoming::Advance(const Board& board) {
  if (!staged_) return;
  for (Entry it = comings_.begin(); it != comings_.end();) {
    const Coming& coming = it->second;
    const Board::Told* told = board.Find(coming.source, it->first);
    const bool comes =
        told != nullptr && told->generation == coming.generation && told->promised == target_;
    it = comes && !coming.gone ? std::next(it) : Discard(it);
  }
  MakeRoom();
  left_ = 0;
  if (target_ < 0 || closed_) return;
  if (copies_.MayBegin()) Begin(board);
  for (uint32_t r = 0; r < board.ranks(); ++r) {
    if (r == rank_) continue;
    for (const auto& [name, told] : board.Of(r)) {
      if (told.promised != target_) continue;
      const auto it = comings_.find(name);
      if (it != comings_.end() && it->second.full) continue;
      left_ += told.blocks.size();
      if (it != comings_.end()) left_ -= std::ranges::count(it->second.state, State::kHere);
    }
  }
}

void Incoming::MakeRoom() {
  const BlockLayout mine = room_->Layout();
  if (reserved_ == 0 || mine.free_blocks >= mine.blocks / kTooFew) return;
  // All of them, for the rest of the attempt: an engine that is short of blocks will need more.
  closed_ = true;
  for (Entry it = comings_.begin(); it != comings_.end();) {
    Coming& coming = it->second;
    if (coming.gone || coming.mine.empty()) {
      ++it;
      continue;
    }
    ++counts_.no_room;
    it = Discard(it);
  }
}

void Incoming::Reserve(const std::string& request, Coming* coming) {
  const size_t more = coming->theirs.size() - coming->mine.size();
  if (more == 0 || coming->full) return;
  const BlockLayout layout = room_->Layout();
  std::vector<uint32_t> blocks(more);
  if (layout.free_blocks < more + layout.blocks / kLeftFree ||
      !room_->Reserve(request, blocks).ok()) {
    coming->full = true;
    ++counts_.no_room;
    return;
  }
  reserved_ += static_cast<uint32_t>(more);
  coming->mine.insert(coming->mine.end(), blocks.begin(), blocks.end());
  coming->state.resize(coming->mine.size(), State::kNot);
}

void Incoming::Begin(const Board& board) {
  const BlockLayout mine = room_->Layout();
  block_bytes_ = mine.block_bytes();
  Moves moves;
  for (uint32_t r = 0; r < board.ranks(); ++r) {
    const BlockLayout& theirs = board.LayoutOf(r);
    if (r == rank_ || !theirs.Alike(mine)) continue;
    for (const auto& [name, told] : board.Of(r)) {
      if (told.promised != target_ || told.blocks.empty()) continue;
      if (moves.bytes() >= Copies::kAtOnce) break;
      const auto [it, added] = comings_.try_emplace(name);
      Coming& coming = it->second;
      if (added) coming.source = r, coming.generation = told.generation;
      // The blocks of a discarded one are not free yet.
      if (coming.gone || coming.source != r || coming.generation != told.generation) continue;
      coming.theirs = told.blocks;
      Reserve(name, &coming);
      std::vector<uint32_t> from, to;
      const auto bytes = [&] { return moves.bytes() + to.size() * block_bytes_; };
      for (size_t b = 0; b < coming.mine.size() && bytes() < Copies::kAtOnce; ++b) {
        if (coming.state[b] != State::kNot) continue;
        if (coming.mine[b] >= mine.blocks) continue;  // no block of the engine: adopting reports it
        coming.state[b] = State::kWritten;
        coming.writing = true;
        from.push_back(coming.theirs[b]);
        to.push_back(coming.mine[b]);
      }
      moves.AddBlocks(r, theirs, from, mine, to);
    }
  }
  if (moves.list().empty() || copies_.Begin(moves.list())) return;
  for (auto& [name, coming] : comings_) {
    coming.writing = false;
    std::ranges::replace(coming.state, State::kWritten, State::kNot);
  }
}

Status Incoming::Settle(const std::map<std::string, Comes>& comes, Between& waits) {
  TakeUp(&waits);
  if (copies_.under_way()) {
    return {Code::kUnavailable, "the KV copies ahead of the flip did not end in time"};
  }
  for (Entry it = comings_.begin(); it != comings_.end();) {
    const Coming& coming = it->second;
    const auto at = comes.find(it->first);
    const bool same = at != comes.end() && at->second.source == coming.source &&
                      at->second.request->told == coming.generation && !coming.gone &&
                      coming.mine.size() <= at->second.request->blocks.size();
    it = same ? std::next(it) : Discard(it);
  }
  return OkStatus();
}

Incoming::Ready Incoming::Take(const std::string& request) {
  Ready out;
  const auto it = comings_.find(request);
  if (it == comings_.end()) return out;
  for (const State state : it->second.state) out.here.push_back(state == State::kHere);
  out.mine = std::move(it->second.mine);
  reserved_ -= static_cast<uint32_t>(out.mine.size());
  comings_.erase(it);
  return out;
}

}  // namespace tangram::engine
