#include "agent/client/client.h"

#include <algorithm>
#include <chrono>

#include "agent/base/limits.h"

namespace tangram {
namespace {

using Clock = std::chrono::steady_clock;
// The poll interval of the page while the agents run the gate themselves.
constexpr int kPageLookMs = 5;

int LeftMs(Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return left > 0 ? static_cast<int>(left) : 0;
}

}  // namespace

Status Client::Send(v1::EngineMessage message) {
  if (!lost_.ok()) return lost_;
  Status sent = channel_->Send(std::move(message));
  if (sent.code() == Code::kUnavailable) lost_ = sent;
  return sent;
}

Result<std::optional<Frame>> Client::Receive(int timeout_ms) {
  if (!lost_.ok()) return lost_;
  auto frame = reader_->Receive(timeout_ms);
  if (!frame.ok()) {
    // Invalid data from the agent ends the connection too: the stream has no frame boundary left.
    lost_ = {Code::kUnavailable, frame.status().message()};
    return lost_;
  }
  return frame;
}

v1::Header Client::HeaderNow(uint64_t attempt) const {
  v1::Header header;
  header.set_world(world_);
  // A joiner is in no epoch yet; it sends the attempt's.
  const bool mine = attempt_ && attempt_->id == attempt;
  header.set_epoch(mine ? attempt_->from_epoch : page_->epoch.load(std::memory_order_acquire));
  header.set_attempt(attempt);
  return header;
}

bool Client::FlippedByAgents() const {
  // A stopped rank flips by a fence, whatever the kind of the attempt.
  return attempt_ && (attempt_->by_agents() || gate_.stopped()) && attempt_->answered &&
         page_->epoch.load(std::memory_order_acquire) == attempt_->target->get()->epoch;
}

void Client::Adopt() {
  attempt_->target->Resolve(weights_.data(), *geometry_);
  previous_ = std::move(current_);  // lives until the next-but-one flip
  current_ = std::move(attempt_->target);
  Forget();
}

void Client::Begin(Attempt attempt) {
  attempt_.emplace(std::move(attempt));
  const std::scoped_lock lock(shared_.mu);
  shared_.attempt = attempt_->id;
  shared_.mapped = attempt_->mapped;
}

void Client::Forget() {
  attempt_.reset();
  const std::scoped_lock lock(shared_.mu);
  shared_.attempt = 0;
  shared_.mapped.reset();
}

Status Client::ReadFrom(std::shared_ptr<FrameChannel> channel) {
  reader_.reset();
  auto reader = Reader::Start(channel, ready_.get(), [this, channel](Frame* frame) {
    return HandleAtOnce(frame, channel);
  });
  if (!reader.ok()) return reader.status();
  channel_ = std::move(channel);
  reader_ = std::move(*reader);
  return OkStatus();
}

bool Client::HandleAtOnce(Frame* frame, const std::shared_ptr<FrameChannel>& channel) {
  if (!frame->fds.empty()) {
    mapper_.Do([this, numbers = frame->message.fd_index(),
                fds = std::make_shared<std::vector<UniqueFd>>(std::move(frame->fds))] {
      TakeDescriptors(numbers, fds.get());
    });
  }
  switch (frame->message.body_case()) {
    case v1::EngineMessage::kMap:
      OnMap(frame->message.map(), channel);
      return true;
    case v1::EngineMessage::kUnmap:
      OnUnmap(frame->message.unmap(), channel);
      return true;
    default:
      return false;
  }
}

Status Client::Poll(int timeout_ms, tg_event* event) {
  *event = {};
  if (device_hangs_ && lost_.ok()) {
    lost_ = {Code::kEngine,
             "the device still computes with the layout before the last flip after " +
                 std::to_string(limits::kDeviceUse.count()) + " ms: its memory cannot be freed"};
  }
  page_->turns.fetch_add(1, std::memory_order_relaxed);
  const auto deadline = Clock::now() + std::chrono::milliseconds(std::max(timeout_ms, 0));
  while (true) {
    std::optional<Frame> frame;
    if (!queue_.empty()) {
      frame = std::move(queue_.front());
      queue_.pop_front();
    } else if (lost_.code() == Code::kUnavailable && !FlippedByAgents()) {
      // Before the new agent is informed: the old agent may have flipped without a report.
      TANGRAM_RETURN_IF_ERROR(Knock());
      EndAttempt(event);
      if (event->kind != TG_EVENT_NONE) return OkStatus();
      continue;
    } else {
      const bool looking = attempt_ && (attempt_->by_agents() || gate_.stopped());
      const int left = LeftMs(deadline);
      auto got = Receive(looking ? std::min(left, kPageLookMs) : left);
      if (!got.ok() && !FlippedByAgents()) return got.status();
      if (got.ok()) frame = std::move(*got);
    }
    if (frame) {
      TANGRAM_RETURN_IF_ERROR(Handle(std::move(*frame), event));
      if (event->kind != TG_EVENT_NONE) return OkStatus();
      continue;
    }
    // The agent flips after this library has reported the attempt's slabs as mapped.
    if (FlippedByAgents()) {
      event->kind = TG_EVENT_FLIPPED;
      event->attempt = attempt_->id;
      event->target_epoch = attempt_->target->get()->epoch;
      event->joining = attempt_->joining;
      event->repair = attempt_->kind == v1::FLIP_KIND_REPAIR;
      Adopt();
      event->target = current();
      return OkStatus();
    }
    if (LeftMs(deadline) == 0) return OkStatus();
  }
}

Status Client::Handle(Frame frame, tg_event* event) {
  switch (frame.message.body_case()) {
    case v1::EngineMessage::kPrepare:
      OnPrepare(frame.message.prepare(), event);
      return OkStatus();
    case v1::EngineMessage::kAbort:
      OnAbort(frame.message.abort(), event);
      return OkStatus();
    case v1::EngineMessage::kRefused:
      lost_ = {Code::kEngine, frame.message.refused().refusal().message()};
      return lost_;
    case v1::EngineMessage::kKvPulled:
      if (kv_staging_) staged_ = std::move(*frame.message.mutable_kv_pulled());
      return OkStatus();
    default:
      // A late reply whose wait has timed out.
      return OkStatus();
  }
}

void Client::OnPrepare(const v1::EnginePrepare& prepare, tg_event* event) {
  const auto refuse = [&](const std::string& why) {
    v1::EngineMessage reply;
    *reply.mutable_prepared()->mutable_header() = prepare.header();
    reply.mutable_prepared()->set_ok(false);
    reply.mutable_prepared()->set_message(why);
    (void)Send(std::move(reply));  // the next Poll reports a lost agent
  };
  if (prepare.header().world() != world_) return refuse("the call is for another world");
  if (attempt_ && attempt_->id == prepare.header().attempt()) return;  // repeated
  if (attempt_) return refuse("attempt " + std::to_string(attempt_->id) + " has not ended");
  if (layout::Sha256(prepare.target()) != prepare.target_hash()) {
    return refuse("target hash does not match the target layout");
  }
  auto layout = layout::Parse(prepare.target());
  if (!layout.ok()) return refuse("target layout: " + layout.status().message());
  auto target = Maps::Build(std::move(*layout), prepare.target_hash(), *geometry_, member_,
                            prepare.peers(), current_.get());
  if (!target.ok()) return refuse("target layout: " + target.status().message());
  Attempt attempt;
  attempt.id = prepare.header().attempt();
  attempt.kind = prepare.kind();
  attempt.from_epoch = prepare.header().epoch();
  attempt.joining = prepare.joining();
  attempt.leaving = prepare.leaving();
  attempt.target = std::move(*target);
  Begin(std::move(attempt));
  event->kind = TG_EVENT_PREPARE;
  event->attempt = attempt_->id;
  event->target_epoch = attempt_->target->get()->epoch;
  event->joining = attempt_->joining;
  event->leaving = attempt_->leaving;
  event->repair = attempt_->kind == v1::FLIP_KIND_REPAIR;
  event->target = attempt_->target->get();
  event->pause_steps = prepare.pause_steps();
}

Status Client::Prepared(uint64_t attempt, bool ok, const char* message) {
  if (!attempt_ || attempt_->id != attempt) {
    return {Code::kWrongPhase, "attempt " + std::to_string(attempt) + " is not being prepared"};
  }
  v1::EngineMessage reply;
  *reply.mutable_prepared()->mutable_header() = HeaderNow(attempt);
  reply.mutable_prepared()->set_ok(ok);
  if (message != nullptr) reply.mutable_prepared()->set_message(message);
  attempt_->answered = ok;
  if (!ok) Forget();
  return Send(std::move(reply));
}

uint64_t Client::PlaceOf(const v1::Mapping& mapping) const {
  if (mapping.dense()) return dense_offset_ + mapping.offset();
  return mapping.bank() * geometry_->bank_pitch() + mapping.offset();
}

Status Client::MapAll(const google::protobuf::RepeatedPtrField<v1::Mapping>& mappings, Undo* undo) {
  for (const v1::Mapping& mapping : mappings) {
    uint64_t bytes = 0;
    for (const v1::Extent& extent : mapping.extents()) bytes += extent.length();
    const uint64_t room =
        mapping.dense() ? weights_.bytes() - dense_offset_ : geometry_->bank_pitch();
    if ((!mapping.dense() && mapping.bank() >= model_.banks) || mapping.offset() > room ||
        bytes > room - mapping.offset()) {
      return {Code::kInvalid, "mapping of " + std::to_string(bytes) + " bytes at " +
                                  std::to_string(mapping.offset()) + " of bank " +
                                  std::to_string(mapping.bank()) + " exceeds its range"};
    }
    TANGRAM_RETURN_IF_ERROR(weights_.Map(PlaceOf(mapping), mapping.extents(), descriptors_));
    if (undo != nullptr) undo->emplace_back(PlaceOf(mapping), bytes);
  }
  return OkStatus();
}

void Client::OnMap(const v1::EngineMap& map, const std::shared_ptr<FrameChannel>& channel) {
  v1::EngineMessage reply;
  *reply.mutable_mapped()->mutable_header() = map.header();
  std::shared_ptr<Undo> mapped;
  {
    const std::scoped_lock lock(shared_.mu);
    if (shared_.attempt == map.header().attempt()) mapped = shared_.mapped;
  }
  if (mapped == nullptr) {
    reply.mutable_mapped()->set_message("the attempt is not prepared by this engine");
    (void)channel->Send(std::move(reply));
    return;
  }
  mapper_.Do([this, map, reply, undo = std::move(mapped), channel]() mutable {
    const Status status = MapAll(map.mappings(), undo.get());
    reply.mutable_mapped()->set_ok(status.ok());
    reply.mutable_mapped()->set_message(status.message());
    (void)channel->Send(std::move(reply));  // the next Poll reports a lost agent
  });
}

void Client::OnUnmap(const v1::EngineUnmap& unmap, const std::shared_ptr<FrameChannel>& channel) {
  std::shared_ptr<UniqueFd> used;
  {
    const std::scoped_lock lock(shared_.mu);
    used = shared_.used;
  }
  mapper_.Do([this, unmap, used = std::move(used), channel] {
    // Unmaps nothing under an unresponsive device; the agent learns of it when the engine ends.
    if (*used && !mapper_.Await(used->get(), limits::kDeviceUse)) {
      device_hangs_ = true;
      return;
    }
    used->reset();
    for (const v1::Mapping& mapping : unmap.mappings()) {
      uint64_t bytes = 0;
      for (const v1::Extent& extent : mapping.extents()) bytes += extent.length();
      // A range outside the region is the agent's mistake; memory that stays mapped is only read.
      (void)weights_.Unmap(PlaceOf(mapping), bytes);
    }
    CloseUnused(channel.get());
    v1::EngineMessage reply;
    *reply.mutable_unmapped()->mutable_header() = unmap.header();
    (void)channel->Send(std::move(reply));
  });
}

void Client::UnmapAll(std::shared_ptr<Undo> mapped) {
  mapper_.Do([this, mapped = std::move(mapped), channel = channel_] {
    for (const auto& [offset, bytes] : *mapped) (void)weights_.Unmap(offset, bytes);
    CloseUnused(channel.get());
  });
}

void Client::TakeDescriptors(const google::protobuf::RepeatedField<uint32_t>& numbers,
                             std::vector<UniqueFd>* fds) {
  for (size_t i = 0; i < fds->size(); ++i) {
    descriptors_.Add(numbers.Get(static_cast<int>(i)), std::move((*fds)[i]));
  }
}

void Client::CloseUnused(FrameChannel* channel) {
  v1::EngineMessage message;
  for (const auto& [number, descriptor] : descriptors_.all()) {
    if (!pinned_.contains(number) && !weights_.Uses(number)) {
      message.mutable_closed()->add_fd_index(number);
    }
  }
  if (!message.has_closed()) return;
  for (const uint32_t number : message.closed().fd_index()) descriptors_.Close(number);
  (void)channel->Send(std::move(message));  // the next Poll reports a lost agent
}

void Client::OnAbort(const v1::EngineAbort& abort, tg_event* event) {
  if (!attempt_ || attempt_->id != abort.header().attempt()) return;
  if (!abort.keep_mapped()) UnmapAll(attempt_->mapped);
  event->kind = TG_EVENT_ABORT;
  event->attempt = attempt_->id;
  event->target_epoch = attempt_->target->get()->epoch;
  Forget();
}

GateVote Client::Word() {
  // The agents hold the gate while no engine steps; a lost agent cannot commit.
  const bool mine =
      attempt_ && attempt_->answered && lost_.ok() && !attempt_->by_agents() && !gate_.stopped();
  if (!mine) return gate_.Word(0, 0, {});
  return gate_.Word(attempt_->id, attempt_->target->get()->epoch, attempt_->target->hash());
}

bool Client::Decide(std::span<const GateVote> words) {
  return gate_.Decide(words, current() ? current()->world_size : 0);
}

Result<v1::EngineMessage> Client::Await(v1::EngineMessage::BodyCase kind,
                                        std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (true) {
    auto frame = Receive(LeftMs(deadline));
    if (!frame.ok()) return frame.status();
    if (frame->has_value()) {
      if ((*frame)->message.body_case() == kind) return std::move((*frame)->message);
      queue_.push_back(std::move(**frame));
      continue;
    }
    if (LeftMs(deadline) == 0) {
      return Status{Code::kUnavailable,
                    "no reply of the agent within " + std::to_string(limit.count()) + " ms"};
    }
  }
}

Status Client::Commit(UniqueFd used) {
  if (!attempt_ || !gate_.latched()) {
    return {Code::kWrongPhase, "commit without a GO of the gate"};
  }
  v1::EngineMessage message;
  *message.mutable_flip()->mutable_header() = HeaderNow(attempt_->id);
  message.mutable_flip()->set_target_hash(attempt_->target->hash());
  TANGRAM_RETURN_IF_ERROR(Send(std::move(message)));
  auto reply = Await(v1::EngineMessage::kFlipped, limits::kCommit);
  // An agent that died after its flip could not reply, but the page has the new epoch.
  const bool flipped =
      page_->epoch.load(std::memory_order_acquire) == attempt_->target->get()->epoch;
  if (!reply.ok() && !flipped) return reply.status();
  if (reply.ok() && !reply->flipped().ok()) return {Code::kEngine, reply->flipped().message()};
  Adopt();
  const std::scoped_lock lock(shared_.mu);
  shared_.used = std::make_shared<UniqueFd>(std::move(used));
  return OkStatus();
}

Status Client::Join(int timeout_ms) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  if (!attempt_ || !attempt_->answered) return {Code::kWrongPhase, "no prepared attempt to join"};
  const uint64_t target = attempt_->target->get()->epoch;
  while (Word().epoch != target || !gate_.latched()) {
    const int left = LeftMs(deadline);
    if (left == 0) return {Code::kWrongPhase, "the agent has no permit yet"};
    // Polls the page. The socket only shows that the agent is alive (an abort is queued).
    auto frame = Receive(std::min(left, kPageLookMs));
    if (!frame.ok()) return frame.status();
    if (!frame->has_value()) continue;
    const bool abort = (*frame)->message.has_abort();
    queue_.push_back(std::move(**frame));
    if (abort) return {Code::kEngine, "the attempt was aborted"};
  }
  return Commit();
}

