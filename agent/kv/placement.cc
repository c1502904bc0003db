#include "agent/kv/placement.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <unordered_map>

#include "agent/kv/live_blocks.h"
#include "agent/kv/validate.h"

namespace tangram::kv {
namespace {

constexpr uint32_t kNobody = UINT32_MAX;

// The room of the world while requests are placed one after another.
class Room {
 public:
  Room(const Input& in, const std::vector<Span>& spans, const LiveBlocks& live)
      : in_(in),
        spans_(spans),
        live_(live),
        total_(in.new_ranks),
        free_(in.new_ranks),
        old_of_new_(OldOfNew(in)),
        used_(in.new_ranks),
        incoming_(in.new_ranks),
        home_blocks_(in.new_ranks),
        needs_(in.new_ranks),
        first_(live.size(), kNobody) {
    for (uint32_t r = 0; r < in.new_ranks; ++r) {
      const int32_t old = old_of_new_[r];
      if (old >= 0) {
        total_[r] = in.ranks[old].total_pages;
        free_[r] = in.ranks[old].free_pages;
      } else if (!in.joined_pages.empty()) {
        total_[r] = free_[r] = in.joined_pages[r];
      }
    }
    for (uint32_t home = 0; home < in.new_ranks; ++home) {
      const bool in_every_layer = std::all_of(
          spans.begin(), spans.end(), [&](const Span& span) { return span.after.InGroup(home); });
      if (!in_every_layer) continue;
      homes_.push_back(home);
      needs_[home] = NeedsOf(home);
    }
  }

  const std::vector<uint32_t>& homes() const { return homes_; }
  bool IsHome(int32_t rank) const {
    return rank >= 0 &&
           std::binary_search(homes_.begin(), homes_.end(), static_cast<uint32_t>(rank));
  }

  // Homes, least loaded first: by the fullest rank that the home's requests use, then by the
  // home's own blocks.
  std::vector<uint32_t> ByLoad() const {
    std::vector<std::tuple<double, uint64_t, uint32_t>> loads;
    for (const uint32_t home : homes_) {
      double fullest = 0;
      for (const Need& n : needs_[home]) {
        fullest =
            std::max(fullest, static_cast<double>(used_[n.rank]) / std::max(total_[n.rank], 1U));
      }
      loads.emplace_back(fullest, home_blocks_[home], home);
    }
    std::sort(loads.begin(), loads.end());
    std::vector<uint32_t> out;
    for (const auto& load : loads) out.push_back(std::get<2>(load));
    return out;
  }

  // Places the request at the home; false: not possible, `why` has the reason, and no state
  // changes.
  bool Take(size_t request, uint32_t home, std::string* why) {
    const Request& q = in_.requests[request];
    uint64_t fresh = 0;
    std::vector<uint32_t> contested;  // of those, blocks that another new home needs as well
    for (const uint32_t block : live_.Of(request)) {
      if (first_[block] == home) continue;
      if (first_[block] != kNobody) {
        if (Takes(block, home)) continue;
        contested.push_back(block);
      }
      ++fresh;
    }
    const uint64_t future = BlocksOf(q.reserved, in_.shape.block_tokens) - live_.Of(request).size();
    const std::vector<Need>& needs = needs_[home];
    const std::vector<uint64_t>& overlaps = OverlapsOf(q.home, home);
    std::vector<uint64_t> incoming(needs.size());
    for (size_t i = 0; i < needs.size(); ++i) {
      const Need& n = needs[i];
      const uint64_t taken = std::count_if(contested.begin(), contested.end(), [&](uint32_t block) {
        return TakenOver(block, n.rank);
      });
      incoming[i] = fresh * n.pages - (fresh - taken) * overlaps[i];
      const uint64_t used = used_[n.rank] + (fresh + future) * n.pages;
      const uint64_t arriving = incoming_[n.rank] + incoming[i];
      if (used <= total_[n.rank] && arriving <= free_[n.rank]) continue;
      *why = fmt::format(
          "at home {} rank {} would have {} of {} KV pages reserved, and {} arriving "
          "with {} free",
          home, n.rank, used, total_[n.rank], arriving, free_[n.rank]);
      return false;
    }
    for (size_t i = 0; i < needs.size(); ++i) {
      used_[needs[i].rank] += (fresh + future) * needs[i].pages;
      incoming_[needs[i].rank] += incoming[i];
    }
    for (const uint32_t block : live_.Of(request)) {
      if (first_[block] == kNobody) first_[block] = home;
    }
    for (const uint32_t block : contested) {
      std::vector<uint32_t>& homes = shared_[block];
      if (homes.empty()) homes.push_back(first_[block]);
      homes.push_back(home);
    }
    home_blocks_[home] += fresh + future;
    return true;
  }

