// Takes the ranks of one pod through flips, one attempt at a time (docs/architecture.md,
// section 4): what follows from what is agent/attempt's to say, and is carried out here.
//
// Prepare, Permit, Abort and Retire are answered when they are done and may be repeated
// within their attempt; Stage begins and its progress is read from the status. A refusal
// names what is current, and leaves everything as it was.
//
// Threads: every public function may be called from any thread. Driver calls exclude each
// other; the engines' calls and the peers' do not wait for them.
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
  // True: flipped. `stop`: nobody waits for an outcome that is open any more.
  Result<bool> Abort(const v1::Header& header, const std::string& reason,
                     std::stop_token stop = {});
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
  Status Word(const v1::VoteRequest& request, const std::string& pod);
  Result<v1::OpenPullResponse> OpenPull(const v1::OpenPullRequest& request, const std::string& pod);

  // From the engine of a device.
  Result<Attachment> Attach(uint32_t device);
  // From an engine whose agent died: it hands over what it kept. Verified without a lock, each
  // rank in its caller's thread. kEngine: too late, or not so; kWrongPhase: another call is
  // about it already; what RankMemory::Examine says. After an error the rank is as it was.
  Result<ShownFds> Resume(uint32_t device, const v1::Resume& resume, KeptFds kept,
                          std::stop_token stop);
  // Ranks whose engines may yet resume, for resume_wait at most, or are being verified, for as
  // long as that takes: until then nobody is told anything else. `why` (may be null) says it.
  bool Resuming(std::string* why = nullptr);
  Status Flip(uint32_t device, const v1::EngineFlip& flip);
  // As KvPull in pulls.h.
  Result<std::optional<uint64_t>> KvPull(uint32_t device, const v1::KvPull& pull,
                                         std::stop_token stop);
  void EngineGone(uint32_t device);

  Totals GetTotals();

  // Tokens of each expert that this device's engine routed or executed, [moe layers * experts].
  std::vector<uint64_t> Counters(uint32_t device, TokenCount what);
  // How often the device's engine gave a step up for a rank, [GatePage::kCauses * kDoings].
  std::vector<uint64_t> MissedRanks(uint32_t device);
  v1::ExpertLoadResponse GetLoad();

 private:
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace tangram
