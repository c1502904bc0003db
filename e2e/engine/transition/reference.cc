// What the reference engine carries through a flip, and what a repair leaves of it.
#include "e2e/engine/step/reference.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>

#include "agent/engine/world/groups.h"

namespace tangram::engine {
namespace {

// Is all KV of a request of home `rank` on that rank?
bool HomeOnly(const std::vector<kv::LayerGroups>& groups, uint32_t rank) {
  return std::all_of(groups.begin(), groups.end(), [&](const kv::LayerGroups& layer) {
    return std::any_of(layer.begin(), layer.end(), [&](const kv::Group& group) {
      return group.ranks.size() == 1 && group.ranks[0] == rank;
    });
  });
}

}  // namespace

Bytes Reference::Manifest() { return EncodeManifest(scheduler_, pages_); }

Status Reference::Plan(const Side& from, const Side& to, const std::vector<Bytes>& manifests,
                       uint64_t* moved) {
  Transition next;
  for (const Bytes& bytes : manifests) {
    Result<RankManifest> manifest = DecodeManifest(bytes);
    if (!manifest.ok()) return manifest.status();
    next.manifests.push_back(std::move(*manifest));
  }
  Result<Carrying> carrying = PlanCarry(shape_, from, to, &next.manifests);
  if (!carrying.ok()) return carrying.status();
  next.carrying = std::move(*carrying);
  next.to = to;
  *moved = next.carrying.plan.requests_moved;
  transition_ = std::move(next);
  return OkStatus();
}

// This rank's part, carried out beside what is in force.
Result<uint64_t> Reference::Bring(uint32_t rank, Between& between) {
  Transition& t = *transition_;
  const Result<kv::RankPlan> part = PartOf(t.carrying, rank);
  if (!part.ok()) return part.status();
  const HeldMap held(t.to.groups, shape_, static_cast<uint32_t>(t.to.members.size()));
  std::vector<kv::PageCopy> copies;
  Result<PageStore> pages = pages_.After(*part, held, rank, &copies);
  if (!pages.ok()) return pages.status();
  const model::KvRow row = config_->kv_row();
  std::vector<kv::Format> sources;
  for (const kv::RankState& old : t.carrying.input.ranks) {
    sources.push_back(PoolOf(shape_, row, old.total_pages));
  }
  const Result<uint64_t> bytes =
      PullPages(*world_, *kv_, sources, PoolOf(shape_, row, pages->total()), epoch_->rank, copies,
                [&] { between.Lives(); });
  if (!bytes.ok()) return bytes.status();
  t.brought.emplace(Held{std::move(*pages), AdoptOf(t.carrying.plan, std::move(t.manifests), rank),
                         t.carrying.plan.next_block[rank]});
  return *bytes;
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
    // Its KV is lost, in part at least, but its tokens are all here: it is computed again.
    sequence.computed = 0;
    sequence.blocks.clear();
    out.adopted.waiting.push_back(std::move(sequence));
  }
  Result<PageStore> pages = PageStore(pages_.total());
  if (keeps) pages = pages_.OnlyOf(epoch_->rank, blocks, epoch.rank);
  if (!pages.ok()) return pages.status();
  out.pages = std::move(*pages);
  out.next_block = scheduler_.next_block();
  spdlog::info("epoch {}: repaired; {} of {} requests keep their KV", epoch.number(),
               out.adopted.running.size(), all.size());
  return out;
}

Status Reference::Enter(const Epoch& epoch, Entry entry) {
  std::optional<Held> held;  // nothing: all stays as it is
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
      PaceFor(*epoch.maps, true);  // what may be refused was, when it was prepared
  if (!paced.ok()) return paced.status();
  Result<Routes> routes = Routes::Of(*epoch.maps, world_->model());
  if (!routes.ok()) return routes.status();
  TANGRAM_RETURN_IF_ERROR(BindModel());
  experts_.Enter(std::make_shared<const Routes>(std::move(*routes)));
  paced_.layout = std::move(*paced);
  paced_.imbalance = 1;
  paced_.ended = Paced::Ended::kUnpaced;
  meter_.Enter(epoch.number());
  epoch_ = &epoch;
  held_ = HeldMap(epoch.side.groups, shape_, epoch.maps->world_size);
  if (held) pages_ = std::move(held->pages);
  kv_->Forget();
  pieces_.Forget();
  TANGRAM_RETURN_IF_ERROR(pages_.Audit());
  scheduler_.SetLayout(&held_, epoch.rank);
  if (held) {
    scheduler_.Replace(std::move(held->adopted.running), std::move(held->adopted.waiting),
                       held->next_block);
  }
  return OkStatus();
}

void Reference::Leave() {
  epoch_ = nullptr;
  transition_.reset();
  model_.reset();  // the dense weights go; a later join brings them again
  dense_.Forget();
  pieces_.Forget();
  experts_.Enter(nullptr);
  kv_->Forget();
  pages_ = PageStore(pages_.total());
  scheduler_.SetLayout(nullptr, 0);
  scheduler_.Replace({}, {}, 0);
}

}  // namespace tangram::engine