  // Homes to which an old home's requests may change for no more pages than staying costs, because
  // their ranks shared all layers of these requests. Ascending, including itself. Empty: it does
  // not stay, or staying costs no pages.
  const std::vector<uint32_t>& Peers(uint32_t old_home) {
    const auto [it, added] = peers_.try_emplace(old_home);
    const int32_t stay = in_.new_of_old[old_home];
    if (!added || !IsHome(stay)) return it->second;
    const uint64_t stays = PagesToBring(old_home, static_cast<uint32_t>(stay));
    if (stays == 0) return it->second;
    std::copy_if(homes_.begin(), homes_.end(), std::back_inserter(it->second), [&](uint32_t home) {
      const int32_t old = old_of_new_[home];
      return old >= 0 && PagesToBring(old_home, home) <= stays &&
             std::all_of(spans_.begin(), spans_.end(), [&](const Span& span) {
               return span.before.Shared(old_home, static_cast<uint32_t>(old));
             });
    });
    return it->second;
  }

  // Blocks of the fullest home divided by the mean.
  double Lopsided() const {
    uint64_t most = 0, sum = 0;
    for (const uint32_t home : homes_) {
      most = std::max(most, home_blocks_[home]);
      sum += home_blocks_[home];
    }
    return sum == 0 ? 1 : static_cast<double>(most * homes_.size()) / static_cast<double>(sum);
  }

  // As Plan::shared.
  auto Shared() const {
    std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> out;
    for (const auto& [block, homes] : shared_) {
      out.emplace(std::pair(live_.home(block), live_.block(block)), homes);
    }
    return out;
  }

 private:
  // Pages that one block of the home takes on a rank.
  struct Need {
    uint32_t rank = 0;
    uint64_t pages = 0;
  };

  // The needs of a home, ascending by rank.
  std::vector<Need> NeedsOf(uint32_t home) const {
    std::vector<uint32_t> ranks;
    for (const Span& span : spans_) {
      const auto with = span.after.With(home);
      ranks.insert(ranks.end(), with.begin(), with.end());
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    std::vector<Need> out;
    for (const uint32_t r : ranks) {
      if (const uint64_t pages = PagesAfter(spans_, home, r); pages > 0) out.push_back({r, pages});
    }
    return out;
  }

  // Overlaps for each of the home's needs.
  const std::vector<uint64_t>& OverlapsOf(uint32_t old_home, uint32_t home) {
    auto [it, added] = overlaps_.try_emplace({old_home, home});
    if (added) {
      for (const Need& n : needs_[home]) {
        it->second.push_back(Overlap(spans_, old_home, old_of_new_[n.rank], home, n.rank));
      }
    }
    return it->second;
  }

  // Pages to fetch for one block.
  uint64_t PagesToBring(uint32_t old_home, uint32_t home) {
    const std::vector<uint64_t>& here = OverlapsOf(old_home, home);
    uint64_t pages = 0;
    for (size_t i = 0; i < here.size(); ++i) pages += needs_[home][i].pages - here[i];
    return pages;
  }

  // Whether this home has taken a block that several homes may need.
  bool Takes(uint32_t block, uint32_t home) const {
    const auto it = shared_.find(block);
    return it != shared_.end() &&
           std::find(it->second.begin(), it->second.end(), home) != it->second.end();
  }

  // Whether a home that took the block earlier keeps its pages on the rank.
  bool TakenOver(uint32_t block, uint32_t rank) const {
    const auto keeps = [&](uint32_t home) {
      return Overlap(spans_, live_.home(block), old_of_new_[rank], home, rank) > 0;
    };
    const auto it = shared_.find(block);
    if (it == shared_.end()) return keeps(first_[block]);
    return std::any_of(it->second.begin(), it->second.end(), keeps);
  }

  const Input& in_;
  const std::vector<Span>& spans_;
  const LiveBlocks& live_;
  std::vector<uint32_t> total_, free_;
  std::vector<int32_t> old_of_new_;
  std::vector<uint64_t> used_, incoming_, home_blocks_;
  std::vector<std::vector<Need>> needs_;  // [home]
  std::vector<uint32_t> homes_;
  std::map<uint32_t, std::vector<uint32_t>> peers_;  // by old home
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint64_t>> overlaps_;
  std::vector<uint32_t> first_;                                 // [live block]: its first taker
  std::unordered_map<uint32_t, std::vector<uint32_t>> shared_;  // by live block: all its takers
};

// The blocks of one new home.
class Names {
 public:
  // `filled`: (live block, tokens), in any order, a block once for each request with it.
  Names(const Input& in, const LiveBlocks& live, uint32_t home,
        std::vector<std::pair<uint32_t, uint32_t>> filled) {
    std::sort(filled.begin(), filled.end());
    for (const auto& [number, tokens] : filled) {
      if (numbers_.empty() || numbers_.back() != number) {
        numbers_.push_back(number);
        blocks_.push_back({0, live.home(number), live.block(number), 0});
      }
      blocks_.back().tokens = std::max(blocks_.back().tokens, tokens);
    }
    // A block of a home that stays keeps its name; the others get the lowest free ones.
    std::vector<uint32_t> taken;
    const auto stays = [&](const PlacedBlock& block) {
      return in.new_of_old[block.old_home] == static_cast<int32_t>(home);
    };
    for (PlacedBlock& block : blocks_) {
      if (stays(block)) taken.push_back(block.block = block.old_block);
    }
    uint32_t next = 0;
    auto used = taken.begin();  // ascending, as the live blocks of one old home are
    for (PlacedBlock& block : blocks_) {
      if (stays(block)) continue;
      for (; used != taken.end() && *used == next; ++used) ++next;
      block.block = next++;
    }
  }

