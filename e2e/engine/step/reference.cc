#include "e2e/engine/step/reference.h"

#include <algorithm>

#include "agent/base/fault.h"
#include "e2e/engine/model/sampler.h"
#include "e2e/engine/step/attention.h"

namespace tangram::engine {
namespace {

const fault::Point kBeforeEmit("engine.before_emit");

uint64_t Microseconds() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Result<std::unique_ptr<Reference>> Reference::Make(Options options, WorldView* world, Sink* sink) {
  const tg_model& geometry = world->model();
  Result<model::Config> config =
      model::ParseConfig({geometry.config_json, geometry.config_json_size});
  if (!config.ok()) return config.status();
  if (config->layers != geometry.layers || config->hidden != geometry.hidden ||
      config->query_heads != geometry.query_heads || config->kv_heads != geometry.kv_heads ||
      config->head_dim != geometry.head_dim || config->experts != geometry.experts ||
      config->top_k != geometry.top_k || config->moe_inner != geometry.moe_inner) {
    return Status{
        Code::kBadGeometry,
        "config.json and the agent's geometry differ (layers " + std::to_string(config->layers) +
            "/" + std::to_string(geometry.layers) + ", hidden " + std::to_string(config->hidden) +
            "/" + std::to_string(geometry.hidden) + ", experts " + std::to_string(config->experts) +
            "/" + std::to_string(geometry.experts) + ", heads " +
            std::to_string(config->query_heads) + "/" + std::to_string(geometry.query_heads) + ")"};
  }
  TANGRAM_RETURN_IF_ERROR(
      model::CheckExperts({geometry.dtype, geometry.granule_rows, geometry.hidden,
                           geometry.granule_bytes, geometry.expert_tail_bytes}));
  options.limits.vocabulary = config->vocab;
  options.limits.max_model_len = std::min(options.limits.max_model_len, config->max_positions);
  std::unique_ptr<Reference> engine(new Reference(std::move(options), world, sink));
  engine->config_ = std::move(*config);
  engine->shape_ = {geometry.query_heads, geometry.kv_heads, options.limits.block_tokens,
                    engine->config_->kv_row().floats() * static_cast<uint32_t>(sizeof(float))};
  const uint64_t page_bytes =
      uint64_t{engine->shape_.block_tokens} * engine->shape_.head_token_bytes;
  engine->pages_ = PageStore(static_cast<uint32_t>(geometry.kv_bytes / page_bytes));
  engine->kv_.emplace(&world->device(), geometry.kv, geometry.kv_bytes, page_bytes);
  return engine;
}

void Reference::Submit(const std::string& gateway, v1::Submit submit) {
  last_arrival_ = std::max(last_arrival_ + 1, Microseconds());
  if (auto refused = scheduler_.Submit(gateway, std::move(submit), last_arrival_)) {
    sink_->Refuse(gateway, std::move(*refused));
  }
}

std::map<std::string, v1::Roster> Reference::Rosters() const {
  std::map<std::string, v1::Roster> out;
  size_t running = 0;
  for (const Sequence* sequence : scheduler_.All(&running)) {
    out[sequence->gateway].add_requests(sequence->id());
  }
  return out;
}

Backend::Announcement Reference::Announce(uint64_t /*step*/) {
  // If the previous step ended in time, this one begins at its scheduled end.
  const Paced::Ended before = std::exchange(paced_.ended, Paced::Ended::kUnpaced);
  paced_.begun = before == Paced::Ended::kInTime ? paced_.until : std::chrono::steady_clock::now();
  chunks_ = scheduler_.Next();
  for (Refusal& refusal : scheduler_.TakeRefused()) {
    sink_->Refuse(refusal.gateway, std::move(refusal.refused));
  }
  Announced mine;
  mine.figures = scheduler_.Figures();
  mine.figures.total_pages = pages_.total();
  mine.figures.executed = experts_.TakeExecuted();
  mine.freed = scheduler_.TakeFreed();
  if (ahead_) mine.filled = ahead_->Tell(pages_);
  for (const Chunk& chunk : chunks_) {
    mine.batch.items.push_back({chunk.start, chunk.count, chunk.sequence->blocks});
  }
  const bool work = !mine.batch.items.empty() || mine.figures.waiting > 0;
  return {mine.batch.Rows(), work, mine.Encode()};
}

Status Reference::Heard(const std::vector<Bytes>& texts, uint32_t* malformed) {
  homes_.clear();
  std::vector<HomeFigures> figures;
  for (uint32_t r = 0; r < texts.size(); ++r) {
    Result<Announced> home = Announced::Decode(texts[r], options_.limits.block_tokens);
    if (!home.ok()) {
      *malformed = r;
      return home.status();
    }
    figures.push_back(home->figures);
    homes_.push_back(std::move(*home));
  }
  scheduler_.SetFigures(std::move(figures));
  for (uint32_t rank = 0; rank < homes_.size(); ++rank) filled_.Hear(rank, homes_[rank].filled);
  for (uint32_t home = 0; home < homes_.size(); ++home) {
    for (const uint32_t block : homes_[home].freed) {
      pages_.Drop(home, block);
      filled_.Freed(home, block);
    }
  }
  return OkStatus();
}

Status Reference::BringPages(const std::vector<Batch>& batches) {
  std::vector<KvMemory::Pages> all, written;
  for (uint32_t home = 0; home < batches.size(); ++home) {
    for (const BatchItem& item : batches[home].items) {
      const uint32_t first = item.start / shape_.block_tokens;  // the first block that gets tokens
      for (uint32_t i = 0; i < item.blocks.size(); ++i) {
        for (const kv::Strip& strip : pages_.Find(home, item.blocks[i])) {
          all.push_back({strip.page, strip.layers});
          if (i >= first) written.push_back(all.back());
        }
      }
    }
  }
  TANGRAM_RETURN_IF_ERROR(kv_->Bring(all));
  for (const KvMemory::Pages& pages : written) kv_->Write(pages);
  return OkStatus();
}

Status Reference::Compute(const StepInput& input) {
  const uint32_t me = epoch_->rank;
  std::vector<Batch> batches;
  for (uint32_t home = 0; home < homes_.size(); ++home) {
    const Batch& batch = homes_[home].batch;
    batches.push_back(batch);
    const uint32_t each = held_.PagesPerBlock(home, me);
    if (each == 0) continue;
    for (const BatchItem& item : batch.items) {
      for (const uint32_t block : item.blocks) {
        if (!pages_.Find(home, block).empty()) continue;
        if (pages_.MustWait(each)) TANGRAM_RETURN_IF_ERROR(AwaitCopies(input.between));
        if (ahead_) ahead_->Has({home, block});
        const auto strips = pages_.Ensure(home, block, held_, me);
        if (!strips.ok()) return strips.status();
      }
    }
  }
  SetPace(input);
  TANGRAM_RETURN_IF_ERROR(BringPages(batches));

  const tg_model& geometry = world_->model();
  StepContext context{*model_,
                      geometry,
                      *epoch_->maps,
                      held_,
                      input.comm,
                      pages_,
                      {kv_->base(), shape_.block_tokens, config_->kv_row()},
                      *world_,
                      input.step,
                      batches};
  std::vector<uint32_t> tokens;
  for (const Chunk& chunk : chunks_) {
    const auto begin = chunk.sequence->tokens.begin() + chunk.start;
    tokens.insert(tokens.end(), begin, begin + chunk.count);
  }
  std::vector<float> x(tokens.size() * geometry.hidden);
  TANGRAM_RETURN_IF_ERROR(model_->Embed(tokens, x));
  std::vector<float> n(x.size());
  for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
    TANGRAM_RETURN_IF_ERROR(AttentionStage(context, layer, x));
    const bool mlp = model_->HasMlp(layer);
    if (mlp) model_->MlpNorm(layer, x, n);
    if (epoch_->maps->layers[layer].moe_ordinal >= 0) {
      TANGRAM_RETURN_IF_ERROR(experts_.Run(context, layer, x));
    }
    if (mlp) model_->DenseMlp(layer, n, x);
  }
  TANGRAM_RETURN_IF_ERROR(kv_->Flush());
  return Emit(x, input.between);
}

Status Reference::Emit(std::span<const float> x, Between& between) {
  (void)fault::Hit("engine.before_emit");
  const size_t hidden = world_->model().hidden, vocab = config_->vocab;
  std::vector<float> last;  // [sampling chunks, H]
  size_t row = 0;
  for (const Chunk& chunk : chunks_) {
    row += chunk.count;
    if (!chunk.Samples()) continue;
    last.insert(last.end(), x.begin() + (row - 1) * hidden, x.begin() + row * hidden);
  }
  std::vector<float> logits(last.size() / hidden * vocab);
  if (!last.empty()) model_->Logits(last, logits);
  std::span<const float> next = logits;
  std::vector<v1::Token> tokens;
  for (const Chunk& chunk : chunks_) {
    if (!chunk.Samples()) continue;
    const Sequence& sequence = *chunk.sequence;
    const uint32_t position = static_cast<uint32_t>(sequence.tokens.size());
    const std::span<const float> mine = next.first(vocab);
    next = next.subspan(vocab);
    const model::Sampling sampling{sequence.submit.temperature(), sequence.submit.top_p(),
                                   sequence.submit.seed()};
    v1::Token& token = tokens.emplace_back();
    token.set_request(sequence.id());
    token.set_position(position);
    token.set_token(model::Sample(mine, sampling, position));
    token.set_logit_hash(model::LogitHash(mine));
    token.set_owner(world_->model().member);
    token.set_epoch(epoch_->number());
  }
  TANGRAM_RETURN_IF_ERROR(AwaitPace(between));
  // A removed member stops before its memory is freed. So MayEmit detects results computed from
  // freed memory, and they are never emitted.
  TANGRAM_RETURN_IF_ERROR(between.MayEmit());
  auto token = tokens.begin();
  for (const Chunk& chunk : chunks_) {
    const bool samples = chunk.Samples();
    scheduler_.Computed(chunk);
    for (uint32_t b = chunk.start / shape_.block_tokens;
         ahead_ && b < chunk.sequence->computed / shape_.block_tokens; ++b) {
      const Sequence& sequence = *chunk.sequence;
      ahead_->IsFull(sequence.blocks[b], sequence.blocks[0],
                     sequence.BlocksFor(sequence.reserved_tokens(), shape_.block_tokens));
    }
    if (!samples) continue;
    const std::string gateway = chunk.sequence->gateway;
    token->set_finish(scheduler_.Append(chunk.sequence, token->token()));  // may end the sequence
    sink_->Emit(gateway, std::move(*token++));
  }
  return OkStatus();
}

void Reference::StepDone(bool computed) {
  if (computed) NotePace();
  TakeUp(nullptr);
}

v1::RankTelemetry Reference::told() const {
  v1::RankTelemetry out;
  scheduler_.Measure(std::max(Microseconds(), last_arrival_), &out);
  return out;
}

void Reference::Measure(v1::Load* load, tg_engine_stats* stats) {
  load->set_running(static_cast<uint32_t>(scheduler_.running()));
  load->set_waiting(static_cast<uint32_t>(scheduler_.waiting()));
  // Figures of other homes are one step old.
  load->set_kv_idle_pages(
      std::min<uint64_t>(scheduler_.IdlePages(), pages_.total() - pages_.free()));
  load->set_kv_free_pages(pages_.free() + load->kv_idle_pages());
  load->set_kv_pages(pages_.total());
  scheduler_.TakePrefixes(load->mutable_prefixes());
  v1::RankTelemetry* telemetry = load->mutable_telemetry();
  *telemetry = told();
  meter_.Fill(telemetry);
  telemetry->set_paced_steps(paced_.counts.steps);
  telemetry->set_pace_overruns(paced_.counts.overruns);
  telemetry->set_paced_steps_truncated(paced_.counts.cut);
  stats->kv_pages = load->kv_pages();
  stats->kv_free_pages = load->kv_free_pages();
  stats->kv_reserved_tokens = scheduler_.reserved_tokens();
  stats->running = load->running();
  stats->waiting = load->waiting();
}

Status Reference::BindModel() {
  if (model_) return OkStatus();
  std::vector<model::DenseTensor> tensors;
  std::vector<Reader::Range> ranges;
  for (const tg_tensor& tensor : world_->dense()) {
    model::DenseTensor& to = tensors.emplace_back();
    to.name = tensor.name;
    to.dtype = static_cast<model::DType>(tensor.dtype);
    to.shape.assign(tensor.shape, tensor.shape + tensor.rank);
    uint64_t bytes = model::SizeOf(to.dtype);
    for (const uint64_t extent : to.shape) bytes *= extent;
    ranges.push_back({tensor.data, bytes});
  }
  const Result<std::vector<const void*>> data = dense_.Read(ranges);
  if (!data.ok()) return data.status();
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].data = (*data)[i];
  Result<model::Model> bound = model::Model::Bind(*config_, tensors);
  if (!bound.ok()) return bound.status();
  model_ = std::move(*bound);
  return OkStatus();
}

}  // namespace tangram::engine