Result<v1::EngineMessage> Client::PullOf(std::span<const tg_kv_move> moves) const {
  v1::EngineMessage message;
  v1::KvPull* pull = message.mutable_kv_pull();
  *pull->mutable_header() = HeaderNow(attempt_ ? attempt_->id : 0);
  for (const tg_kv_move& move : moves) {
    if (move.target_offset > model_.kv_bytes ||
        move.length > model_.kv_bytes - move.target_offset) {
      return Status{Code::kInvalid, "KV move of " + std::to_string(move.length) + " bytes to " +
                                        std::to_string(move.target_offset) + ", the region has " +
                                        std::to_string(model_.kv_bytes)};
    }
    pull->add_source_rank(move.source_rank);
    pull->add_source_offset(move.source_offset);
    pull->add_target_offset(move.target_offset);
    pull->add_length(move.length);
  }
  return message;
}

Status Client::KvPull(std::span<const tg_kv_move> moves, uint64_t* bytes) {
  if (bytes != nullptr) *bytes = 0;
  TANGRAM_RETURN_IF_ERROR(KvBegin(moves, false));
  bool later = false;  // only for copies ahead of a flip
  return KvStaged(static_cast<int>(limits::kKvPullAll.count()), bytes, &later);
}

Status Client::KvBegin(std::span<const tg_kv_move> moves, bool ahead) {
  if (kv_staging_) {
    return {Code::kInvalid, "KV is being copied; wait for its end with tg_kv_staged first"};
  }
  if (ahead && !attempt_) {
    return {Code::kInvalid, "no attempt is prepared that KV could be copied for"};
  }
  auto message = PullOf(moves);
  if (!message.ok()) return message.status();
  message->mutable_kv_pull()->set_ahead(ahead);
  TANGRAM_RETURN_IF_ERROR(Send(std::move(*message)));
  kv_staging_ = true;
  return OkStatus();
}