  // The name of a live block of this home; fast for ascending numbers.
  uint32_t Of(uint32_t number) {
    if (next_ == numbers_.size() || numbers_[next_] != number) {
      next_ = std::lower_bound(numbers_.begin(), numbers_.end(), number) - numbers_.begin();
    }
    return blocks_[next_++].block;
  }

  std::vector<PlacedBlock> Blocks() const {
    std::vector<PlacedBlock> out = blocks_;
    std::sort(out.begin(), out.end(),
              [](const PlacedBlock& a, const PlacedBlock& b) { return a.block < b.block; });
    return out;
  }

 private:
  std::vector<uint32_t> numbers_;    // live blocks, ascending
  std::vector<PlacedBlock> blocks_;  // in the same order
  size_t next_ = 0;
};

Plan NameBlocks(const Input& in, const LiveBlocks& live, const std::vector<uint32_t>& homes) {
  const uint32_t bt = in.shape.block_tokens;
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> filled(in.new_ranks);
  for (size_t i = 0; i < in.requests.size(); ++i) {
    uint32_t left = in.requests[i].length;
    for (const uint32_t number : live.Of(i)) {
      filled[homes[i]].emplace_back(number, std::min(bt, left));
      left -= std::min(bt, left);
    }
  }
  Plan out;
  std::vector<Names> names;
  for (uint32_t home = 0; home < in.new_ranks; ++home) {
    names.emplace_back(in, live, home, std::move(filled[home]));
    out.blocks.push_back(names.back().Blocks());
    out.next_block.push_back(out.blocks[home].empty() ? 0 : out.blocks[home].back().block + 1);
  }
  for (size_t i = 0; i < in.requests.size(); ++i) {
    const Request& q = in.requests[i];
    Placement& p = out.requests.emplace_back(Placement{q.id, homes[i], {}});
    p.blocks.reserve(live.Of(i).size());
    for (const uint32_t number : live.Of(i)) p.blocks.push_back(names[homes[i]].Of(number));
    out.requests_moved += !q.idle && in.new_of_old[q.home] != static_cast<int32_t>(homes[i]);
  }
  return out;
}

}  // namespace

uint64_t Overlap(const std::vector<Span>& spans, uint32_t old_home, int32_t old_rank, uint32_t home,
                 uint32_t rank) {
  if (old_rank < 0) return 0;
  uint64_t pages = 0;
  for (const Span& span : spans) {
    const Heads had = span.before.Of(old_home, static_cast<uint32_t>(old_rank));
    const Heads has = span.after.Of(home, rank);
    const uint32_t first = std::max(had.first, has.first), end = std::min(had.second, has.second);
    if (first < end) pages += uint64_t{end - first} * span.layers;
  }
  return pages;
}

std::vector<int32_t> OldOfNew(const Input& in) {
  std::vector<int32_t> out(in.new_ranks, -1);
  for (size_t old = 0; old < in.new_of_old.size(); ++old) {
    if (in.new_of_old[old] >= 0) out[in.new_of_old[old]] = static_cast<int32_t>(old);
  }
  return out;
}

namespace {

// Requests in the order of placement: longest first, then those that no client waits for.
struct Order {
  explicit Order(const Input& in) : all(in.requests.size()) {
    std::iota(all.begin(), all.end(), size_t{0});
    const auto idle = std::stable_partition(all.begin(), all.end(),
                                            [&](size_t i) { return !in.requests[i].idle; });
    std::sort(all.begin(), idle, [&](size_t a, size_t b) {
      const Request &x = in.requests[a], &y = in.requests[b];
      return x.length != y.length ? x.length > y.length : x.id < y.id;
    });
    running = static_cast<size_t>(idle - all.begin());
  }
  std::span<const size_t> Running() const { return std::span(all).first(running); }
  std::span<const size_t> Idle() const { return std::span(all).subspan(running); }

