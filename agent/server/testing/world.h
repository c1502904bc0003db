// A world in one process: agents with real gRPC over mTLS and real sockets; the driver's calls;
// simulated engines over the C ABI.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "agent/base/testing/hang.h"
#include "agent/client/include/tangram/client.h"
#include "agent/net/testing/certs.h"
#include "agent/server/agent.h"
#include "agent/server/testing/test_memory.h"

namespace tangram::testing {

using net::testing::TestCa;

v1::Geometry TestGeometry();
// Whole experts, dealt in order. last_tensor: in the last layer every expert is on all ranks, one
// bank further.
v1::Layout ExpertLayout(const std::vector<v1::Member>& members, uint64_t epoch, bool last_tensor);

class World {
 public:
  // One agent per entry: its number of ranks.
  explicit World(const std::vector<uint32_t>& ranks, uint64_t memory_bytes = 64 << 20,
                 const std::string& host = "127.0.0.1", v1::Geometry geometry = TestGeometry());
  ~World();

  Agent& agent(size_t i) { return *agents_[i]; }
  size_t size() const { return agents_.size(); }
  size_t ranks_of(size_t i) const { return members_[i].size(); }
  std::string dir() const { return dir_; }
  std::string socket(size_t i) const { return dir_ + "/" + std::to_string(i) + ".sock"; }
  std::string token(size_t i) const;
  const TestCa& ca() const { return ca_; }
  std::vector<v1::Member> members() const;  // in order of agent and device
  std::vector<v1::PeerAddress> peers() const;

  std::unique_ptr<v1::Agent::Stub> Driver(size_t i) const { return Stub(i, "driver"); }
  // A client with another certificate of this CA, or of `ca`.
  std::unique_ptr<v1::Agent::Stub> Stub(size_t i, const std::string& who,
                                        const TestCa* ca = nullptr) const;

  v1::PrepareRequest Request(size_t i, v1::FlipKind kind, uint64_t attempt,
                             const v1::Layout& target) const;
  static v1::Header HeaderOf(uint64_t epoch, uint64_t attempt);
  v1::StatusResponse StatusOf(size_t i) const;
  // Waits until every rank of every agent is in the phase; fails the test after kHang.
  bool WaitPhase(v1::Phase phase) const;
  bool WaitEpoch(uint64_t epoch) const;
  // Prepare, Stage, Permit on all agents; true once all flipped to the target's epoch.
  bool Take(v1::FlipKind kind, uint64_t attempt, const v1::Layout& target);
  bool PrepareAll(v1::FlipKind kind, uint64_t attempt, const v1::Layout& target);
  bool StageAll(const v1::Header& header);

 private:
  const v1::Geometry geometry_;
  TestCa ca_;
  std::string dir_;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::vector<std::vector<v1::Member>> members_;
};

// Options of an engine that accepts any layout. The text must outlive it.
tg_options EngineOptions(const std::string& socket, const char* token, uint32_t device,
                         const char* mesh, const char* frontend);

// Runs one engine per rank in its own thread: polls, steps, votes, and compares every mapped
// granule with its stamp after each flip.
class Engines {
 public:
  explicit Engines(const World& world);
  ~Engines();

  int wrong_granules() const { return wrong_; }
  int checked_granules() const { return checked_; }
  int prepares() const { return prepares_; }
  int aborts() const { return aborts_; }
  uint64_t kv_bytes() const { return kv_bytes_; }
  uint64_t ahead_bytes() const { return ahead_bytes_; }
  int steps() const { return steps_; }
  std::atomic<bool> ahead{false};  // from Prepare on each pulls some KV ahead, once per attempt
  std::atomic<int> done_fd{-1};    // event of their commits; -1: none
  std::atomic<bool> refuse_prepare{false};
  std::atomic<bool> decline{false};
  std::atomic<bool> mute{false};        // no steps: an unresponsive engine
  std::atomic<bool> unprepared{false};  // nor does it confirm Prepare
  // Each engine votes and then abandons the step, with or without its vote. At the gate's go the
  // first one commits before it stops, if `one_commits`.
  std::atomic<bool> break_step{false}, keep_vote{false}, one_commits{false};
  // Replace: the engine of this rank ends and another one attaches. Leave: it ends.
  void Replace(const World& world, size_t rank);
  void Leave(size_t rank);
  // Calls `what` within a step: until it returns, no engine polls or ends its step.
  void InAStep(const std::function<void()>& what);
  tg_code last_poll(size_t rank) const { return last_poll_[rank]; }

 private:
  void Run(std::stop_token stop);
  void Poll(size_t rank);
  // Pulls ahead; `waits` for pulls in progress.
  void StageKv(size_t rank, bool waits);
  void Step();
  void Check(tg_client* client);

  tg_client* Attach(const World& world, size_t rank);
  void Break();

  std::mutex mu_;  // guards clients_, except the order of ranks
  std::vector<tg_client*> clients_;
  std::array<std::atomic<tg_code>, 16> last_poll_{};
  std::atomic<int> wrong_{0}, checked_{0}, prepares_{0}, aborts_{0}, steps_{0};
  std::atomic<uint64_t> kv_bytes_{0}, ahead_bytes_{0};
  enum class Staging { kNone, kWanted, kGoing };
  std::array<Staging, 16> staging_{};
  std::jthread thread_;
};

}  // namespace tangram::testing
