#include "agent/engine/abi/called.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "agent/base/fault.h"

namespace tangram::engine {
namespace {

const fault::Point kBeforeEmit("engine.before_emit");

constexpr uint64_t kPullAtOnce = 16 << 20;

// What a callback said.
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
          request.state.size()};
}

// Moves of blocks, `length` bytes each; what lies side by side on both sides is one.
class Moves {
 public:
  void Add(uint32_t rank, uint64_t source, uint64_t target, uint64_t length) {
    if (!list_.empty()) {
      tg_kv_move& last = list_.back();
      if (last.source_rank == rank && last.source_offset + last.length == source &&
          last.target_offset + last.length == target && last.length + length <= kPullAtOnce) {
        last.length += static_cast<uint32_t>(length);
        return;
      }
    }
    list_.push_back({rank, source, target, static_cast<uint32_t>(length)});
  }
  // Some `kPullAtOnce` at a time.
  Result<uint64_t> Pull(WorldView& world, Between& between) const {
    uint64_t bytes = 0;
    for (size_t begin = 0, end = 0; begin < list_.size(); begin = end) {
      for (uint64_t asked = 0; end < list_.size() && asked < kPullAtOnce; ++end) {
        asked += list_[end].length;
      }
      const auto pulled = world.PullKv(std::span(list_).subspan(begin, end - begin));
      if (!pulled.ok()) return pulled.status();
      bytes += *pulled;
      between.Lives();
    }
    return bytes;
  }

 private:
  std::vector<tg_kv_move> list_;
};

}  // namespace

void Called::Submit(const std::string& gateway, v1::Submit submit) {
  const std::vector<uint32_t> prompt(submit.prompt().begin(), submit.prompt().end());
  const std::vector<uint32_t> stop(submit.stop_tokens().begin(), submit.stop_tokens().end());
  const tge_submit told{
      sizeof(tge_submit),  submit.request().c_str(), gateway.c_str(), prompt.data(), prompt.size(),
      submit.max_tokens(), submit.temperature(),     submit.top_p(),  submit.seed(), stop.data(),
      stop.size()};
  if (epoch_ == nullptr) {
    v1::Refused refused;
    refused.set_request(submit.request());
    refused.set_code(v1::Refused::CODE_NOT_READY);
    refused.set_message("this rank is in no layout");
    sink_->Refuse(gateway, std::move(refused));
    return;
  }
  backend_.submit(backend_.self, &told);
}

bool Called::Cancel(const std::string& request) {
  return backend_.cancel(backend_.self, request.c_str()) != 0;
}

BlockManifest Called::Here() const {
  BlockManifest out;
  tge_manifest list;
  backend_.manifest(backend_.self, &list);
  out.requests = std::move(list.requests);
  out.kv = Layout();
  return out;
}

BlockLayout Called::Layout() const {
  tge_kv_layout kv{};
  kv.struct_size = sizeof kv;
  backend_.kv_layout(backend_.self, &kv);
  return {kv.offset, kv.layer_stride, kv.block_stride, kv.block_bytes, kv.blocks, kv.free_blocks};
}

std::map<std::string, v1::Roster> Called::Rosters() const {
  std::map<std::string, v1::Roster> out;
  const BlockManifest here = Here();
  for (const BlockRequest& request : here.requests) {
    out[request.gateway].add_requests(request.request);
  }
  return out;
}

void Called::Measure(v1::Load* load, tg_engine_stats* stats) {
  backend_.measure(backend_.self, stats);
  load->set_running(static_cast<uint32_t>(stats->running));
  load->set_waiting(static_cast<uint32_t>(stats->waiting));
  load->set_kv_free_pages(stats->kv_free_pages);
  load->set_kv_pages(stats->kv_pages);
}

Status Called::Fits(const tg_maps& target, bool repair) {
  tg_error why = TG_INIT(tg_error);
  return Said(backend_.fits(backend_.self, &target, repair ? 1 : 0, &why), why, "this engine");
}

Backend::Announcement Called::Announce(uint64_t step) {
  Announcement out;
  int work = 0;
  backend_.announce(backend_.self, step, &out.rows, &work);
  out.work = work != 0;
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
  // Whoever swallowed the error has computed nonsense.
  if (lost_ && code == TG_OK) return {Code::kInternal, "a step went on without a peer's rows"};
  return Said(code, why, "step");
}