  std::vector<size_t> all;
  size_t running = 0;
};

// Places requests, one after another.
class Placing {
 public:
  Placing(const Input& in, const std::vector<Span>& spans, const LiveBlocks& live)
      : in_(in), room_(in, spans, live), homes_(in.requests.size()) {}

  // `anew`: requests with several equally good homes go to the least loaded one. Blocks that such
  // requests share with others are then copied for each home.
  Status Place(std::span<const size_t> some, bool anew) {
    const auto free = [&](size_t i) {
      return anew && room_.Peers(in_.requests[i].home).size() > 1;
    };
    std::vector<size_t> homeless;
    for (const size_t i : some) {
      const int32_t stay = in_.new_of_old[in_.requests[i].home];
      if (!free(i) && TakeAt(i, stay)) continue;
      // An idle prefix is dropped; otherwise ranks would have to list all layers.
      if (in_.only_changed && in_.requests[i].idle) return {Code::kNoMemory, why_};
      homeless.push_back(i);
    }
    std::erase_if(homeless, [&](size_t i) { return TakeAt(i, in_.requests[i].promised); });
    for (const size_t i : homeless) {
      const Request& q = in_.requests[i];
      std::vector<uint32_t> candidates = room_.ByLoad();
      if (free(i)) {
        const std::vector<uint32_t>& peers = room_.Peers(q.home);
        std::erase_if(candidates, [&](uint32_t home) {
          return !std::binary_search(peers.begin(), peers.end(), home);
        });
      }
      const bool taken = std::any_of(candidates.begin(), candidates.end(), [&](uint32_t home) {
        return TakeAt(i, static_cast<int32_t>(home));
      });
      if (taken) continue;
      return {Code::kNoMemory,
              fmt::format("KV of request {} ({} tokens, {} reserved) fits on none of {} homes: "
                          "{}; let requests finish, or keep more KV pages free",
                          q.id, q.length, q.reserved, candidates.size(), why_)};
    }
    return OkStatus();
  }

  double Lopsided() const { return room_.Lopsided(); }
  const std::vector<uint32_t>& homes() const { return homes_; }
  auto Shared() const { return room_.Shared(); }

 private:
  bool TakeAt(size_t request, int32_t home) {
    if (!room_.IsHome(home)) return false;
    homes_[request] = static_cast<uint32_t>(home);
    return room_.Take(request, static_cast<uint32_t>(home), &why_);
  }

  const Input& in_;
  Room room_;
  std::vector<uint32_t> homes_;
  std::string why_ = "no rank is in an attention group of every layer";
};

}  // namespace

Result<Plan> PlaceRequests(const Input& in, const std::vector<Span>& spans) {
  const LiveBlocks live(in);
  const Order order(in);
  std::optional<Placing> placing(std::in_place, in, spans, live);
  TANGRAM_RETURN_IF_ERROR(placing->Place(order.Running(), false));
  if (placing->Lopsided() > kLopsided) {
    Placing anew(in, spans, live);
    if (anew.Place(order.Running(), true).ok() && anew.Lopsided() < placing->Lopsided()) {
      placing.emplace(std::move(anew));
    }
  }
  const double lopsided = placing->Lopsided();
  TANGRAM_RETURN_IF_ERROR(placing->Place(order.Idle(), false));
  for (size_t i = 0; in.only_changed && i < in.requests.size(); ++i) {
    if (live.Of(i).empty() || placing->homes()[i] == in.requests[i].home) continue;
    return Status{Code::kNotHeld, fmt::format("request {} cannot stay at home {}, and only layers "
                                              "that change are listed",
                                              in.requests[i].id, in.requests[i].home)};
  }
  Plan out = NameBlocks(in, live, placing->homes());
  out.shared = placing->Shared();
  out.lopsided = lopsided;
  return out;
}

}  // namespace tangram::kv
