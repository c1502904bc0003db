#include "agent/kv/validate.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_set>

namespace tangram::kv {
namespace {

Status Bad(const std::string& message) { return Status(Code::kInvalid, "KV manifest: " + message); }

// The last possible number of a block stays unused: `next_block` is above every block's.
constexpr uint32_t kNoBlock = UINT32_MAX;
Status ListsNoBlock(const std::string& who) {
  return Bad(fmt::format("{} lists a block {}, the last number there is", who, kNoBlock));
}

Status ValidateGroups(const Shape& shape, const std::vector<LayerGroups>& layers, uint32_t ranks,
                      const char* side) {
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (layer > 0 && layers[layer] == layers[layer - 1]) continue;
    std::set<uint32_t> seen;
    for (const Group& g : layers[layer]) {
      const auto& bounds = g.query_head_bounds;
      if (bounds.size() != g.ranks.size() + 1 || bounds.front() != 0 ||
          bounds.back() != shape.query_heads || !std::is_sorted(bounds.begin(), bounds.end())) {
        return Bad(
            fmt::format("{} layer {}: a group of {} ranks has {} bounds that do not cut {} "
                        "query heads in order",
                        side, layer, g.ranks.size(), bounds.size(), shape.query_heads));
      }
      for (uint32_t r : g.ranks) {
        if (r >= ranks || !seen.insert(r).second) {
          return Bad(fmt::format("{} layer {}: rank {} of {} is out of range or in two groups",
                                 side, layer, r, ranks));
        }
      }
    }
  }
  return OkStatus();
}

// The strips of one rank, in order. Each follows the previous one and is within the rank's pages
// and heads. Together they are exactly those that its groups need.
class StripsOfRank {
 public:
  StripsOfRank(const Input& in, const std::vector<Span>& spans, uint32_t rank)
      : in_(in), spans_(spans), rank_(rank) {}

  Status Run() {
    const RankState& state = in_.ranks[rank_];
    for (const Strip& strip : state.strips) {
      TANGRAM_RETURN_IF_ERROR(Order(strip));
      TANGRAM_RETURN_IF_ERROR(Place(strip));
      covered_ += strip.layers;
      pages_ += strip.layers;
      last_ = &strip;
    }
    TANGRAM_RETURN_IF_ERROR(Complete());
    if (pages_ + state.free_pages > state.total_pages) {
      return Bad(fmt::format("rank {}: {} pages in blocks and {} free are more than its {}", rank_,
                             pages_, state.free_pages, state.total_pages));
    }
    return OkStatus();
  }

 private:
  Status Order(const Strip& s) {
    const bool same = last_ != nullptr && last_->home == s.home && last_->block == s.block;
    if (same) {
      const bool after = s.kv_head > last_->kv_head ||
                         (s.kv_head == last_->kv_head && s.layer >= last_->layer + last_->layers);
      if (after) return OkStatus();
      return Bad(
          fmt::format("rank {} lists KV head {} of layer {} of block {} of home {} twice or "
                      "out of order",
                      rank_, s.kv_head, s.layer, s.block, s.home));
    }
    TANGRAM_RETURN_IF_ERROR(Complete());
    if (s.block == kNoBlock) return ListsNoBlock(fmt::format("rank {}", rank_));
    const bool after = last_ == nullptr || s.home > last_->home ||
                       (s.home == last_->home && s.block > last_->block);
    if (s.home >= in_.ranks.size() || !after) {
      return Bad(
          fmt::format("rank {} lists block {} of home {} twice or out of order, or there is "
                      "no such home",
                      rank_, s.block, s.home));
    }
    if (last_ == nullptr || s.home != last_->home) want_ = PagesBefore(spans_, s.home, rank_);
    covered_ = 0;
    return OkStatus();
  }

  // Checks the block that ends with the last strip.
  Status Complete() const {
    if (last_ == nullptr || covered_ == want_) return OkStatus();
    return Bad(fmt::format("rank {} has {} pages of block {} of home {}, its groups ask for {}",
                           rank_, covered_, last_->block, last_->home, want_));
  }

  Status Place(const Strip& s) const {
    const uint64_t end = uint64_t{s.layer} + s.layers;
    if (s.layers == 0 || end > in_.old_groups.size() || (s.layers > 1 && s.stride == 0)) {
      return Bad(
          fmt::format("rank {}, block {} of home {}: a strip of {} layers from {} of {}, "
                      "{} pages apart",
                      rank_, s.block, s.home, s.layers, s.layer, in_.old_groups.size(), s.stride));
    }
    const uint64_t last_page = s.page + uint64_t{s.layers - 1} * s.stride;
    if (last_page >= in_.ranks[rank_].total_pages) {
      return Bad(fmt::format("rank {}: page {} of {} is out of range", rank_, last_page,
                             in_.ranks[rank_].total_pages));
    }
    for (const Span& span : spans_) {
      if (span.end() <= s.layer || span.layer >= end) continue;
      if (!span.listed) {
        return Bad(
            fmt::format("rank {} lists layer {} of block {} of home {}, which does not change",
                        rank_, std::max(span.layer, s.layer), s.block, s.home));
      }
      if (Has(span.before.Of(s.home, rank_), s.kv_head)) continue;
      return Bad(
          fmt::format("rank {} lists KV head {} of layer {} of block {} of home {}, which "
                      "its groups do not give it",
                      rank_, s.kv_head, std::max(span.layer, s.layer), s.block, s.home));
    }
    return OkStatus();
  }

