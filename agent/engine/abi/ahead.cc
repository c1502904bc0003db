// KV ahead of a flip, for engines in other languages: the backend's part (told.h, incoming.h).
#include <spdlog/spdlog.h>

#include <algorithm>

#include "agent/engine/abi/called.h"

namespace tangram::engine {

BlockLayout Called::LayoutWithReserved() const {
  BlockLayout out = Layout();
  out.free_blocks = std::min(out.blocks, out.free_blocks + incoming_.blocks());
  return out;
}

Status Called::Reserve(const std::string& request, std::span<uint32_t> blocks) {
  tg_error why = TG_INIT(tg_error);
  const tg_code code =
      backend_.reserve(backend_.self, request.c_str(), blocks.data(), blocks.size(), &why);
  return code == TG_OK ? OkStatus() : Status{Code::kNoMemory, why.message};
}

void Called::Unreserve(const std::string& request) {
  backend_.unreserve(backend_.self, request.c_str());
}

void Called::Stage(uint64_t attempt, const Side& to) {
  if (backend_.reserve == nullptr) return;
  Unstage();
  staged_ = Staged{attempt, to};
  const auto self = std::ranges::find(to.members, epoch_->side.members[epoch_->rank]);
  incoming_.Stage(epoch_->rank,
                  self == to.members.end() ? -1 : static_cast<int32_t>(self - to.members.begin()));
}

Bytes Called::Tell() {
  tge_manifest list;
  backend_.progress(backend_.self, &list);
  std::erase_if(list.requests, [](const BlockRequest& request) { return !request.running; });
  BlockNews news = teller_.Tell(list.requests, block_tokens_);
  news.attempt = staged_->attempt;
  news.kv = LayoutWithReserved();
  return news.Encode();
}

Status Called::Heard(const std::vector<Bytes>& texts, uint32_t* malformed) {
  const tg_model& model = world_->model();
  std::vector<BlockNews> news;
  for (uint32_t r = 0; r < texts.size(); ++r) {
    auto told = BlockNews::Decode(texts[r], model.layers, model.kv_bytes);
    if (!told.ok()) {
      *malformed = r;
      return told.status();
    }
    news.push_back(std::move(*told));
  }
  board_.Hear(std::move(news));
  // All ranks have the target now and received the same reports, so all promise the same homes.
  if (staged_ && board_.All(staged_->attempt)) {
    board_.Promise(ShapeOf(), model.layers, epoch_->side, staged_->to);
  }
  return OkStatus();
}

bool Called::Advance() {
  if (!staged_) return true;
  if (!board_.All(staged_->attempt)) return false;
  incoming_.Advance(board_);
  return !teller_.behind() && !incoming_.behind();
}

void Called::Unstage() {
  if (staged_) board_.Forget(staged_->attempt);
  staged_.reset();
  teller_.Clear();
  incoming_.Unstage();
}

// In another epoch ranks have other numbers, and blocks other owners.
void Called::EndStaging() {
  Unstage();
  board_.Clear();
}

Bytes Called::Manifest(const Side&, bool) {
  BlockManifest here = Here();
  for (BlockRequest& request : here.requests) {
    if (!staged_ || !request.running) continue;
    request.told = teller_.GenerationOf(request.request, request.generation);
    const Board::Told* told = board_.Find(epoch_->rank, request.request);
    if (told != nullptr) request.promised = told->promised;
  }
  return here.Encode();
}

Status Called::Settle(uint32_t rank, Between& between) {
  std::map<std::string, Incoming::Comes> comes;
  size_t at = 0;
  for (uint32_t r = 0; r < transition_->manifests.size(); ++r) {
    for (const BlockRequest& request : transition_->manifests[r].requests) {
      const bool here = transition_->blocks.plan.requests[at++].home == rank;
      if (here && r != epoch_->rank) comes[request.request] = {r, &request};
    }
  }
  return incoming_.Settle(comes, between);
}

void Called::TellCarried(uint64_t ahead, uint64_t flip) {
  if (!staged_) return;
  const Incoming::Counts counts = incoming_.counts();
  spdlog::info(
      "KV migrated bytes_ahead={} bytes_in_flip={} pulls={} pulls_failed={} pulls_deferred={} "
      "bytes_discarded={} requests_without_room={}",
      ahead, flip, counts.pulls, counts.failed, counts.put_off, counts.in_vain, counts.no_room);
}

}  // namespace tangram::engine
