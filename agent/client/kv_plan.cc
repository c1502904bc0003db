// tg_kv_plan: agent/kv behind the C structs of kv_plan.h.
#include "agent/client/include/tangram/kv_plan.h"

#include <string>
#include <utility>
#include <vector>

#include "agent/client/abi.h"
#include "agent/client/versioned.h"
#include "agent/kv/cover.h"
#include "agent/kv/plan.h"

namespace tangram {
namespace {

// An array of the caller's: elements `size` bytes apart, of which this library knows sizeof(T).
template <typename T>
class Array {
 public:
  static Result<Array> Of(const T* first, size_t count, size_t size, const char* name) {
    if (count > 0 && first == nullptr) {
      return Status{Code::kInvalid, std::string("tg_kv_manifest: ") + name + " is null, want " +
                                        std::to_string(count)};
    }
    if (count > 0 && size < sizeof(T)) {
      return Status{Code::kInvalid, std::string("tg_kv_manifest: ") + name + " are " +
                                        std::to_string(size) + " bytes apart, want " +
                                        std::to_string(sizeof(T)) + " at least"};
    }
    return Array(first, count, size);
  }

  size_t count() const { return count_; }
  const T& operator[](size_t i) const { return *TG_AT(T, first_, size_, i); }

 private:
  Array(const T* first, size_t count, size_t size) : first_(first), count_(count), size_(size) {}

  const T* first_;
  size_t count_, size_;
};

template <typename T>
Status Copy(const T* first, size_t count, const char* name, std::vector<T>* out) {
  auto array = Array<T>::Of(first, count, sizeof(T), name);
  if (!array.ok()) return array.status();
  out->assign(first, first + count);
  return OkStatus();
}

Status ReadGroups(const tg_kv_manifest& in, const tg_kv_layer* first,
                  std::vector<kv::LayerGroups>* out) {
  auto layers = Array<tg_kv_layer>::Of(first, in.layers, in.layer_size, "layers");
  if (!layers.ok()) return layers.status();
  for (size_t l = 0; l < layers->count(); ++l) {
    kv::LayerGroups& layer = out->emplace_back();
    auto groups = Array<tg_attention_group>::Of((*layers)[l].groups, (*layers)[l].count,
                                                in.group_size, "groups");
    if (!groups.ok()) return groups.status();
    for (size_t g = 0; g < groups->count(); ++g) {
      const tg_attention_group& group = (*groups)[g];
      kv::Group& to = layer.emplace_back();
      TANGRAM_RETURN_IF_ERROR(Copy(group.ranks, group.size, "ranks of a group", &to.ranks));
      TANGRAM_RETURN_IF_ERROR(Copy(group.query_head_bounds, size_t{group.size} + 1,
                                   "query_head_bounds", &to.query_head_bounds));
    }
  }
  return OkStatus();
}

Status ReadRanks(const tg_kv_manifest& in, std::vector<kv::RankState>* out) {
  auto ranks = Array<tg_kv_rank>::Of(in.ranks, in.old_ranks, in.rank_size, "ranks");
  if (!ranks.ok()) return ranks.status();
  for (size_t r = 0; r < ranks->count(); ++r) {
    const tg_kv_rank& rank = (*ranks)[r];
    kv::RankState& to = out->emplace_back();
    to.total_pages = rank.total_pages;
    to.free_pages = rank.free_pages;
    auto blocks = Array<tg_kv_block>::Of(rank.blocks, rank.block_count, in.block_size, "blocks");
    if (!blocks.ok()) return blocks.status();
    to.blocks.reserve(blocks->count());
    for (size_t b = 0; b < blocks->count(); ++b) {
      const tg_kv_block& block = (*blocks)[b];
      kv::HeldBlock& held = to.blocks.emplace_back();
      held.home = block.home;
      held.block = block.block;
      TANGRAM_RETURN_IF_ERROR(Copy(block.pages, block.page_count, "pages of a block", &held.pages));
    }
  }
  return OkStatus();
}

Status ReadRequests(const tg_kv_manifest& in, std::vector<kv::Request>* out) {
  auto requests = Array<tg_kv_request>::Of(in.request, in.requests, in.request_size, "requests");
  if (!requests.ok()) return requests.status();
  for (size_t i = 0; i < requests->count(); ++i) {
    const tg_kv_request& request = (*requests)[i];
    if (request.id == nullptr) return {Code::kInvalid, "tg_kv_manifest: a request has no id"};
    kv::Request& to = out->emplace_back();
    to.id = request.id;
    to.home = request.home;
    to.length = request.length;
    to.reserved = request.reserved;
    TANGRAM_RETURN_IF_ERROR(
        Copy(request.blocks, request.block_count, "blocks of a request", &to.blocks));
  }
  return OkStatus();
}

Result<kv::Input> ReadManifest(const tg_kv_manifest* manifest) {
  auto known = ReadKnown(manifest, TANGRAM_UP_TO(tg_kv_manifest, request_size), "tg_kv_manifest");
  if (!known.ok()) return known.status();
  const tg_kv_manifest& in = *known;
  kv::Input out;
  out.shape = {in.query_heads, in.kv_heads, in.block_tokens, in.head_token_bytes};
  out.new_ranks = in.new_ranks;
  TANGRAM_RETURN_IF_ERROR(ReadGroups(in, in.old_groups, &out.old_groups));
  TANGRAM_RETURN_IF_ERROR(ReadGroups(in, in.new_groups, &out.new_groups));
  TANGRAM_RETURN_IF_ERROR(Copy(in.new_of_old, in.old_ranks, "new_of_old", &out.new_of_old));
  if (in.joined_pages != nullptr) {
    TANGRAM_RETURN_IF_ERROR(Copy(in.joined_pages, in.new_ranks, "joined_pages", &out.joined_pages));
  }
  TANGRAM_RETURN_IF_ERROR(ReadRanks(in, &out.ranks));
  TANGRAM_RETURN_IF_ERROR(ReadRequests(in, &out.requests));
  return out;
}

// What tg_kv_planned points into.
struct Planned : tg_kv_planned {
  explicit Planned(kv::Plan made);

