#include "agent/kv/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>

#include "agent/kv/placement.h"
#include "agent/kv/validate.h"

namespace tangram::kv {
namespace {

// The strips of one old rank. Lookups come in an order near to theirs.
class HeldStrips {
 public:
  explicit HeldStrips(const std::vector<Strip>& strips) : strips_(strips) {}

  // All strips of the block; empty: the rank does not have it.
  std::span<const Strip> Find(uint32_t home, uint32_t block) {
    const auto is = [&](size_t i) {
      return i < strips_.size() && strips_[i].home == home && strips_[i].block == block;
    };
    if (begin_ < end_ && is(begin_)) return std::span(strips_).subspan(begin_, end_ - begin_);
    begin_ = end_;
    if (!is(begin_)) {
      const auto before = [](const Strip& strip, std::pair<uint32_t, uint32_t> name) {
        return std::pair(strip.home, strip.block) < name;
      };
      begin_ = std::lower_bound(strips_.begin(), strips_.end(), std::pair(home, block), before) -
               strips_.begin();
    }
    end_ = begin_;
    while (is(end_)) ++end_;
    return std::span(strips_).subspan(begin_, end_ - begin_);
  }

 private:
  const std::vector<Strip>& strips_;
  size_t begin_ = 0, end_ = 0;  // of the last lookup
};

// The part of one rank.
class Part {
 public:
  Part(const Input& in, const Plan& plan, const std::vector<Span>& spans, uint32_t rank)
      : in_(in), plan_(plan), spans_(spans), rank_(rank), self_(OldOfNew(in)[rank]) {
    for (const RankState& state : in.ranks) held_.emplace_back(state.strips);
  }

  Result<RankPlan> Run() {
    for (uint32_t home = 0; home < in_.new_ranks; ++home) {
      const std::vector<Lane> lanes = LanesOf(home);
      if (lanes.empty()) continue;
      for (size_t i = 0; i < plan_.blocks[home].size(); ++i) {
        const PlacedBlock& block = plan_.blocks[home][i];
        const bool owner = Owns(home, block);
        for (const Lane& lane : lanes) {
          TANGRAM_RETURN_IF_ERROR(Provide(home, block, i, lane, owner));
        }
      }
    }
    if (self_ >= 0) Free();
    return std::move(out_);
  }

 private:
  // A KV head that the rank needs for a home, in a run of layers.
  struct Lane {
    uint32_t head = 0;
    const Span* span = nullptr;
  };
  // Layers of one of my strips (by index) that stay.
  struct Stays {
    size_t strip = 0;
    uint32_t layer = 0, layers = 0;
    auto operator<=>(const Stays&) const = default;
  };

  // By head, then by layer.
  std::vector<Lane> LanesOf(uint32_t home) const {
    std::vector<Lane> out;
    for (uint32_t head = 0; head < in_.shape.kv_heads; ++head) {
      for (const Span& span : spans_) {
        if (span.listed && Has(span.after.Of(home, rank_), head)) out.push_back({head, &span});
      }
    }
    return out;
  }

  // Whether the home takes over this rank's pages of the block.
  bool Owns(uint32_t home, const PlacedBlock& block) const {
    if (self_ < 0) return false;
    const auto shared = plan_.shared.find({block.old_home, block.old_block});
    if (shared == plan_.shared.end()) return true;
    for (const uint32_t other : shared->second) {
      if (Overlap(spans_, block.old_home, self_, other, rank_) > 0) return other == home;
    }
    return false;
  }

  // Keeps or moves one lane of a block. `turn` counts the home's blocks.
  Status Provide(uint32_t home, const PlacedBlock& block, size_t turn, const Lane& lane,
                 bool owner) {
    const Span& span = *lane.span;
    const bool own =
        self_ >= 0 && Has(span.before.Of(block.old_home, static_cast<uint32_t>(self_)), lane.head);
    auto source = static_cast<uint32_t>(self_);
    if (!own) {
      // Ranks that need the same replicated head begin at different replicas.
      const auto holders = span.before.Holders(block.old_home, lane.head);
      source = holders[(turn + rank_) % holders.size()];
    }
    uint32_t layer = span.layer;
    for (const Strip& strip : held_[source].Find(block.old_home, block.old_block)) {
      if (strip.kv_head != lane.head || strip.layer + strip.layers <= layer) continue;
      if (strip.layer > layer || layer == span.end()) break;
      const uint32_t layers = std::min(strip.layer + strip.layers, span.end()) - layer;
      const uint32_t page = strip.page + (layer - strip.layer) * strip.stride;
      if (own && owner) {
        out_.kept.push_back(
            {home, block.block, lane.head, layer, layers, page, strip.stride, block.tokens});
        const auto index = static_cast<size_t>(&strip - in_.ranks[source].strips.data());
        stays_.push_back({index, layer, layers});
      } else {
        out_.moves.push_back({home, block.block, lane.head, layer, layers, source, page,
                              strip.stride, block.tokens});
        const uint64_t bytes = uint64_t{block.tokens} * in_.shape.head_token_bytes * layers;
        out_.moved_bytes += bytes;
        if (own) out_.local_bytes += bytes;
      }
      layer += layers;
    }
    if (layer == span.end()) return OkStatus();
    return {Code::kInvalid,
            fmt::format("KV manifest: rank {} has no page of KV head {} of layer {} of block {} of "
                        "home {}, which rank {} needs of it",
                        source, lane.head, layer, block.old_block, block.old_home, rank_)};
  }

  // Frees my strips that do not stay.
  void Free() {
    const std::vector<Strip>& mine = in_.ranks[static_cast<size_t>(self_)].strips;
    std::sort(stays_.begin(), stays_.end());
    auto next = stays_.begin();
    for (size_t i = 0; i < mine.size(); ++i) {
      const Strip& strip = mine[i];
      uint32_t layer = strip.layer;
      const auto free_to = [&](uint32_t end) {
        if (layer == end) return;
        Strip& freed = out_.freed.emplace_back(strip);
        freed.page += (layer - strip.layer) * strip.stride;
        freed.layer = layer;
        freed.layers = end - layer;
      };
      for (; next != stays_.end() && next->strip == i; ++next) {
        free_to(next->layer);
        layer = next->layer + next->layers;
      }
      free_to(strip.layer + strip.layers);
    }
  }

  const Input& in_;
  const Plan& plan_;
  const std::vector<Span>& spans_;
  const uint32_t rank_;
  const int32_t self_;  // old number; -1: it joins
  std::vector<HeldStrips> held_;
  std::vector<Stays> stays_;
  RankPlan out_;
};

}  // namespace

Result<Plan> MakePlan(const Input& input) {
  std::vector<Span> spans;
  TANGRAM_RETURN_IF_ERROR(Validate(input, &spans));
  return PlaceRequests(input, spans);
}

Result<RankPlan> MakePart(const Input& input, const Plan& plan, uint32_t rank) {
  const int32_t self = OldOfNew(input)[rank];
  if (self >= 0) TANGRAM_RETURN_IF_ERROR(ValidatePages(input, static_cast<uint32_t>(self)));
  const std::vector<Span> spans = SpansOf(input);
  return Part(input, plan, spans, rank).Run();
}

}  // namespace tangram::kv
