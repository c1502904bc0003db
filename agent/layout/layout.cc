#include "agent/layout/layout.h"

#include <fmt/format.h>
#include <google/protobuf/arena.h>

#include <algorithm>
#include <set>

namespace tangram::layout {
namespace {

// Maximum block size of a layout's arena: a few blocks for the largest layout.
constexpr size_t kMostArenaBlock = 1 << 20;

Status Bad(std::string message) { return {Code::kBadPlan, "layout: " + std::move(message)}; }

// Start of a position's shards in the bank of a group of g > 1. It is the same on every rank, so
// that any member can take over a position in place.
uint64_t PositionBase(const v1::ExpertGroup& group, const GeometryView& geometry,
                      uint32_t position) {
  const auto size = static_cast<uint32_t>(group.ranks_size());
  if (size == 1) return 0;
  uint64_t base = 0;
  for (uint32_t p = 0; p < position; ++p) {
    uint64_t bytes = 0;
    for (const uint32_t slot : group.slots()) {
      if (slot == 0) continue;
      const Run run = ShardOf(geometry.granules(), size, slot - 1, p);
      bytes += RoundUp(geometry.piece_bytes(run.count), kPieceAlignment);
    }
    base += RoundUp(bytes, geometry.page_bytes());
    if (base > geometry.bank_pitch()) break;  // does not fit; no sum may wrap
  }
  return base;
}

Status CheckExperts(const v1::LayerLayout& layer, const v1::Layout& layout,
                    const GeometryView& geometry) {
  std::vector<int> owner(geometry.experts(), -1);      // the last group that has the expert
  std::vector<int> placed(layout.members_size(), -1);  // group of each rank
  for (int g = 0; g < layer.experts_size(); ++g) {
    const v1::ExpertGroup& group = layer.experts(g);
    const auto where = [&] { return fmt::format("layer {}, expert group {}", layer.layer(), g); };
    const auto size = static_cast<uint32_t>(group.ranks_size());
    if (size == 0 || size != layer.expert_group_size()) {
      return Bad(fmt::format("{}: {} ranks, expert_group_size says {}", where(), size,
                             layer.expert_group_size()));
    }
    if (size > geometry.granules()) {
      return Bad(fmt::format("{}: {} ranks share an expert of {} granules; at most {} can", where(),
                             size, geometry.granules(), geometry.granules()));
    }
    if (geometry.proto().even_shards_only() && geometry.granules() % size != 0) {
      return Bad(fmt::format(
          "{}: the engine takes even shards only and {} granules do not divide by {} ranks",
          where(), geometry.granules(), size));
    }
    if (static_cast<uint32_t>(group.slots_size()) > geometry.experts() + kSpareSlots) {
      return Bad(fmt::format("{}: {} slots, a bank has {}", where(), group.slots_size(),
                             geometry.experts() + kSpareSlots));
    }
    for (const uint32_t rank : group.ranks()) {
      if (rank >= placed.size())
        return Bad(fmt::format("{}: rank {} of {}", where(), rank, placed.size()));
      if (placed[rank] >= 0 && placed[rank] != g)
        return Bad(fmt::format("{}: rank {} is in two groups of the layer", where(), rank));
      placed[rank] = g;
    }
    if (const uint64_t end = PositionBase(group, geometry, size); end > geometry.bank_pitch()) {
      return Bad(fmt::format("{}: its shards need {} bytes or more of a bank of {}", where(), end,
                             geometry.bank_pitch()));
    }
    for (const uint32_t slot : group.slots()) {
      if (slot == 0) continue;
      if (slot > geometry.experts())
        return Bad(fmt::format("{}: expert {} of {}", where(), slot - 1, geometry.experts()));
      if (owner[slot - 1] == g) return Bad(fmt::format("{}: expert {} twice", where(), slot - 1));
      owner[slot - 1] = g;
    }
  }
  const auto missing = std::find(owner.begin(), owner.end(), -1);
  if (missing != owner.end()) {
    return Bad(
        fmt::format("layer {}: expert {} has no owner", layer.layer(), missing - owner.begin()));
  }
  return OkStatus();
}

Status CheckAttention(const v1::LayerLayout& layer, const v1::Layout& layout,
                      const GeometryView& geometry) {
  if (layer.attention_size() == 0)
    return Bad(fmt::format("layer {}: no attention group", layer.layer()));
  std::vector<bool> placed(layout.members_size(), false);
  for (int g = 0; g < layer.attention_size(); ++g) {
    const v1::AttentionGroup& group = layer.attention(g);
    const auto where = [&] {
      return fmt::format("layer {}, attention group {}", layer.layer(), g);
    };
    const auto size = static_cast<uint32_t>(group.ranks_size());
    if (size == 0 || size != layer.attention_group_size()) {
      return Bad(fmt::format("{}: {} ranks, attention_group_size says {}", where(), size,
                             layer.attention_group_size()));
    }
    for (const uint32_t rank : group.ranks()) {
      if (rank >= placed.size())
        return Bad(fmt::format("{}: rank {} of {}", where(), rank, placed.size()));
      if (placed[rank])
        return Bad(fmt::format("{}: rank {} is in two groups of the layer", where(), rank));
      placed[rank] = true;
    }
    const auto& bounds = group.query_head_bounds();
    if (static_cast<uint32_t>(bounds.size()) != size + 1 || bounds.Get(0) != 0 ||
        bounds.Get(bounds.size() - 1) != geometry.proto().query_heads()) {
      return Bad(fmt::format("{}: query_head_bounds must be {} numbers from 0 to {}", where(),
                             size + 1, geometry.proto().query_heads()));
    }
    for (int p = 0; p + 1 < bounds.size(); ++p) {
      if (bounds.Get(p) >= bounds.Get(p + 1)) {
        return Bad(fmt::format("{}: position {} has no query head ({} ranks for {} query heads)",
                               where(), p, size, geometry.proto().query_heads()));
      }
    }
  }
  return OkStatus();
}

Status CheckBanks(const v1::Layout& layout, const GeometryView& geometry) {
  std::vector<int64_t> user(layout.banks(), -1);
  for (const v1::LayerLayout& layer : layout.layers()) {
    const int32_t ordinal = geometry.ordinal(layer.layer());
    if (ordinal < 0) continue;
    const int64_t bank = static_cast<int64_t>(ordinal) + layer.bank_offset();
    if (bank < 0 || bank >= static_cast<int64_t>(layout.banks())) {
      return Bad(fmt::format("layer {}: bank {} of {}", layer.layer(), bank, layout.banks()));
    }
    if (user[bank] >= 0) {
      return Bad(fmt::format("layers {} and {} share bank {}", user[bank], layer.layer(), bank));
    }
    user[bank] = layer.layer();
  }
  return OkStatus();
}

void Renumber(google::protobuf::RepeatedField<uint32_t>* ranks, const v1::LayoutDelta& delta) {
  for (uint32_t& rank : *ranks) rank = delta.renumber(static_cast<int>(rank)) - 1;
}

// True if every rank of the list survives the renumbering.
bool AllStay(const google::protobuf::RepeatedField<uint32_t>& ranks, const v1::LayoutDelta& delta) {
  return std::all_of(ranks.begin(), ranks.end(), [&](uint32_t rank) {
    return rank < static_cast<uint32_t>(delta.renumber_size()) &&
           delta.renumber(static_cast<int>(rank)) != 0;
  });
}

Status RenumberAll(v1::Layout* layout, const v1::LayoutDelta& delta) {
  std::set<uint32_t> replaced;  // replaced completely, so their old content does not matter
  for (const v1::LayerLayout& layer : delta.layers()) replaced.insert(layer.layer());
  for (v1::LayerLayout& layer : *layout->mutable_layers()) {
    if (replaced.contains(layer.layer())) continue;
    for (v1::ExpertGroup& group : *layer.mutable_experts()) {
      if (!AllStay(group.ranks(), delta)) {
        return Bad(fmt::format("layer {}: a leaving rank still owns experts", layer.layer()));
      }
      Renumber(group.mutable_ranks(), delta);
    }
    for (v1::AttentionGroup& group : *layer.mutable_attention()) {
      if (!AllStay(group.ranks(), delta)) {
        return Bad(fmt::format("layer {}: a leaving rank still has heads", layer.layer()));
      }
      Renumber(group.mutable_ranks(), delta);
    }
  }
  return OkStatus();
}

}  // namespace

Status Validate(const v1::Layout& layout, const GeometryView& geometry) {
  if (layout.members_size() == 0) return Bad("no members");
  if (layout.geometry_fingerprint() != geometry.fingerprint()) {
    return {Code::kBadGeometry, fmt::format("layout: made for geometry {}, this is {}",
                                            Hex(layout.geometry_fingerprint()).substr(0, 16),
                                            Hex(geometry.fingerprint()).substr(0, 16))};
  }
  std::set<std::string> ids;
  for (const v1::Member& member : layout.members()) {
    if (member.id().empty() || !ids.insert(member.id()).second) {
      return Bad(fmt::format("member id '{}' is empty or there twice", member.id()));
    }
  }
  if (layout.banks() < geometry.moe_layers() ||
      layout.banks() > geometry.moe_layers() + kMostSpareBanks) {
    return Bad(fmt::format("{} banks for {} MoE layers", layout.banks(), geometry.moe_layers()));
  }
  if (static_cast<uint32_t>(layout.layers_size()) != geometry.proto().layers()) {
    return Bad(fmt::format("{} layers, the geometry has {}", layout.layers_size(),
                           geometry.proto().layers()));
  }
  for (int i = 0; i < layout.layers_size(); ++i) {
    const v1::LayerLayout& layer = layout.layers(i);
    if (layer.layer() != static_cast<uint32_t>(i))
      return Bad(fmt::format("entry {} is for layer {}", i, layer.layer()));
    if (geometry.ordinal(layer.layer()) >= 0) {
      TANGRAM_RETURN_IF_ERROR(CheckExperts(layer, layout, geometry));
    } else if (layer.experts_size() != 0) {
      return Bad(fmt::format("layer {} has no experts in this model", layer.layer()));
    }
    TANGRAM_RETURN_IF_ERROR(CheckAttention(layer, layout, geometry));
  }
  TANGRAM_RETURN_IF_ERROR(CheckBanks(layout, geometry));
  int64_t last = -1;
  for (const uint32_t rank : layout.dense().ranks()) {
    if (rank >= static_cast<uint32_t>(layout.members_size()) ||
        static_cast<int64_t>(rank) <= last) {
      return Bad(
          fmt::format("dense ranks must ascend below {}, found {}", layout.members_size(), rank));
    }
    last = rank;
  }
  if (layout.dense().ranks_size() == 0) return Bad("no rank holds the dense weights");
  return OkStatus();
}

Result<v1::Layout> Apply(const v1::Layout& base, const v1::LayoutDelta& delta, uint64_t epoch) {
  v1::Layout out = base;
  out.set_epoch(epoch);
  if (delta.renumber_size() != 0) {
    if (delta.renumber_size() != base.members_size()) {
      return Bad(fmt::format("renumber has {} entries for {} members", delta.renumber_size(),
                             base.members_size()));
    }
    TANGRAM_RETURN_IF_ERROR(RenumberAll(&out, delta));
  }
  if (delta.members_changed()) *out.mutable_members() = delta.members();
  for (const v1::LayerLayout& layer : delta.layers()) {
    if (layer.layer() >= static_cast<uint32_t>(out.layers_size())) {
      return Bad(fmt::format("delta names layer {} of {}", layer.layer(), out.layers_size()));
    }
    *out.mutable_layers(static_cast<int>(layer.layer())) = layer;
  }
  if (delta.has_dense()) *out.mutable_dense() = delta.dense();
  if (delta.stages_size() != 0) *out.mutable_stages() = delta.stages();
  if (delta.banks() != 0) out.set_banks(delta.banks());
  return out;
}

std::string HashOf(const v1::Layout& layout) { return WireHash(layout); }

Result<std::shared_ptr<const v1::Layout>> Parse(std::string_view wire) {
  google::protobuf::ArenaOptions options;
  // Messages take about 8 times their wire form; if they need more, a block is added.
  options.start_block_size = std::clamp<size_t>(8 * wire.size(), 1 << 10, kMostArenaBlock);
  options.max_block_size = kMostArenaBlock;
  auto arena = std::make_shared<google::protobuf::Arena>(options);
  auto* layout = google::protobuf::Arena::CreateMessage<v1::Layout>(arena.get());
  if (!layout->ParseFromArray(wire.data(), static_cast<int>(wire.size()))) {
    return Bad(fmt::format("{} bytes are not a layout", wire.size()));
  }
  return std::shared_ptr<const v1::Layout>(std::move(arena), layout);
}

void AddPiecesOf(const v1::LayerLayout& layer, const GeometryView& geometry, uint32_t rank,
                 std::vector<PlacedPiece>* out) {
  for (const v1::ExpertGroup& group : layer.experts()) {
    const auto size = static_cast<uint32_t>(group.ranks_size());
    for (uint32_t position = 0; position < size; ++position) {
      if (group.ranks(static_cast<int>(position)) != rank) continue;
      uint64_t next = PositionBase(group, geometry, position);  // of the next slot, if g > 1
      for (int slot = 0; slot < group.slots_size(); ++slot) {
        if (group.slots(slot) == 0) continue;
        PlacedPiece piece;
        piece.layer = layer.layer();
        piece.bank = static_cast<uint32_t>(geometry.ordinal(layer.layer()) + layer.bank_offset());
        piece.slot = static_cast<uint32_t>(slot);
        piece.expert = group.slots(slot) - 1;
        piece.run = ShardOf(geometry.granules(), size, piece.expert, position);
        piece.bytes = geometry.piece_bytes(piece.run.count);
        if (size == 1) {
          piece.offset = piece.slot * geometry.expert_pitch();
        } else {
          piece.offset = next;
          next += RoundUp(piece.bytes, kPieceAlignment);
        }
        out->push_back(piece);
      }
    }
  }
}

std::vector<PlacedPiece> PiecesOf(const v1::Layout& layout, const GeometryView& geometry,
                                  uint32_t rank) {
  std::vector<PlacedPiece> out;
  for (const v1::LayerLayout& layer : layout.layers()) AddPiecesOf(layer, geometry, rank, &out);
  return out;
}

bool HoldsDense(const v1::Layout& layout, uint32_t rank) {
  const auto& ranks = layout.dense().ranks();
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

int32_t RankOf(const v1::Layout& layout, const std::string& member) {
  for (int i = 0; i < layout.members_size(); ++i) {
    if (layout.members(i).id() == member) return i;
  }
  return -1;
}

Run KvHeadsOf(const v1::AttentionGroup& group, uint32_t position, const GeometryView& geometry) {
  const uint32_t per_kv = geometry.proto().query_heads() / geometry.proto().kv_heads();
  const uint32_t first = group.query_head_bounds(static_cast<int>(position)) / per_kv;
  const uint32_t last =
      (group.query_head_bounds(static_cast<int>(position) + 1) + per_kv - 1) / per_kv;
  return {first, last - first};
}

uint64_t PagesTouched(const std::vector<PlacedPiece>& pieces, const GeometryView& geometry) {
  // One number line for all banks: page numbers of a bank stay below the next bank's.
  std::vector<std::pair<uint64_t, uint64_t>> runs;  // first page, page after the last
  for (const PlacedPiece& piece : pieces) {
    const uint64_t bank = uint64_t{piece.bank} << 40;
    const uint64_t first = bank + piece.offset / geometry.page_bytes();
    const uint64_t after = bank + (piece.offset + piece.bytes - 1) / geometry.page_bytes() + 1;
    // Consecutive pieces of a bank form one run, so few runs are sorted.
    if (!runs.empty() && runs.back().first <= first && first <= runs.back().second) {
      runs.back().second = std::max(runs.back().second, after);
    } else {
      runs.emplace_back(first, after);
    }
  }
  std::sort(runs.begin(), runs.end());
  uint64_t pages = 0, end = 0;
  for (const auto& [first, after] : runs) {
    pages += std::max(after, end) - std::max(first, end);
    end = std::max(after, end);
  }
  return pages;
}

}  // namespace tangram::layout