  kv::Plan plan;
  std::vector<tg_kv_home> homes;
  std::vector<tg_kv_rank_plan> rank_plans;
  std::vector<std::vector<tg_kv_page_move>> moves;  // [rank]
  std::vector<std::vector<tg_kv_kept>> kept;        // [rank]
};

Planned::Planned(kv::Plan made) : tg_kv_planned{}, plan(std::move(made)) {
  for (const kv::Placement& p : plan.requests) {
    homes.push_back(
        {p.id.c_str(), p.home, static_cast<uint32_t>(p.blocks.size()), p.blocks.data()});
  }
  for (const kv::RankPlan& rank : plan.ranks) {
    auto& move = moves.emplace_back();
    move.reserve(rank.moves.size());
    for (const kv::Move& m : rank.moves) {
      move.push_back({m.source_rank, m.source_page, m.layer, m.kv_head, m.home, m.block, m.tokens});
    }
    auto& keep = kept.emplace_back();
    keep.reserve(rank.kept.size());
    for (const kv::Keep& k : rank.kept) {
      keep.push_back({k.page, k.layer, k.kv_head, k.home, k.block, k.tokens});
    }
    rank_plans.push_back(
        {move.size(), move.data(), keep.size(), keep.data(), rank.freed.size(), rank.freed.data()});
  }
  struct_size = sizeof(tg_kv_planned);
  requests = homes.size();
  request = homes.data();
  request_size = sizeof(tg_kv_home);
  new_ranks = rank_plans.size();
  ranks = rank_plans.data();
  rank_size = sizeof(tg_kv_rank_plan);
  move_size = sizeof(tg_kv_page_move);
  kept_size = sizeof(tg_kv_kept);
  next_block = plan.next_block.data();
  moved_bytes = plan.moved_bytes;
  local_bytes = plan.local_bytes;
  requests_moved = plan.requests_moved;
}

}  // namespace
}  // namespace tangram

extern "C" {

tg_code tg_kv_plan(const tg_kv_manifest* manifest, const tg_kv_planned** out, tg_error* error) {
  using tangram::abi::Done;
  using tangram::abi::Fail;
  return tangram::abi::Guarded(error, [&] {
    if (out == nullptr) return Fail(error, TG_INVALID, "out is null");
    auto input = tangram::ReadManifest(manifest);
    if (!input.ok()) return Done(input.status(), error);
    auto plan = tangram::kv::MakePlan(*input);
    if (!plan.ok() && plan.status().code() == tangram::Code::kNoMemory) {
      return Fail(error, TG_NO_ROOM, plan.status().message().c_str());
    }
    if (!plan.ok()) return Done(plan.status(), error);
    const tangram::Status cover = tangram::kv::CoverCheck(*input, *plan);
    if (!cover.ok()) return Done(cover, error);
    *out = new tangram::Planned(std::move(*plan));
    return Fail(error, TG_OK, "");
  });
}

void tg_kv_plan_free(const tg_kv_planned* planned) {
  delete static_cast<const tangram::Planned*>(planned);
}

}  // extern "C"
