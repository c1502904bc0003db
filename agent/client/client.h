// The protocol of an engine's client: the calls of client.h, with C++ types. One thread, except
// Count() and Report(), which any thread may call. A second thread (Reader) reads the agent's
// messages, and a third (Mapper) makes the slow kernel calls.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "agent/client/include/tangram/client.h"
#include "agent/client/mapper.h"
#include "agent/client/maps.h"
#include "agent/client/reader.h"
#include "agent/client/regions.h"
#include "agent/gate/frame.h"
#include "agent/gate/gate.h"

namespace tangram {

class Client {
 public:
  // kUnauthenticated, kEngine, ...: rejected; kWrongPhase: not now, try again; kUnavailable: no
  // agent is listening.
  static Result<std::unique_ptr<Client>> Attach(const tg_options& options);

  const tg_model& model() const { return model_; }
  const std::vector<tg_tensor>& dense() const { return dense_tensors_; }
  const tg_maps* current() const { return current_ ? current_->get() : nullptr; }
  // Readable when Poll may have an event.
  int fd() const { return ready_.get(); }

  // TG_EVENT_NONE in *event: none. kUnavailable: the agent is gone. Each call checks for a new
  // agent, and hands it the state that this library kept.
  Status Poll(int timeout_ms, tg_event* event);
  Status Prepared(uint64_t attempt, bool ok, const char* message);

  GateVote Word();
  bool Decide(std::span<const GateVote> words);
  void Decline(const char* reason) { gate_.Decline(reason); }
  void Stop(bool keep_vote) { gate_.Stop(keep_vote); }
  void SetMissed(std::span<const GateMissed> missed) { gate_.SetMissed(missed); }
  void SetUnreachable(std::span<const uint32_t> ranks) { gate_.SetUnreachable(ranks); }
  bool stopped() const { return gate_.stopped(); }
  // `used`, if valid: the previous layout's memory stays mapped until it is readable.
  Status Commit(UniqueFd used = {});
  Status Join(int timeout_ms);

  Status KvPull(std::span<const tg_kv_move> moves, uint64_t* bytes);
  // The same without waiting, in a flip or ahead of one.
  Status KvBegin(std::span<const tg_kv_move> moves, bool ahead);
  // kWrongPhase: it is in progress.
  Status KvStaged(int timeout_ms, uint64_t* bytes, bool* later);

  void StepDone();
  void Count(TokenCount what, uint32_t moe_ordinal, uint32_t expert, uint64_t tokens);
  void Report(const tg_engine_stats& stats);

 private:
  // The ranges that an abort unmaps: offset, bytes. Used by the mapper.
  using Undo = std::vector<std::pair<uint64_t, uint64_t>>;
  // The attempt that this engine prepares.
  struct Attempt {
    uint64_t id = 0;
    v1::FlipKind kind = v1::FLIP_KIND_UNSPECIFIED;
    uint64_t from_epoch = 0;
    bool joining = false;
    bool leaving = false;
    bool answered = false;
    // Engines take no steps, so the agents exchange the votes.
    bool by_agents() const { return kind == v1::FLIP_KIND_FIRST || kind == v1::FLIP_KIND_REPAIR; }
    std::unique_ptr<Maps> target;
    std::shared_ptr<Undo> mapped = std::make_shared<Undo>();
  };
  // The reader's view of the attempt and of the last commit.
  struct Shared {
    std::mutex mu;
    uint64_t attempt = 0;  // 0: none
    std::shared_ptr<Undo> mapped;
    std::shared_ptr<UniqueFd> used = std::make_shared<UniqueFd>();
  };