Status Client::KvStaged(int timeout_ms, uint64_t* bytes, bool* later) {
  if (bytes != nullptr) *bytes = 0;
  *later = false;
  if (!kv_staging_) return {Code::kInvalid, "no KV is being copied"};
  const auto taken = [&](const v1::KvPulled& pulled) -> Status {
    kv_staging_ = false;
    if (!pulled.ok()) return {Code::kEngine, pulled.message()};
    *later = pulled.later();
    if (bytes != nullptr) *bytes = pulled.bytes();
    return OkStatus();
  };
  if (staged_) return taken(*std::exchange(staged_, std::nullopt));  // Poll received it
  const auto queued = std::find_if(queue_.begin(), queue_.end(), [](const Frame& frame) {
    return frame.message.has_kv_pulled();
  });
  if (queued != queue_.end()) {  // another wait received it
    const v1::KvPulled pulled = queued->message.kv_pulled();
    queue_.erase(queued);
    return taken(pulled);
  }
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (true) {
    auto frame = Receive(LeftMs(deadline));
    if (!frame.ok()) {
      kv_staging_ = false;  // a lost agent copies no more
      return frame.status();
    }
    if (frame->has_value()) {
      if ((*frame)->message.has_kv_pulled()) return taken((*frame)->message.kv_pulled());
      queue_.push_back(std::move(**frame));
      continue;
    }
    if (LeftMs(deadline) == 0) return {Code::kWrongPhase, "KV is still being copied"};
  }
}