  const Input& in_;
  const std::vector<Span>& spans_;
  const uint32_t rank_;
  const Strip* last_ = nullptr;
  uint64_t covered_ = 0, want_ = 0, pages_ = 0;
};

bool Repeats(std::vector<uint32_t> blocks) {
  std::sort(blocks.begin(), blocks.end());
  return std::adjacent_find(blocks.begin(), blocks.end()) != blocks.end();
}

Status ValidateRequests(const Input& in, const std::vector<Span>& spans) {
  std::unordered_set<std::string_view> ids;
  for (const Request& q : in.requests) {
    const uint32_t filled = BlocksOf(q.length, in.shape.block_tokens);
    if (!ids.insert(q.id).second) return Bad(fmt::format("request {} comes twice", q.id));
    if (q.home >= in.ranks.size() || q.length > q.reserved || q.blocks.size() < filled) {
      return Bad(fmt::format("request {}: home {} of {} ranks, length {}, reserved {}, {} blocks",
                             q.id, q.home, in.ranks.size(), q.length, q.reserved, q.blocks.size()));
    }
    if (Repeats(q.blocks)) return Bad(fmt::format("request {} lists a block twice", q.id));
    if (std::find(q.blocks.begin(), q.blocks.end(), kNoBlock) != q.blocks.end()) {
      return ListsNoBlock("request " + q.id);
    }
    if (filled == 0) continue;
    for (const Span& span : spans) {
      if (span.before.InGroup(q.home)) continue;
      return Bad(fmt::format("request {}: home {} is in no attention group of layer {}", q.id,
                             q.home, span.layer));
    }
  }
  return OkStatus();
}

}  // namespace

Status ValidatePages(const Input& in, uint32_t rank) {
  // Up to the last listed page: the rank's own page count is not trusted.
  uint32_t last = 0;
  for (const Strip& s : in.ranks[rank].strips) {
    last = std::max(last, s.page + (s.layers - 1) * s.stride);
  }
  std::vector<uint64_t> used(last / 64 + 1, 0);
  // Marks pages in one machine word; false: one of them is marked already.
  const auto mark = [&](uint32_t page, uint64_t bits) {
    uint64_t& word = used[page / 64];
    const bool free = (word & bits) == 0;
    word |= bits;
    return free;
  };
  for (const Strip& strip : in.ranks[rank].strips) {
    uint32_t step = 1;
    for (uint32_t i = 0; i < strip.layers; i += step) {
      const uint32_t page = strip.page + i * strip.stride, at = page % 64;
      // Adjacent pages: as many at a time as the word has.
      step = strip.stride == 1 ? std::min(strip.layers - i, 64 - at) : 1;
      const uint64_t bits = (step == 64 ? ~uint64_t{0} : (uint64_t{1} << step) - 1) << at;
      if (!mark(page, bits)) {
        return Bad(fmt::format("rank {}: a page of {} to {}, in block {} of home {}, is used twice",
                               rank, page, page + step - 1, strip.block, strip.home));
      }
    }
  }
  return OkStatus();
}

Status Validate(const Input& in, std::vector<Span>* spans) {
  const Shape& s = in.shape;
  if (s.query_heads == 0 || s.kv_heads == 0 || s.query_heads % s.kv_heads != 0 ||
      s.block_tokens == 0 || s.head_token_bytes == 0 || s.head_token_bytes % 2 != 0) {
    return Bad(
        fmt::format("shape: {} query heads, {} KV heads, {} tokens a block, {} bytes a token",
                    s.query_heads, s.kv_heads, s.block_tokens, s.head_token_bytes));
  }
  const size_t old_ranks = in.ranks.size();
  if (in.old_groups.size() != in.new_groups.size() || in.new_of_old.size() != old_ranks ||
      (!in.joined_pages.empty() && in.joined_pages.size() != in.new_ranks)) {
    return Bad(fmt::format("{} layers before and {} after, {} ranks with {} new numbers",
                           in.old_groups.size(), in.new_groups.size(), old_ranks,
                           in.new_of_old.size()));
  }
  for (size_t r = 0; in.only_changed && r < old_ranks; ++r) {
    if (old_ranks == in.new_ranks && in.new_of_old[r] == static_cast<int32_t>(r)) continue;
    return Bad("only layers that change are listed, but ranks change, too");
  }
  std::set<int32_t> numbers;
  for (int32_t n : in.new_of_old) {
    if (n == -1) continue;
    if (n < 0 || static_cast<uint32_t>(n) >= in.new_ranks || !numbers.insert(n).second) {
      return Bad(fmt::format("new number {} is given twice or outside {} ranks", n, in.new_ranks));
    }
  }
  TANGRAM_RETURN_IF_ERROR(
      ValidateGroups(s, in.old_groups, static_cast<uint32_t>(old_ranks), "old"));
  TANGRAM_RETURN_IF_ERROR(ValidateGroups(s, in.new_groups, in.new_ranks, "new"));
  *spans = SpansOf(in);
  for (uint32_t r = 0; r < old_ranks; ++r) {
    TANGRAM_RETURN_IF_ERROR(StripsOfRank(in, *spans, r).Run());
  }
  return ValidateRequests(in, *spans);
}

}  // namespace tangram::kv
