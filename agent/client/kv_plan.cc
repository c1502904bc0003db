// tg_kv_plan: agent/kv behind the C structs of kv_plan.h.
#include "agent/client/include/tangram/kv_plan.h"

#include <string>
#include <utility>
#include <vector>

#include "agent/client/abi.h"
#include "agent/client/arrays.h"
#include "agent/client/versioned.h"
#include "agent/kv/cover.h"
#include "agent/kv/plan.h"

namespace tangram {
namespace {

template <typename T>
Status Copy(const T* first, size_t count, const char* name, std::vector<T>* out) {
  auto array = Array<T>::Of(first, count, sizeof(T), std::string("tg_kv_manifest: ") + name);
  if (!array.ok()) return array.status();
  out->assign(first, first + count);
  return OkStatus();
}

Status ReadGroups(const tg_kv_manifest& in, const tg_kv_layer* first,
                  std::vector<kv::LayerGroups>* out) {
  auto layers = Array<tg_kv_layer>::Of(first, in.layers, in.layer_size, "tg_kv_manifest: layers");
  if (!layers.ok()) return layers.status();
  for (size_t l = 0; l < layers->count(); ++l) {
    kv::LayerGroups& layer = out->emplace_back();
    auto groups = Array<tg_attention_group>::Of((*layers)[l].groups, (*layers)[l].count,
                                                in.group_size, "tg_kv_manifest: groups");
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
  auto ranks = Array<tg_kv_rank>::Of(in.ranks, in.old_ranks, in.rank_size, "tg_kv_manifest: ranks");
  if (!ranks.ok()) return ranks.status();
  for (size_t r = 0; r < ranks->count(); ++r) {
    const tg_kv_rank& rank = (*ranks)[r];
    kv::RankState& to = out->emplace_back();
    to.total_pages = rank.total_pages;
    to.free_pages = rank.free_pages;
    auto strips = Array<tg_kv_strip>::Of(rank.strips, rank.strip_count, in.strip_size,
                                         "tg_kv_manifest: strips");
    if (!strips.ok()) return strips.status();
    to.strips.reserve(strips->count());
    for (size_t i = 0; i < strips->count(); ++i) {
      const tg_kv_strip& s = (*strips)[i];
      to.strips.push_back({s.home, s.block, s.kv_head, s.layer, s.layers, s.page, s.stride});
    }
  }
  return OkStatus();
}

Status ReadRequests(const tg_kv_manifest& in, std::vector<kv::Request>* out) {
  auto requests = Array<tg_kv_request>::Of(in.request, in.requests, in.request_size,
                                           "tg_kv_manifest: requests");
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

Result<kv::Input> ReadManifest(const tg_kv_manifest* manifest, int32_t* rank) {
  auto known = ReadKnown(manifest, TANGRAM_UP_TO(tg_kv_manifest, request_size), "tg_kv_manifest");
  if (!known.ok()) return known.status();
  const tg_kv_manifest& in = *known;
  if (in.rank < -1 || (in.rank >= 0 && static_cast<uint32_t>(in.rank) >= in.new_ranks)) {
    return Status{Code::kInvalid, "tg_kv_manifest: rank is " + std::to_string(in.rank) +
                                      ", want one of " + std::to_string(in.new_ranks) + ", or -1"};
  }
  *rank = in.rank;
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

// The memory that tg_kv_planned points into.
struct Planned : tg_kv_planned {
  Planned(kv::Plan made, const kv::RankPlan& part);

  kv::Plan plan;
  std::vector<tg_kv_home> homes;
  std::vector<tg_kv_strip_move> move_list;
  std::vector<tg_kv_kept> kept_list;
  std::vector<tg_kv_strip> freed_list;
};

Planned::Planned(kv::Plan made, const kv::RankPlan& part) : tg_kv_planned{}, plan(std::move(made)) {
  for (const kv::Placement& p : plan.requests) {
    homes.push_back(
        {p.id.c_str(), p.home, static_cast<uint32_t>(p.blocks.size()), p.blocks.data()});
  }
  move_list.reserve(part.moves.size());
  for (const kv::Move& m : part.moves) {
    move_list.push_back({m.home, m.block, m.kv_head, m.layer, m.layers, m.source_rank,
                         m.source_page, m.source_stride, m.tokens});
  }
  kept_list.reserve(part.kept.size());
  for (const kv::Keep& k : part.kept) {
    kept_list.push_back(
        {k.home, k.block, k.kv_head, k.layer, k.layers, k.page, k.stride, k.tokens});
  }
  freed_list.reserve(part.freed.size());
  for (const kv::Strip& s : part.freed) {
    freed_list.push_back({s.home, s.block, s.kv_head, s.layer, s.layers, s.page, s.stride});
  }
  struct_size = sizeof(tg_kv_planned);
  requests = homes.size();
  request = homes.data();
  request_size = sizeof(tg_kv_home);
  new_ranks = plan.next_block.size();
  next_block = plan.next_block.data();
  requests_moved = plan.requests_moved;
  moves = move_list.size();
  move = move_list.data();
  move_size = sizeof(tg_kv_strip_move);
  kept_strips = kept_list.size();
  kept = kept_list.data();
  kept_size = sizeof(tg_kv_kept);
  freed_strips = freed_list.size();
  freed = freed_list.data();
  freed_size = sizeof(tg_kv_strip);
  moved_bytes = part.moved_bytes;
  local_bytes = part.local_bytes;
}

// The plan and the part of `rank`, proven. A leaver (-1) has no part.
Result<std::pair<kv::Plan, kv::RankPlan>> MakeProven(const kv::Input& input, int32_t rank) {
  auto plan = kv::MakePlan(input);
  if (!plan.ok()) return plan.status();
  if (rank < 0) {
    TANGRAM_RETURN_IF_ERROR(kv::CheckHomes(input, *plan));
    return std::pair(std::move(*plan), kv::RankPlan{});
  }
  auto part = kv::ProvenPart(input, *plan, static_cast<uint32_t>(rank));
  if (!part.ok()) return part.status();
  return std::pair(std::move(*plan), std::move(*part));
}

}  // namespace
}  // namespace tangram

extern "C" {

tg_code tg_kv_plan(const tg_kv_manifest* manifest, const tg_kv_planned** out, tg_error* error) {
  using tangram::abi::Done;
  using tangram::abi::Fail;
  return tangram::abi::Guarded(error, [&] {
    if (out == nullptr) return Fail(error, TG_INVALID, "out is null");
    int32_t rank = -1;
    auto input = tangram::ReadManifest(manifest, &rank);
    if (!input.ok()) return Done(input.status(), error);
    auto made = tangram::MakeProven(*input, rank);
    if (!made.ok() && made.status().code() == tangram::Code::kNoMemory) {
      return Fail(error, TG_NO_ROOM, made.status().message().c_str());
    }
    if (!made.ok()) return Done(made.status(), error);
    *out = new tangram::Planned(std::move(made->first), made->second);
    return Fail(error, TG_OK, "");
  });
}

void tg_kv_plan_free(const tg_kv_planned* planned) {
  delete static_cast<const tangram::Planned*>(planned);
}

}  // extern "C"