Status Called::Exchange(uint64_t sequence, const tge_bytes* send, tge_bytes* recv) {
  if (input_ == nullptr) return {Code::kInvalid, "an exchange outside of a step"};
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
  if (input_ == nullptr) return {Code::kInvalid, "tge_may_emit outside of a step"};
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

Status Called::Plan(const Side& from, const Side& to, const std::vector<Bytes>& manifests,
                    uint64_t* moved) {
  const tg_model& model = world_->model();
  Transition next;
  for (const Bytes& bytes : manifests) {
    auto manifest = BlockManifest::Decode(bytes, model.layers, model.kv_bytes, block_tokens_);
    if (!manifest.ok()) return manifest.status();
    next.manifests.push_back(std::move(*manifest));
  }
  const kv::Shape shape{model.query_heads, model.kv_heads, block_tokens_,
                        model.kv_head_token_bytes};
  auto plan = PlanBlocks(shape, model.layers, from, to, next.manifests);
  if (!plan.ok()) return plan.status();
  next.plan = std::move(*plan);
  *moved = next.plan.requests_moved;
  // Whose home is another member after the flip.
  size_t at = 0;
  for (uint32_t r = 0; r < next.manifests.size(); ++r) {
    for (const BlockRequest& request : next.manifests[r].requests) {
      const std::string& home = to.members[next.plan.requests[at++].home];
      if (r == epoch_->rank && home != from.members[r]) next.gone.push_back(request.request);
    }
  }
  transition_ = std::move(next);
  return OkStatus();
}

Result<uint64_t> Called::Bring(uint32_t rank, Between& between) {
  Transition& t = *transition_;
  const BlockLayout mine = Layout();
  Moves moves;
  size_t at = 0;
  for (uint32_t r = 0; r < t.manifests.size(); ++r) {
    const BlockLayout& source = t.manifests[r].kv;
    for (const BlockRequest& request : t.manifests[r].requests) {
      if (t.plan.requests[at++].home != rank || r == epoch_->rank) continue;
      if (source.block_bytes != mine.block_bytes) {
        return Status{Code::kInternal, "KV blocks of " + std::to_string(source.block_bytes) +
                                           " bytes at rank " + std::to_string(r) + ", of " +
                                           std::to_string(mine.block_bytes) + " here"};
      }
      BlockRequest comes = request;
      comes.blocks.resize((request.computed + block_tokens_ - 1) / block_tokens_);
      std::vector<uint32_t> blocks(comes.blocks.size());
      tg_error why = TG_INIT(tg_error);
      const tge_request told = Of(comes);
      TANGRAM_RETURN_IF_ERROR(
          Said(backend_.adopt(backend_.self, &told, blocks.data(), &why), why, "adopting"));
      for (uint32_t layer = 0; layer < world_->model().layers; ++layer) {
        for (size_t b = 0; b < blocks.size(); ++b) {
          if (blocks[b] >= mine.blocks) return Status{Code::kInternal, "adopting: no such block"};
          moves.Add(r, source.At(layer, comes.blocks[b]), mine.At(layer, blocks[b]),
                    mine.block_bytes);
        }
      }
    }
  }
  return moves.Pull(*world_, between);
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
  epoch_ = &epoch;
  auto routes = Routes::Of(*epoch.maps, world_->model());
  if (!routes.ok()) return routes.status();
  routes_ = std::make_shared<const Routes>(std::move(*routes));
  if (experts_) experts_->Enter(routes_);
  static constexpr tge_entry kEntries[] = {TGE_EMPTY, TGE_KEPT, TGE_CARRIED, TGE_REPAIRED};
  tg_error why = TG_INIT(tg_error);
  return Said(
      backend_.enter(backend_.self, epoch.number(), kEntries[static_cast<size_t>(entry)], &why),
      why, "entering");
}

void Called::Leave() {
  epoch_ = nullptr;
  transition_.reset();
  routes_.reset();
  if (experts_) experts_->Enter(nullptr);
  backend_.leave(backend_.self);
}

}  // namespace tangram::engine
