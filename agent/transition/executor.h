// Takes the ranks of one pod through flips, one attempt at a time (docs/architecture.md,
// section 4):
//
//   Idle -> Prepared -> Staging -> Staged -> Permitted -> Flipped -> Idle
//              any of the first four -> Failed -> Abort -> Idle
//
// Prepare, Permit, Abort and Retire are answered when they are done and may be repeated
// within their attempt; Stage begins and its progress is read from the status. A refusal
// names what is current, and leaves everything as it was.
//
// Threads: every public function may be called from any thread. Driver calls exclude each
// other; the engines' calls and the peers' do not wait for them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "agent/gate/gate.h"
#include "agent/layout/layout.h"
#include "agent/layout/owners.h"
#include "agent/store/rank_memory.h"
#include "agent/transition/engines.h"
#include "agent/transition/peers.h"

namespace tangram {

class Executor {
 public:
  using Clock = std::chrono::steady_clock;

  struct Options {
    std::string world;
    std::string pod;  // the pod's name: of its members, and in its certificate
    std::string revision;
    std::string config_json;                       // of the checkpoint, for engines
    v1::PeerAddress address;                       // data, shared; `agent` comes by SetAddress
    std::chrono::milliseconds abort_wait{10'000};  // for an engine that gave its word
    // A staged attempt of which the driver says nothing for so long: ask the peers.
    std::chrono::milliseconds permit_wait{2'000};
    // An agent died here before: its engines may still hold the ranks, for so long at most.
    bool after_death = false;
    std::chrono::milliseconds resume_wait{20'000};
    std::function<Clock::time_point()> now = Clock::now;  // for resume_wait
  };
  struct Local {
    v1::Member member;
    RankMemory* memory = nullptr;  // outlives the executor
  };

  // Ranks are by device, from 0.
  Executor(Options options, layout::GeometryView geometry, std::vector<Local> ranks,
           Engines* engines, Peers* peers);
  ~Executor();

  // Where this agent's gRPC listens, host:port: known once it does.
  void SetAddress(const std::string& agent);
  // Why the checkpoint cannot be read any more; empty: it can.
  void SetCheckpointError(const std::string& why);

  // From the driver.
  // Undone, kUnavailable, if `stop` comes while an engine is waited for.
  Status Prepare(const v1::PrepareRequest& request, std::stop_token stop = {});
  Status Stage(const v1::Header& header);
  Status Permit(const v1::Header& header);
  // kUnavailable: an engine gave its word and its outcome is not known yet; ask again.
  Result<bool> Abort(const v1::Header& header, const std::string& reason);  // true: flipped
  Status Retire(const v1::Header& header);
  // After a fence, from the driver: what became of an attempt, for ranks that all stand still
  // (kWrongPhase: one does not). Repeated calls are answered alike.
  Status Resolve(const v1::ResolveRequest& request);
  // These members, or all when the world ends, are none any more: memory and engine go, the
  // rank gets a new member id.
  Status Release(const v1::ReleaseRequest& request);
  // `asked`: with the layout and the inventories, but for what the caller knows; null: without.
  v1::StatusResponse GetStatus(const v1::StatusRequest* asked);
  // Waits until something changed since `seen` (updated), at most `limit`.
  bool WaitChange(uint64_t* seen, std::chrono::milliseconds limit);
  // What a refusal tells: the world, the epoch, the highest attempt.
  v1::Header Current();

  // From other agents. `pod`: of the caller's certificate.
  Result<v1::QueryResponse> Query(const v1::QueryRequest& request);
  Status Word(const v1::WordRequest& request, const std::string& pod);
  Result<v1::OpenPullResponse> OpenPull(const v1::OpenPullRequest& request, const std::string& pod);

  // From the engine of a device.
  struct Attachment {
    v1::Attached message;
    std::vector<int> fds;  // weights, kv, control
  };
  Result<Attachment> Attach(uint32_t device);
  // From an engine whose agent died: it hands over what it kept. Verified without a lock, each
  // rank in its caller's thread. kEngine: too late, or not so; kWrongPhase: another call is
  // about it already; what RankMemory::Examine says. After an error the rank is as it was.
  Status Resume(uint32_t device, const v1::Resume& resume, std::vector<UniqueFd> fds,
                std::stop_token stop);
  // Ranks whose engines may yet resume, for resume_wait at most, or are being verified, for as
  // long as that takes: until then nobody is told anything else. `why` (may be null) says it.
  bool Resuming(std::string* why = nullptr);
  Status Flip(uint32_t device, const v1::EngineFlip& flip);
  Result<uint64_t> KvPull(uint32_t device, const v1::KvPull& pull);
  void EngineGone(uint32_t device);

  // What has been done since the start; only grows.
  struct Totals {
    uint64_t local = 0, shared = 0, tcp = 0, checkpoint = 0, kv = 0;  // bytes of ended attempts
    uint64_t corrupt = 0;                                             // pulls with wrong bytes
    double prepare_seconds = 0, stage_seconds = 0, flip_seconds = 0;
    std::map<std::string, uint64_t> outcomes;  // flipped, aborted, refused
  };
  Totals GetTotals();

  // Tokens of each expert that this device's engine routed or executed, [moe layers * experts].
  std::vector<uint64_t> Counters(uint32_t device, TokenCount what);
  v1::LoadResponse GetLoad();

 private:
  // A local rank, and where it is.
  struct Rank {
    v1::Member member;
    RankMemory* memory = nullptr;
    AgentGate gate;
    std::shared_ptr<const v1::Layout> layout;  // in force here; null: no member
    int32_t rank = -1;                         // in it
    uint64_t incarnation = 0;                  // of the engine that prepared the attempt
    bool fresh = false;                        // its engine attached after the last flip
    bool awaited = false;                      // its engine may resume
    bool verifying = false;                    // and what it kept is being looked at
    bool removed = false;                      // by a repair; released when that retires
  };
  // What one rank does in an attempt.
  struct Part {
    v1::RankPart part;
    int32_t target_rank = -1;
    bool joining = false;
    bool leaving = false;
    bool flipped = false;
    StageProgress progress;
    std::atomic<uint64_t> kv_bytes{0};
  };
  struct Attempt {
    v1::PrepareRequest request;
    std::string request_hash;
    uint64_t id = 0;
    v1::FlipKind kind = v1::FLIP_KIND_UNSPECIFIED;
    std::shared_ptr<const v1::Layout> target;
    std::string target_hash;
    std::optional<layout::Owners> owners;  // of the target
    v1::Phase phase = v1::PHASE_IDLE;
    std::string error;
    std::map<uint32_t, Part> parts;  // by device
    std::set<uint32_t> words;        // by agents: ranks that gave theirs
    bool contributed = false;        // by agents: my words are out
    bool held = false;               // no flip by words until the outcome is told
    bool carries_kv = false;
    Clock::time_point begun, permitted;
    double prepare_seconds = 0, stage_seconds = 0, flip_seconds = 0;
    // No engine steps: the agents exchange the words.
    bool by_agents() const { return kind == v1::FLIP_KIND_FIRST || kind == v1::FLIP_KIND_REPAIR; }
    std::vector<v1::PeerAddress> peers() const {
      return {request.peers().begin(), request.peers().end()};
    }
  };
  using AttemptPtr = std::shared_ptr<Attempt>;

  // prepare.cc
  Status CheckPrepare(const v1::PrepareRequest& request);
  Result<AttemptPtr> Build(const v1::PrepareRequest& request);
  Status FindParts(Attempt* attempt);
  Status CheckEngines(const Attempt& attempt);
  Status PrepareEngines(Attempt* attempt, std::vector<uint32_t>* asked,
                        const std::stop_token& stop);
  // executor.cc
  Status CheckCurrent(const v1::Header& header, const char* call);
  Status PermitLocked(Attempt* attempt);
  void RunStage(AttemptPtr attempt, std::stop_token stop);
  Status StagePart(Attempt* attempt, uint32_t device, std::stop_token stop);
  void Fail(Attempt* attempt, const std::string& error);
  void Changed();
  v1::Header HeaderOf(const Attempt& attempt) const;
  uint64_t EpochLocked() const;
  std::shared_ptr<const v1::Layout> LayoutLocked() const;
  // Its hash, reckoned once for each layout in force.
  const std::string& HashLocked(const std::shared_ptr<const v1::Layout>& layout);
  // end.cc
  Status FlipLocked(Attempt* attempt, uint32_t device, bool by_agents);
  bool AnyFlipped(const Attempt& attempt) const;
  bool TryWithdraw(Attempt* attempt);
  std::set<std::string> OtherAgents(const Attempt& attempt);
  enum class PeersSay { kNothing, kBurned, kFlipped };
  PeersSay AskPeers(const Attempt& attempt);
  void CountLocked(const Attempt& attempt, const char* outcome);
  void Release(const AttemptPtr& attempt, const std::string& reason, bool keep = false);
  // first.cc
  void RunWords(AttemptPtr attempt, std::stop_token stop);
  void FlipByWordsLocked(Attempt* attempt);
  // repair.cc
  void AwaitPermit(const AttemptPtr& attempt, const std::stop_token& stop);
  Status ForwardLocked(Attempt* attempt);
  void KeepFlipped(const AttemptPtr& attempt);
  void ReleaseRank(uint32_t device, const std::string& reason);
  bool StoppedLocked(const Attempt& attempt, std::string* who) const;
  // resume.cc
  Status CheckResume(uint32_t device, const v1::Resume& resume);
  Result<std::unique_ptr<RankMemory::Adoption>> Examine(RankMemory* memory,
                                                        const v1::Resume& resume, int32_t* rank,
                                                        std::vector<UniqueFd> fds,
                                                        std::stop_token stop) const;
  // pulls.cc
  static bool CarriesKv(const Attempt& attempt, const v1::Layout* base);
  Status CheckPull(const v1::OpenPullRequest& request, const Attempt& attempt,
                   const std::string& pod) const;
  // status.cc
  void FillRank(uint32_t device, const EngineInfo& engine, const v1::StatusRequest* asked,
                v1::RankStatus* out);

  const Options options_;
  const layout::GeometryView geometry_;
  Engines* const engines_;
  Peers* const peers_;

  std::mutex call_mu_;  // one driver call at a time; taken before mu_
  mutable std::mutex mu_;
  std::condition_variable changed_;
  uint64_t version_ = 1;
  std::vector<Rank> ranks_;
  Clock::time_point resume_until_{};
  AttemptPtr attempt_;  // under way
  AttemptPtr last_;     // the one before, for its record
  uint64_t highest_ = 0;
  v1::PeerAddress address_;
  std::string checkpoint_error_;
  Totals totals_;
  std::set<uint64_t> flipped_;                // attempts that did
  std::vector<v1::PeerAddress> peers_now_;    // of the layout in force
  std::shared_ptr<const v1::Layout> hashed_;  // HashLocked
  std::string hash_;
  std::jthread stager_, words_;
};

}  // namespace tangram