void Client::Count(TokenCount what, uint32_t moe_ordinal, uint32_t expert, uint64_t tokens) {
  if (moe_ordinal >= model_.moe_layers || expert >= model_.experts) return;
  counted_ = counted_ || tokens > 0;
  GateCounters(page_, what, model_.moe_layers,
               model_.experts)[uint64_t{moe_ordinal} * model_.experts + expert]
      .fetch_add(tokens, std::memory_order_relaxed);
}

void Client::StepDone() {
  const auto now = std::chrono::steady_clock::now();
  if (!std::exchange(counted_, false)) {
    page_->step_ns.store(0, std::memory_order_relaxed);
    stepped_.reset();
  } else if (const auto before = std::exchange(stepped_, now)) {
    const auto time = static_cast<uint64_t>(std::chrono::nanoseconds(now - *before).count());
    const auto hear = [&](std::atomic<uint64_t>* mean, uint64_t of) {
      const uint64_t was = mean->load(std::memory_order_relaxed);
      mean->store(was == 0 ? time : was + time / of - was / of, std::memory_order_relaxed);
    };
    hear(&page_->step_ns, 4);
    hear(&page_->usual_step_ns, 64);
  }
  page_->steps.fetch_add(1, std::memory_order_release);
}

void Client::Report(const tg_engine_stats& stats) {
  page_->kv_pages.store(stats.kv_pages, std::memory_order_relaxed);
  page_->kv_free_pages.store(stats.kv_free_pages, std::memory_order_relaxed);
  page_->kv_reserved_tokens.store(stats.kv_reserved_tokens, std::memory_order_relaxed);
  page_->running.store(stats.running, std::memory_order_relaxed);
  page_->waiting.store(stats.waiting, std::memory_order_relaxed);
}

}  // namespace tangram
