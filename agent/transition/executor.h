// Takes the ranks of one pod through flips, one attempt at a time (docs/architecture.md, section
// 4). agent/attempt decides the effects of each event; this folder carries them out.
//
// Prepare, Permit, Abort and Retire reply when they are done and may be repeated within their
// attempt. Stage only begins; its progress is in the status. A rejection names the current state
// and changes nothing.
//
// Threads: every public function may be called from any thread. Driver calls exclude each other;
// calls of engines and peers do not wait for them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "agent/gate/gate.h"
#include "agent/layout/geometry.h"
#include "agent/transition/engines.h"
#include "agent/transition/peers.h"
#include "agent/transition/types.h"

namespace tangram {

class Executor {
 public:
  using Clock = ExecutorClock;
  using Options = ExecutorOptions;
  using Local = LocalRank;
  using Totals = ExecutorTotals;

  // Ranks are by device, from 0.
  Executor(Options options, layout::GeometryView geometry, std::vector<Local> ranks,
           Engines* engines, Peers* peers);
  ~Executor();

  // Sets the gRPC address of this agent, host:port, once it listens.
  void SetAddress(const std::string& agent);
  // Sets why the checkpoint is no longer readable; empty: it is readable.
  void SetCheckpointError(const std::string& why);

  // From the driver.
  // kUnavailable, with everything undone, if `stop` is requested during the wait for an engine.
  Status Prepare(const v1::PrepareRequest& request, std::stop_token stop = {});
  Status Stage(const v1::Header& header);
  Status Permit(const v1::Header& header);
  // kUnavailable: an engine has voted and the outcome is not known yet; retry. True: flipped.
  // `stop`: the caller no longer waits for an unknown outcome.
  Result<bool> Abort(const v1::Header& header, const std::string& reason,
                     std::stop_token stop = {});
  Status Retire(const v1::Header& header);
  // From the driver after a fence: the outcome of an attempt. All ranks must be stopped
  // (kWrongPhase: one is not). Repeated calls get the same reply.
  Status Resolve(const v1::ResolveRequest& request);
  // Releases these members, or all when the world ends: frees memory, evicts engines, and gives the
  // ranks new member ids.
  Status Release(const v1::ReleaseRequest& request);
  // `asked`: with layout and inventories, except those the caller knows; null: without both.
  v1::StatusResponse GetStatus(const v1::StatusRequest* asked);
  // Waits until something changed since `seen` (updated), at most `limit`.
  bool WaitChange(uint64_t* seen, std::chrono::milliseconds limit);
  // For rejections: the world, the epoch, the highest attempt.
  v1::Header Current();

  // From other agents. `pod`: of the caller's certificate.
  Result<v1::QueryResponse> Query(const v1::QueryRequest& request);
  Status Word(const v1::VoteRequest& request, const std::string& pod);
  Result<v1::OpenPullResponse> OpenPull(const v1::OpenPullRequest& request, const std::string& pod);

  // From the engine of a device.
  Result<Attachment> Attach(uint32_t device);
  // From an engine whose agent died: it hands over its memory. Each rank is verified in its
  // caller's thread, without a lock. kEngine: too late or invalid; kWrongPhase: another call
  // verifies it; errors of RankMemory::Examine. After an error the rank is unchanged.
  Result<ShownFds> Resume(uint32_t device, const v1::Resume& resume, KeptFds kept,
                          std::stop_token stop);
  // Whether ranks wait for engines to resume (resume_wait at most) or are verified (any time). Then
  // the driver gets no other reply. `why` (may be null) receives the reason.
  bool Resuming(std::string* why = nullptr);
  Status Flip(uint32_t device, const v1::EngineFlip& flip);
  // As KvPull in pulls.h.
  Result<std::optional<uint64_t>> KvPull(uint32_t device, const v1::KvPull& pull,
                                         std::stop_token stop);
  void EngineGone(uint32_t device);

  Totals GetTotals();

  // Tokens of each expert that this device's engine routed or executed, [moe layers * experts].
  std::vector<uint64_t> Counters(uint32_t device, TokenCount what);
  // Steps that the device's engine abandoned because of a rank, [GatePage::kCauses * kDoings].
  std::vector<uint64_t> MissedRanks(uint32_t device);
  v1::ExpertLoadResponse GetLoad();

 private:
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace tangram
