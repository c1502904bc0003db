#include "agent/engine/abi/called.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "agent/base/fault.h"
#include "agent/engine/abi/moves.h"
#include "agent/engine/world/groups.h"
#include "agent/kv/cover.h"

namespace tangram::engine {
namespace {

const fault::Point kBeforeEmit("engine.before_emit");

// A callback's result as a status.
Status Said(tg_code code, const tg_error& why, const char* what) {
  const std::string message = std::string(what) + ": " + why.message;
  switch (code) {
    case TG_OK:
      return OkStatus();
    case TG_AGAIN:
      return {Code::kUnavailable, message};
    case TG_NO_ROOM:
      return {Code::kNoMemory, message};
    case TG_REFUSED:
      return {Code::kInvalid, message};
    default:
      return {Code::kInternal, message};
  }
}

tge_request Of(const BlockRequest& request) {
  return {sizeof(tge_request),   request.request.c_str(), request.gateway.c_str(),
          request.running,       request.computed,        request.reserved,
          request.blocks.data(), request.blocks.size(),   request.state.data(),
          request.state.size(),  request.generation};
}

}  // namespace

void Called::Submit(const std::string& gateway, v1::Submit submit) {
  const std::vector<uint32_t> prompt(submit.prompt().begin(), submit.prompt().end());
  const std::vector<uint32_t> stop(submit.stop_tokens().begin(), submit.stop_tokens().end());
  std::vector<uint32_t> bias_tokens;
  std::vector<float> bias;
  for (const auto& [token, value] : submit.logit_bias()) {
    bias_tokens.push_back(token);
    bias.push_back(value);
  }
  const tge_submit told{sizeof(tge_submit),
                        submit.request().c_str(),
                        gateway.c_str(),
                        prompt.data(),
                        prompt.size(),
                        submit.max_tokens(),
                        submit.temperature(),
                        submit.top_p(),
                        submit.seed(),
                        stop.data(),
                        stop.size(),
                        submit.cache_salt().c_str(),
                        submit.generated(),
                        submit.min_tokens(),
                        submit.top_k(),
                        submit.min_p(),
                        submit.presence_penalty(),
                        submit.frequency_penalty(),
                        submit.repetition_penalty(),
                        bias_tokens.data(),
                        bias.data(),
                        bias.size(),
                        submit.has_logprobs() ? static_cast<int32_t>(submit.logprobs()) : -1};
  // Sent before its gateway learned of the flip. A rank without attention would have its KV in no
  // layout.
  if (epoch_ == nullptr || !Accepts(epoch_->side.groups, epoch_->rank)) {
    v1::Refused refused;
    refused.set_request(submit.request());
    refused.set_code(v1::Refused::CODE_NOT_READY);
    refused.set_message("this rank is home to no requests");
    sink_->Refuse(gateway, std::move(refused));
    return;
  }
  teller_.Renewed(submit.request());
  backend_.submit(backend_.self, &told);
}

std::vector<std::string> Called::can() const {
  std::istringstream words(backend_.can == nullptr ? "" : backend_.can);
  return {std::istream_iterator<std::string>(words), {}};
}

bool Called::Cancel(const std::string& request) {
  teller_.Renewed(request);
  return backend_.cancel(backend_.self, request.c_str()) != 0;
}

BlockManifest Called::Here() const {
  BlockManifest out;
  tge_manifest list;
  backend_.manifest(backend_.self, &list);
  out.requests = std::move(list.requests);
  out.kv = LayoutWithReserved();
  return out;
}

kv::Shape Called::ShapeOf() const {
  const tg_model& model = world_->model();
  return {model.query_heads, model.kv_heads, block_tokens_, model.kv_head_token_bytes};
}

BlockLayout Called::Layout() const {
  tge_kv_layout kv{};
  kv.struct_size = sizeof kv;
  backend_.kv_layout(backend_.self, &kv);
  BlockLayout out;
  out.blocks = kv.blocks;
  out.free_blocks = kv.free_blocks;
  out.sets.push_back(
      {world_->model().layers, kv.offset, kv.layer_stride, kv.block_stride, kv.block_bytes});
  if (kv.set_count == 0) return out;
  const bool known =
      kv.sets != nullptr && kv.set_size >= sizeof(tge_kv_set) && kv.set_count <= TGE_MORE_SETS;
  if (!known) out.sets.clear();  // LiesIn reports it; a set must not silently stay behind
  const auto* const first = reinterpret_cast<const std::byte*>(kv.sets);
  for (size_t i = 0; known && i < kv.set_count; ++i) {
    const auto* const set = reinterpret_cast<const tge_kv_set*>(first + i * kv.set_size);
    out.sets.push_back(
        {set->layers, set->offset, set->layer_stride, set->block_stride, set->block_bytes});
  }
  return out;
}

std::map<std::string, v1::Roster> Called::Rosters() const {
  std::map<std::string, v1::Roster> out;
  const BlockManifest here = Here();
  for (const BlockRequest& request : here.requests) {
    out[request.gateway].add_requests(request.request);
  }
  return out;
}

void Called::Cached(std::span<const uint64_t> hashes, bool here) {
  cached_ = std::max<uint64_t>(cached_, 1);
  for (const uint64_t hash : hashes) here ? prefixes_.Here(hash) : prefixes_.Gone(hash);
}

void Called::CachedNone() {
  prefixes_ = {};
  ++cached_;
}

void Called::Measure(v1::Load* load, tg_engine_stats* stats) {
  backend_.measure(backend_.self, stats);
  load->set_running(static_cast<uint32_t>(stats->running));
  load->set_waiting(static_cast<uint32_t>(stats->waiting));
  load->set_kv_free_pages(stats->kv_free_pages);
  load->set_kv_pages(stats->kv_pages);
  if (cached_ == 0) return;
  load->mutable_prefixes()->set_generation(cached_);
  load->mutable_prefixes()->set_block_tokens(block_tokens_);
  prefixes_.Take(CachedPrefixes::kNew, CachedPrefixes::kAgain).AddTo(load->mutable_prefixes());
}

Status Called::Fits(const tg_maps& target, bool repair) {
  tg_error why = TG_INIT(tg_error);
  TANGRAM_RETURN_IF_ERROR(
      Said(backend_.fits(backend_.self, &target, repair ? 1 : 0, &why), why, "this engine"));
  // A layout of KV that others would reject ends the attempt, not the rank.
  if (epoch_ == nullptr || repair) return OkStatus();
  const tg_model& model = world_->model();
  const Status lies = Layout().LiesIn(model.layers, model.kv_bytes);
  return lies.ok() ? lies : Status{Code::kInvalid, "this engine's KV: " + lies.message()};
}

Backend::Announcement Called::Announce(uint64_t step) {
  Announcement out;
  int work = 0;
  backend_.announce(backend_.self, step, &out.rows, &work);
  out.work = work != 0;
  if (staged_) out.text = Tell();
  return out;
}

Status Called::Compute(const StepInput& input) {
  input_ = &input;
  lost_ = false;
  const tge_step step{sizeof(tge_step), input.epoch.number(), input.step,
                      input.epoch.rank, input.comm.size(),    input.rows};
  tg_error why = TG_INIT(tg_error);
  const tg_code code = backend_.compute(backend_.self, &step, &why);
  input_ = nullptr;
  came_.clear();
  // An engine that ignored the error has computed wrong results.
  if (lost_ && code == TG_OK) {
    return {Code::kInternal, "a step continued without the rows of a lost peer"};
  }
  return Said(code, why, "step");
}

Status Called::StepLost() {
  return {Code::kUnavailable, "an exchange of this step has failed already; abandon the step"};
}

Status Called::Exchange(uint64_t sequence, const tge_bytes* send, tge_bytes* recv) {
  if (input_ == nullptr) return {Code::kInvalid, "exchange called outside of a step"};
  if (lost_) return StepLost();
  const uint32_t size = input_->comm.size();
  std::vector<uint32_t> ranks(size);
  std::vector<Bytes> out(size);
  for (uint32_t r = 0; r < size; ++r) {
    ranks[r] = r;
    const auto* const data = static_cast<const uint8_t*>(send[r].data);
    out[r].assign(data, data + send[r].size);
  }
  came_.assign(size, {});
  Status done = input_->comm.Exchange(input_->step, kFirstSequence + sequence, ranks, out, &came_);
  lost_ = lost_ || !done.ok();
  for (uint32_t r = 0; done.ok() && r < size; ++r) recv[r] = {came_[r].data(), came_[r].size()};
  return done;
}

Status Called::MayEmit() {
  if (input_ == nullptr) return {Code::kInvalid, "tge_may_emit called outside of a step"};
  (void)fault::Hit("engine.before_emit");
  Status may = input_->between.MayEmit();
  lost_ = lost_ || !may.ok();
  return may;
}

void Called::Emit(const std::string& gateway, v1::Token token) {
  token.set_owner(world_->model().member);
  if (epoch_ != nullptr) token.set_epoch(epoch_->number());
  sink_->Emit(gateway, std::move(token));
}

Status Called::Plan(const Side& from, const Side& to, bool, const std::vector<Bytes>& manifests,
                    uint64_t* moved, uint32_t* malformed) {
  const tg_model& model = world_->model();
  Transition next;
  for (uint32_t r = 0; r < manifests.size(); ++r) {
    auto manifest =
        BlockManifest::Decode(manifests[r], model.layers, model.kv_bytes, block_tokens_);
    if (!manifest.ok()) {
      *malformed = r;
      return manifest.status();
    }
    next.manifests.push_back(std::move(*manifest));
  }
  auto plan = PlanBlocks(ShapeOf(), model.layers, from, to, next.manifests);
  if (!plan.ok()) return plan.status();
  next.blocks = std::move(*plan);
  *moved = next.blocks.plan.requests_moved;
  // Requests whose home is another member after the flip.
  size_t at = 0;
  for (uint32_t r = 0; r < next.manifests.size(); ++r) {
    for (const BlockRequest& request : next.manifests[r].requests) {
      const std::string& home = to.members[next.blocks.plan.requests[at++].home];
      if (r == epoch_->rank && home != from.members[r]) next.gone.push_back(request.request);
    }
  }
  transition_ = std::move(next);
  return OkStatus();
}

Result<uint64_t> Called::Bring(uint32_t rank, Between& between) {
  Transition& t = *transition_;
  // Blocks move whole, to the places in which the engine adopts them: only the part's proof is
  // needed.
  const auto part = kv::ProvenPart(t.blocks.input, t.blocks.plan, rank);
  if (!part.ok()) return part.status();
  TANGRAM_RETURN_IF_ERROR(Settle(rank, between));
  const BlockLayout mine = Layout();
  Moves moves;
  uint64_t ready = 0;
  size_t at = 0;
  for (uint32_t r = 0; r < t.manifests.size(); ++r) {
    const BlockLayout& source = t.manifests[r].kv;
    for (const BlockRequest& request : t.manifests[r].requests) {
      if (t.blocks.plan.requests[at++].home != rank || r == epoch_->rank) continue;
      if (!source.Alike(mine)) {
        return Status{Code::kInternal, "KV blocks of " + std::to_string(source.block_bytes()) +
                                           " bytes in " + std::to_string(source.sets.size()) +
                                           " sets at rank " + std::to_string(r) + ", of " +
                                           std::to_string(mine.block_bytes()) + " in " +
                                           std::to_string(mine.sets.size()) + " on this rank"};
      }
      BlockRequest comes = request;
      comes.blocks.resize((request.computed + block_tokens_ - 1) / block_tokens_);
      std::vector<uint32_t> blocks(comes.blocks.size());
      tg_error why = TG_INIT(tg_error);
      const tge_request told = Of(comes);
      TANGRAM_RETURN_IF_ERROR(
          Said(backend_.adopt(backend_.self, &told, blocks.data(), &why), why, "adopting"));
      const Incoming::Ready ahead = incoming_.Take(comes.request);
      const auto here = [&](size_t b) {
        return b < ahead.here.size() && ahead.here[b] && ahead.mine[b] == blocks[b];
      };
      std::vector<uint32_t> from, to;
      for (size_t b = 0; b < blocks.size(); ++b) {
        if (blocks[b] >= mine.blocks) {
          return Status{Code::kInternal, "adopt: a block is out of range"};
        }
        if (here(b)) {
          ++ready;
          continue;
        }
        from.push_back(comes.blocks[b]);
        to.push_back(blocks[b]);
      }
      moves.AddBlocks(r, source, from, mine, to);
    }
  }
  const auto bytes = incoming_.Pull(moves.list(), between);
  if (!bytes.ok()) return bytes.status();
  const uint64_t used = ready * mine.block_bytes();
  TellCarried(used, *bytes);
  return used + *bytes;
}

void Called::Drop() {
  transition_.reset();
  backend_.drop(backend_.self);
}

Status Called::Enter(const Epoch& epoch, Entry entry) {
  if (transition_ && entry == Entry::kCarried) {
    for (const std::string& request : transition_->gone) {
      backend_.gone(backend_.self, request.c_str());
    }
  }
  transition_.reset();
  EndStaging();
  epoch_ = &epoch;
  auto routes = dispatch::Routes::Of(*epoch.maps, world_->model());
  if (!routes.ok()) return routes.status();
  routes_ = std::make_shared<const dispatch::Routes>(std::move(*routes));
  if (experts_) experts_->Enter(routes_);
  static constexpr tge_entry kEntries[] = {TGE_ENTRY_FRESH, TGE_ENTRY_UNCHANGED, TGE_ENTRY_MIGRATED,
                                           TGE_ENTRY_REPAIRED};
  tg_error why = TG_INIT(tg_error);
  return Said(
      backend_.enter(backend_.self, epoch.number(), kEntries[static_cast<size_t>(entry)], &why),
      why, "entering");
}

void Called::Leave() {
  epoch_ = nullptr;
  transition_.reset();
  EndStaging();
  routes_.reset();
  if (experts_) experts_->Enter(nullptr);
  backend_.leave(backend_.self);
}

}  // namespace tangram::engine