  explicit Client(const tg_options& options);
  v1::EngineMessage AttachMessage() const;
  // In resume.cc. Ok: connected to an agent again.
  Status Knock();
  v1::Resume ResumeNow() const;
  // Ends the dead agent's attempt: it was aborted, or was a flip that only the page shows.
  void EndAttempt(tg_event* event);
  Status Open(const v1::Attached& attached);
  Status OpenModel(const v1::Attached& attached);
  // Handles a message alone if it can; fills *event if the engine has to act.
  Status Handle(Frame frame, tg_event* event);
  void UnmapAll(std::shared_ptr<Undo> mapped);
  void Begin(Attempt attempt);
  void Forget();  // the attempt
  // Replaces the connection.
  Status ReadFrom(std::shared_ptr<FrameChannel> channel);
  // For the reader: handles messages that need no step of the engine.
  bool HandleAtOnce(Frame* frame, const std::shared_ptr<FrameChannel>& channel);
  // For the mapper: takes the descriptors that came with a frame.
  void TakeDescriptors(const google::protobuf::RepeatedField<uint32_t>& numbers,
                       std::vector<UniqueFd>* fds);
  // For the mapper: closes descriptors of weights without mappings, and reports that.
  void CloseUnused(FrameChannel* channel);
  void OnPrepare(const v1::EnginePrepare& prepare, tg_event* event);
  void OnMap(const v1::EngineMap& map, const std::shared_ptr<FrameChannel>& channel);
  void OnUnmap(const v1::EngineUnmap& unmap, const std::shared_ptr<FrameChannel>& channel);
  void OnAbort(const v1::EngineAbort& abort, tg_event* event);
  Status MapAll(const google::protobuf::RepeatedPtrField<v1::Mapping>& mappings, Undo* undo);
  // Waits for a reply of this kind; everything else is queued for Poll.
  Result<v1::EngineMessage> Await(v1::EngineMessage::BodyCase kind,
                                  std::chrono::milliseconds limit);
  Result<std::optional<Frame>> Receive(int timeout_ms);
  Status Send(v1::EngineMessage message);
  // The message for a pull of these moves.
  Result<v1::EngineMessage> PullOf(std::span<const tg_kv_move> moves) const;
  void Adopt();
  bool FlippedByAgents() const;
  v1::Header HeaderNow(uint64_t attempt) const;
  uint64_t PlaceOf(const v1::Mapping& mapping) const;

  const UniqueFd ready_;
  const std::string socket_path_, token_, mesh_, frontend_;
  const std::string cuda_driver_;  // empty: the default
  const uint32_t device_, kv_block_tokens_;
  v1::EngineCapabilities capabilities_;
  std::shared_ptr<FrameChannel> channel_;
  std::unique_ptr<FrameChannel> knocking_;  // to a new agent that has not replied yet
  std::chrono::steady_clock::time_point knock_at_{};
  std::deque<Frame> queue_;
  Status lost_;                  // set once the agent is gone
  DescriptorTable descriptors_;  // the mapper's, after the attach
  std::set<uint32_t> pinned_;    // of KV and control
  // Banks first, then the dense region, in one range: a mapping is one offset. The mapper owns the
  // mappings in `weights_`, after the attach; its addresses never change.
  Region weights_, kv_, control_;
  uint64_t dense_offset_ = 0;
  GatePage* page_ = nullptr;
  // The time of the previous step, if it had work; and whether this one has.
  std::optional<std::chrono::steady_clock::time_point> stepped_;
  bool counted_ = false;
  uint64_t counters_ = 0;
  EngineGate gate_;
  std::optional<layout::GeometryView> geometry_;
  std::string world_, member_, config_, platform_;
  tg_model model_{};
  std::vector<tg_section> sections_;
  std::vector<tg_tensor> dense_tensors_;
  std::vector<std::string> dense_names_;
  std::unique_ptr<Maps> current_, previous_;
  std::optional<Attempt> attempt_;
  bool kv_staging_ = false;  // a pull was begun, and its end not reported yet
  std::optional<v1::KvPulled> staged_;
  Shared shared_;
  std::atomic<bool> device_hangs_{false};  // set by the mapper, reported by Poll
  Mapper mapper_;
  std::unique_ptr<Reader> reader_;  // last member: destroyed first, then the mapper
};

}  // namespace tangram
