#include "e2e/engine/step/engine.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <thread>

#include "agent/base/fault.h"
#include "e2e/engine/model/sampler.h"
#include "e2e/engine/step/attention.h"

namespace tangram::engine {
namespace {

using Clock = std::chrono::steady_clock;

const fault::Point kBeforeExchange("engine.before_exchange");
const fault::Point kAfterExchange("engine.after_exchange");
const fault::Point kBeforeEmit("engine.before_emit");

constexpr auto kLoadPeriod = std::chrono::milliseconds(250);
constexpr int kOutsideWaitMs = 5;
constexpr size_t kUnknownCancels = 4096;

uint64_t Microseconds() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Make(Options options, WorldView* world, Mesh* mesh,
                                             Inbox* inbox, Sink* sink) {
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
  std::unique_ptr<Engine> engine(new Engine(options, world, mesh, inbox, sink));
  engine->config_ = std::move(*config);
  engine->shape_ = {geometry.query_heads, geometry.kv_heads, options.limits.block_tokens,
                    2 * geometry.head_dim * static_cast<uint32_t>(sizeof(float))};
  const uint64_t page_bytes =
      uint64_t{engine->shape_.block_tokens} * engine->shape_.head_token_bytes;
  engine->pages_ = PageStore(static_cast<uint32_t>(geometry.kv_bytes / page_bytes));
  engine->kv_.emplace(&world->device(), geometry.kv, geometry.kv_bytes, page_bytes);
  return engine;
}

Status Engine::Run(const std::atomic<bool>& stop) {
  stop_ = &stop;
  while (!stop.load(std::memory_order_relaxed)) TANGRAM_RETURN_IF_ERROR(Turn());
  if (paced_.counts.steps > 0) {
    spdlog::info("{} steps were paced: {} took longer, {} were cut short", paced_.counts.steps,
                 paced_.counts.overruns, paced_.counts.cut);
  }
  return OkStatus();
}

Status Engine::Turn() {
  TakeInbox();
  TANGRAM_RETURN_IF_ERROR(TakeEvents(0));
  if (maps_ == nullptr) return Outside();
  if (stopped_) return StandStill();
  const Status step = world_->stopped() ? Fenced() : Step();
  if (step.code() != Code::kUnavailable) return step;
  GiveUp(step);
  return OkStatus();
}

Status Engine::Fenced() {
  return {Code::kUnavailable,
          "the others went on without this rank, which was silent for too long"};
}

void Engine::TakeInbox() {
  for (InboxItem& item : inbox_->TakeAll()) {
    if (auto* cancel = std::get_if<CancelItem>(&item)) {
      if (scheduler_.Cancel(cancel->request)) continue;
      unknown_cancels_.push_back(std::move(cancel->request));
      if (unknown_cancels_.size() > kUnknownCancels) unknown_cancels_.pop_front();
      continue;
    }
    SubmitItem& submit = std::get<SubmitItem>(item);
    last_arrival_ = std::max(last_arrival_ + 1, Microseconds());
    if (auto refused = scheduler_.Submit(submit.gateway, std::move(submit.submit), last_arrival_)) {
      sink_->Refuse(submit.gateway, std::move(*refused));
    }
  }
}

Status Engine::TakeEvents(int timeout_ms) {
  if (kept_event_) {
    const tg_event event = *std::exchange(kept_event_, std::nullopt);
    TANGRAM_RETURN_IF_ERROR(TakeEvent(event));
  }
  while (true) {
    Result<tg_event> event = world_->Poll(timeout_ms);
    timeout_ms = 0;
    if (!event.ok()) {
      if (event.status().code() != Code::kUnavailable) return event.status();
      // The memory stays mapped: what is in force can be computed without the agent.
      if (!agent_gone_) spdlog::error("the agent is gone: {}", event.status().message());
      agent_gone_ = true;
      return OkStatus();
    }
    agent_gone_ = false;
    if (event->kind == TG_EVENT_NONE) return CheckPreparation();
    TANGRAM_RETURN_IF_ERROR(TakeEvent(*event));
  }
}

Status Engine::TakeEvent(const tg_event& event) {
  switch (event.kind) {
    case TG_EVENT_NONE:
      break;
    case TG_EVENT_PREPARE:
      Prepare(event);
      break;
    case TG_EVENT_ABORT:
      if (preparation_) spdlog::info("attempt {} is over", preparation_->attempt());
      preparation_.reset();
      if (pending_ && pending_->attempt == event.attempt) pending_.reset();
      mesh_->KeepOnly({comm_.members().begin(), comm_.members().end()});
      break;
    case TG_EVENT_FLIPPED:
      return Follow(event);
  }
  return OkStatus();
}

void Engine::Prepare(const tg_event& event) {
  Result<Preparation> begun = Preparation::Begin(
      event, world_->model(), mesh_, Clock::now() + options_.prepare_timeout, &patience_);
  Status fits = begun.ok() ? PaceFor(*event.target, event.repair != 0).status() : begun.status();
  if (!fits.ok()) {
    spdlog::warn("attempt {}: refused: {}", event.attempt, fits.message());
    (void)world_->Prepared(event.attempt, false, fits.message());
    return;
  }
  preparation_ = std::move(*begun);
  spdlog::info("attempt {}: preparing epoch {} with {} members", event.attempt, event.target_epoch,
               preparation_->target().members.size());
}

Status Engine::CheckPreparation() {
  if (!preparation_ || preparation_->answered()) return OkStatus();
  mesh_->Progress(0);
  // The attempt may be over by now, or the agent gone: the next event tells.
  if (const Status told = preparation_->Answer(*mesh_, world_); !told.ok()) {
    spdlog::warn("attempt {}: {}", preparation_->attempt(), told.message());
  }
  return OkStatus();
}

Status Engine::Outside() {
  mesh_->Progress(kOutsideWaitMs);
  if (!preparation_) return OkStatus();
  TANGRAM_RETURN_IF_ERROR(CheckPreparation());
  if (!preparation_->answered() || !preparation_->joins() ||
      !preparation_->communicator().Begun()) {
    return OkStatus();
  }
  // Members of the target step in it: the flip is a fact, this rank follows.
  const Status joined = world_->Join(1000);
  if (joined.code() == Code::kUnavailable) return OkStatus();
  TANGRAM_RETURN_IF_ERROR(joined);
  return Enter(std::move(pages_), Adopted{}, 0);
}

Status Engine::Step() {
  const Clock::time_point begun = Clock::now();
  // A step that follows one that ended in time begins when that one should have ended.
  const Paced::Ended before = std::exchange(paced_.ended, Paced::Ended::kUnpaced);
  paced_.begun = before == Paced::Ended::kInTime ? paced_.until : begun;
  const std::vector<Chunk> chunks = scheduler_.Next(step_);
  for (Refusal& refusal : scheduler_.TakeRefused()) {
    sink_->Refuse(refusal.gateway, std::move(refusal.refused));
  }
  Control mine;
  mine.word = world_->Word();
  mine.pending = preparation_.has_value();
  mine.figures = scheduler_.Figures();
  mine.figures.total_pages = pages_.total();
  mine.figures.free_pages = pages_.free();
  mine.figures.executed = experts_.TakeExecuted();
  mine.freed = scheduler_.TakeFreed();
  for (const Chunk& chunk : chunks) {
    mine.batch.items.push_back({chunk.start, chunk.count, chunk.sequence->blocks});
  }
  (void)fault::Hit("engine.before_exchange");
  std::vector<Bytes> gathered;
  comm_.SetWork(rows_);  // what the slowest may still be at
  TANGRAM_RETURN_IF_ERROR(comm_.Gather(step_, kControlSequence, mine.Encode(), &gathered));
  std::vector<Control> controls;
  std::vector<tg_word> words;
  std::vector<HomeFigures> figures;
  for (const Bytes& bytes : gathered) {
    Result<Control> control = Control::Decode(bytes, options_.limits.block_tokens);
    if (!control.ok()) return control.status();
    words.push_back(control->word);
    figures.push_back(control->figures);
    controls.push_back(std::move(*control));
  }
  scheduler_.SetFigures(std::move(figures));
  for (uint32_t home = 0; home < controls.size(); ++home) {
    for (const uint32_t block : controls[home].freed) pages_.Drop(home, block);
  }
  (void)fault::Hit("engine.after_exchange");

  if (world_->Decide(words)) {
    comm_.SetWork(std::nullopt);
    Result<bool> flipped = Flip();
    if (!flipped.ok()) return flipped.status();
    if (*flipped) return OkStatus();
  }
  TANGRAM_RETURN_IF_ERROR(Compute(controls, chunks));
  NotePace(controls);
  world_->StepDone();
  ++step_;
  const auto busy = [](const Control& control) {
    return !control.batch.items.empty() || control.figures.waiting > 0;
  };
  ReportLoad(false);
  Pace(std::any_of(controls.begin(), controls.end(), busy),
       std::any_of(controls.begin(), controls.end(),
                   [](const Control& control) { return control.pending; }),
       begun);
  return OkStatus();
}

Status Engine::BringPages(const std::vector<Batch>& batches) {
  std::vector<KvMemory::Pages> all, written;
  for (uint32_t home = 0; home < batches.size(); ++home) {
    for (const BatchItem& item : batches[home].items) {
      const uint32_t first = item.start / shape_.block_tokens;  // that gets tokens
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

Status Engine::Compute(const std::vector<Control>& controls, const std::vector<Chunk>& chunks) {
  const uint32_t me = comm_.rank();
  std::vector<Batch> batches;
  size_t rows = 0;
  for (uint32_t home = 0; home < controls.size(); ++home) {
    const Batch& batch = controls[home].batch;
    rows += batch.Rows();
    batches.push_back(batch);
    if (held_.PagesPerBlock(home, me) == 0) continue;
    for (const BatchItem& item : batch.items) {
      for (const uint32_t block : item.blocks) {
        const auto strips = pages_.Ensure(home, block, held_, me);
        if (!strips.ok()) return strips.status();
      }
    }
  }
  rows_ = rows;
  comm_.SetWork(rows_);
  if (rows == 0) return OkStatus();
  SetPace(controls);
  TANGRAM_RETURN_IF_ERROR(BringPages(batches));

  const tg_model& geometry = world_->model();
  StepContext context{*model_,
                      geometry,
                      *maps_,
                      held_,
                      comm_,
                      pages_,
                      {kv_->base(), shape_.block_tokens, geometry.head_dim},
                      *world_,
                      step_,
                      batches};
  std::vector<uint32_t> tokens;
  for (const Chunk& chunk : chunks) {
    const auto begin = chunk.sequence->tokens.begin() + chunk.start;
    tokens.insert(tokens.end(), begin, begin + chunk.count);
  }
  std::vector<float> x(tokens.size() * geometry.hidden);
  TANGRAM_RETURN_IF_ERROR(model_->Embed(tokens, x));
  std::vector<float> n(x.size());
  for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
    TANGRAM_RETURN_IF_ERROR(AttentionStage(context, layer, x));
    if (maps_->layers[layer].moe_ordinal >= 0) {
      TANGRAM_RETURN_IF_ERROR(experts_.Run(context, layer, x));
    } else {
      model_->MlpNorm(layer, x, n);
      model_->DenseMlp(layer, n, x);
    }
  }
  TANGRAM_RETURN_IF_ERROR(kv_->Flush());
  return Emit(chunks, x);
}

Status Engine::Emit(const std::vector<Chunk>& chunks, std::span<const float> x) {
  (void)fault::Hit("engine.before_emit");
  const size_t hidden = world_->model().hidden, vocab = config_->vocab;
  std::vector<float> last;  // [sampling chunks, H]
  size_t row = 0;
  for (const Chunk& chunk : chunks) {
    row += chunk.count;
    if (!chunk.Samples()) continue;
    last.insert(last.end(), x.begin() + (row - 1) * hidden, x.begin() + row * hidden);
  }
  std::vector<float> logits(last.size() / hidden * vocab);
  if (!last.empty()) model_->Logits(last, logits);
  std::span<const float> next = logits;
  std::vector<v1::Token> tokens;
  for (const Chunk& chunk : chunks) {
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
    token.set_epoch(maps_->epoch);
  }
  TANGRAM_RETURN_IF_ERROR(AwaitPace());
  // Who was left out stands still before its memory goes: what was computed from memory that went
  // is seen here, and never emitted.
  if (world_->stopped()) return Fenced();
  auto token = tokens.begin();
  for (const Chunk& chunk : chunks) {
    const bool samples = chunk.Samples();
    scheduler_.Computed(chunk);
    if (!samples) continue;
    const std::string gateway = chunk.sequence->gateway;
    token->set_finish(scheduler_.Append(chunk.sequence, token->token()));  // may end the sequence
    sink_->Emit(gateway, std::move(*token++));
  }
  return OkStatus();
}

void Engine::Pace(bool work, bool pending, Clock::time_point begun) {
  if (work) {
    idle_turns_ = 0;
    std::this_thread::sleep_until(begun + options_.least_step);
    return;
  }
  // The members pause alike, so an idle world costs a few short wake-ups; a request ends the
  // pause of its own rank, and the others wake within theirs.
  ++idle_turns_;
  const auto longest = pending ? std::chrono::milliseconds(1) : options_.idle_pause;
  inbox_->WaitFor(std::min<std::chrono::milliseconds>(
      longest, std::chrono::milliseconds(1 + idle_turns_ / 50)));
}

void Engine::ReportLoad(bool now) {
  const Clock::time_point time = Clock::now();
  if (!now && time - load_reported_ < kLoadPeriod) return;
  load_reported_ = time;
  v1::Load load;
  load.set_running(static_cast<uint32_t>(scheduler_.running()));
  load.set_waiting(static_cast<uint32_t>(scheduler_.waiting()));
  load.set_kv_free_pages(pages_.free());
  load.set_kv_pages(pages_.total());
  load.set_step(step_);
  v1::RankTelemetry* telemetry = load.mutable_telemetry();
  scheduler_.Measure(std::max(Microseconds(), last_arrival_), telemetry);
  meter_.Fill(telemetry);
  telemetry->set_paced_steps(paced_.counts.steps);
  telemetry->set_pace_overruns(paced_.counts.overruns);
  telemetry->set_pace_cut(paced_.counts.cut);
  tg_engine_stats stats = TG_INIT(tg_engine_stats);
  stats.kv_pages = load.kv_pages();
  stats.kv_free_pages = load.kv_free_pages();
  stats.kv_reserved_tokens = scheduler_.reserved_tokens();
  stats.running = load.running();
  stats.waiting = load.waiting();
  world_->Report(stats);
  sink_->SetLoad(std::move(load));
}

}  // namespace tangram::engine
