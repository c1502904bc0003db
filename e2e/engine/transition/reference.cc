// The reference engine's migration through a flip, and its state after a repair.
#include "e2e/engine/step/reference.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>

#include "agent/engine/world/groups.h"
#include "agent/kv/cover.h"

namespace tangram::engine {
namespace {

// Whether all KV of requests of home `rank` is on that rank.
bool HomeOnly(const std::vector<kv::LayerGroups>& groups, uint32_t rank) {
  return std::all_of(groups.begin(), groups.end(), [&](const kv::LayerGroups& layer) {
    return std::any_of(layer.begin(), layer.end(), [&](const kv::Group& group) {
      return group.ranks.size() == 1 && group.ranks[0] == rank;
    });
  });
}

}  // namespace

Bytes Reference::Manifest(const Side& to, bool whole) {
  return EncodeManifest(
      scheduler_, pages_, ListedLayers(epoch_->side, to, whole),
      [this](std::span<const uint32_t> blocks) { return ahead_ ? ahead_->PromiseOf(blocks) : -1; });
}

Status Reference::Plan(const Side& from, const Side& to, bool whole,
                       const std::vector<Bytes>& manifests, uint64_t* moved, uint32_t* malformed) {
  Transition next;
  for (uint32_t r = 0; r < manifests.size(); ++r) {
    Result<RankManifest> manifest = DecodeManifest(manifests[r], shape_.block_tokens);
    if (!manifest.ok()) {
      *malformed = r;
      return manifest.status();
    }
    next.manifests.push_back(std::move(*manifest));
  }
  Result<Carrying> carrying = PlanCarry(shape_, from, to, whole, &next.manifests);
  if (!carrying.ok()) return carrying.status();
  next.carrying = std::move(*carrying);
  next.to = to;
  next.listed = ListedLayers(from, to, whole);
  // All ranks drop the same blocks; these are dropped even if all requests stay.
  for (const auto& [home, block] : next.carrying.evicted) {
    if (home == epoch_->rank) scheduler_.Evict(block);
    pages_.Drop(home, block);
    filled_.Freed(home, block);
  }
  *moved = next.carrying.plan.requests_moved;
  transition_ = std::move(next);
  return OkStatus();
}

// Executes this rank's part of the plan; the active state does not change.
Result<uint64_t> Reference::Bring(uint32_t rank, Between& between) {
  Transition& t = *transition_;
  const Result<kv::RankPlan> part = kv::ProvenPart(t.carrying.input, t.carrying.plan, rank);
  if (!part.ok()) return part.status();
  const HeldMap held(t.to.groups, shape_, static_cast<uint32_t>(t.to.members.size()));
  std::vector<kv::PageCopy> copies;
  if (const Status copied = AwaitCopies(between); !copied.ok()) return copied;
  uint64_t ready = 0;
  Result<PageStore> pages =
      pages_.After(*part, t.carrying.plan.blocks, held, rank, &copies, &ready, t.listed);
  if (!pages.ok()) return pages.status();
  const model::KvRow row = config_->kv_row();
  std::vector<kv::Format> sources;
  for (const kv::RankState& old : t.carrying.input.ranks) {
    sources.push_back(PoolOf(shape_, row, old.total_pages));
  }
  const Result<uint64_t> bytes = PullPages(
      copies_, *kv_, sources, PoolOf(shape_, row, pages->total()), epoch_->rank, copies, between);
  if (!bytes.ok()) return bytes.status();
  t.brought.emplace(Held{std::move(*pages), AdoptOf(t.carrying, std::move(t.manifests), rank),
                         t.carrying.plan.next_block[rank]});
  const uint64_t used = ready * shape_.block_tokens * shape_.head_token_bytes;
  carried_.used += used;
  carried_.flip += *bytes;
  if (ahead_) {
    spdlog::info(
        "KV migrated bytes_ahead={} bytes_in_flip={} blocks_without_room={} pulls={} "
        "pulls_failed={} pulls_deferred={}",
        used, *bytes, ahead_->short_of_room, copies_.pulls(), copies_.failed(), copies_.put_off());
  }
  spdlog::info("KV balance max_over_mean={:.2f}", t.carrying.plan.lopsided);
  return used + *bytes;
}

void Reference::Stage(uint64_t attempt, const Side& to) {
  const uint64_t page_bytes = uint64_t{shape_.block_tokens} * shape_.head_token_bytes;
  Ahead::Limits limits;
  limits.pages = static_cast<uint32_t>(std::max<uint64_t>(1, Copies::kAtOnce / page_bytes));
  std::vector<uint64_t> reserved;
  for (const HomeFigures& home : scheduler_.figures()) reserved.push_back(home.reserved_blocks);
  ahead_.emplace(attempt, limits, shape_, epoch_->side, to, epoch_->rank, reserved);
  copies_.Restart();
  for (const BlockName& name : pages_.Blocks()) ahead_->Has(name);
  std::set<uint32_t> full;
  const auto tell = [&](std::span<const uint32_t> blocks, size_t most) {
    for (const uint32_t block : blocks) {
      if (!full.insert(block).second) continue;
      ahead_->IsFull(block, blocks[0], static_cast<uint32_t>(most));
    }
  };
  size_t running = 0;
  for (const Sequence* sequence : scheduler_.All(&running)) {
    tell(std::span(sequence->blocks).first(sequence->computed / shape_.block_tokens),
         sequence->BlocksFor(sequence->reserved_tokens(), shape_.block_tokens));
  }
  const std::vector<Chain> idle = scheduler_.IdleChains();
  for (auto chain = idle.rbegin(); chain != idle.rend(); ++chain) {
    tell(chain->blocks, chain->blocks.size());
  }
}

bool Reference::Advance() {
  if (!ahead_) return true;
  ahead_->Look(&filled_);
  if (copies_.MayBegin() && !BeginCopies()) {
    pages_.Came(false);
    ahead_->Came(false);
  }
  return copies_.given_up() || !ahead_->behind();
}

bool Reference::BeginCopies() {
  const std::vector<kv::PageCopy> copies = ahead_->Next(held_, filled_, &pages_);
  if (copies.empty()) return true;
  std::vector<tg_kv_move> moves;
  const kv::Format mine = PoolOf(shape_, config_->kv_row(), pages_.total());
  // Regions of an engine's ranks differ in size only.
  const kv::Format any = PoolOf(shape_, config_->kv_row(), UINT32_MAX);
  const Status told =
      kv::TellMoves([&](uint32_t) { return &any; }, mine, copies,
                    [&](const kv::ByteMove& move) {
                      moves.push_back({move.source_rank, move.source, move.target, move.length});
                      return OkStatus();
                    });
  if (told.ok()) return copies_.Begin(moves);
  copies_.Failed(told);
  return false;
}

void Reference::TakeUp(Between* waits) {
  const std::optional<bool> came = copies_.TakeUp(waits);
  if (!came) return;
  carried_.ahead = copies_.bytes();
  pages_.Came(*came);
  if (ahead_) ahead_->Came(*came);
}

Status Reference::AwaitCopies(Between& between) {
  TakeUp(&between);
  if (!copies_.under_way()) return OkStatus();
  return {Code::kUnavailable, "the KV copies ahead of the flip did not end in time"};
}

void Reference::Unstage() {
  ahead_.reset();
  filled_.Clear();
  pages_.DropAhead();
}

Status Reference::Replace(PageStore pages) {
  TANGRAM_RETURN_IF_ERROR(pages.TakeOver(pages_));
  pages_ = std::move(pages);
  return OkStatus();
}

void Reference::Drop() { transition_.reset(); }

Result<Reference::Held> Reference::Repaired(const Epoch& epoch) {
  const bool keeps = epoch_ != nullptr && HomeOnly(epoch_->side.groups, epoch_->rank) &&
                     HomeOnly(epoch.side.groups, epoch.rank);
  size_t running = 0;
  const std::vector<const Sequence*> all = scheduler_.All(&running);
  Held out;
  std::set<uint32_t> blocks;
  for (size_t i = 0; i < all.size(); ++i) {
    Sequence sequence = *all[i];
    if (i < running && keeps) {
      blocks.insert(sequence.blocks.begin(), sequence.blocks.end());
      out.adopted.running.push_back(std::move(sequence));
      continue;
    }
    // Its KV is lost, at least in part, but all its tokens are here: it is computed again.
    sequence.computed = 0;
    sequence.blocks.clear();
    out.adopted.waiting.push_back(std::move(sequence));
  }
  if (keeps) out.adopted.idle = scheduler_.IdleChains();
  for (const Chain& chain : out.adopted.idle) {
    blocks.insert(chain.blocks.begin(), chain.blocks.end());
  }
  Result<PageStore> pages = PageStore(pages_.total());
  if (keeps) pages = pages_.OnlyOf(epoch_->rank, blocks, epoch.rank);
  if (!pages.ok()) return pages.status();
  out.pages = std::move(*pages);
  out.next_block = scheduler_.next_block();
  spdlog::info("repaired epoch={} requests_with_kv={} requests={}", epoch.number(),
               out.adopted.running.size(), all.size());
  return out;
}

Status Reference::Enter(const Epoch& epoch, Entry entry) {
  std::optional<Held> held;  // nullopt: the state does not change
  switch (entry) {
    case Entry::kEmpty:
      held.emplace(Held{PageStore(pages_.total()), {}, 0});
      break;
    case Entry::kKept:
      break;
    case Entry::kCarried:
      held = std::move(transition_->brought);
      break;
    case Entry::kRepaired: {
      Result<Held> repaired = Repaired(epoch);
      if (!repaired.ok()) return repaired.status();
      held = std::move(*repaired);
    }
  }
  transition_.reset();
  Result<PacedLayout> paced =
      PaceFor(*epoch.maps, true);  // a rejection was possible only in prepare
  if (!paced.ok()) return paced.status();
  Result<dispatch::Routes> routes = dispatch::Routes::Of(*epoch.maps, world_->model());
  if (!routes.ok()) return routes.status();
  TANGRAM_RETURN_IF_ERROR(BindModel());
  experts_.Enter(std::make_shared<const dispatch::Routes>(std::move(*routes)));
  paced_.layout = std::move(*paced);
  paced_.imbalance = 1;
  paced_.ended = Paced::Ended::kUnpaced;
  meter_.Enter(epoch.number());
  epoch_ = &epoch;
  held_ = HeldMap(epoch.side.groups, shape_, epoch.maps->world_size);
  Unstage();
  if (held) TANGRAM_RETURN_IF_ERROR(Replace(std::move(held->pages)));
  kv_->Forget();
  pieces_.Forget();
  TANGRAM_RETURN_IF_ERROR(pages_.Audit());
  scheduler_.SetLayout(&held_, epoch.rank);
  if (held) {
    scheduler_.Replace(std::move(held->adopted.running), std::move(held->adopted.waiting),
                       held->next_block, held->adopted.idle);
  }
  return OkStatus();
}

void Reference::Leave() {
  epoch_ = nullptr;
  transition_.reset();
  model_.reset();  // frees the dense weights; a later join loads them again
  dense_.Forget();
  pieces_.Forget();
  experts_.Enter(nullptr);
  kv_->Forget();
  Unstage();
  (void)Replace(PageStore(pages_.total()));  // all pages are free, so TakeOver cannot fail
  scheduler_.SetLayout(nullptr, 0);
  scheduler_.Replace({}, {}, 0);
}

}  // namespace tangram::engine
