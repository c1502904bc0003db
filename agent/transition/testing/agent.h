// An executor over real stores, with simulated engines and other agents. For tests.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "agent/store/testing/world.h"
#include "agent/transition/executor.h"
#include "agent/transition/testing/hooked_memory.h"

namespace tangram::testing {

// Engines that agree to everything, unless `prepare` is set.
class YesEngines final : public Engines {
 public:
  EngineInfo Info(uint32_t) override {
    EngineInfo info;
    info.attached = true;
    info.incarnation = 1;
    info.capabilities = capabilities;
    return info;
  }
  Status Prepare(uint32_t, const v1::EnginePrepare& asked, std::stop_token) override {
    return prepare ? prepare(asked) : OkStatus();
  }
  Status Map(uint32_t, const v1::Header&, EngineMappings, std::stop_token) override {
    return OkStatus();
  }
  Status Unmap(uint32_t, const v1::EngineUnmap&) override { return OkStatus(); }
  void Abort(uint32_t, const v1::EngineAbort&) override {}
  void Dismiss(uint32_t, const std::string&) override {}

  v1::EngineCapabilities capabilities;                      // of each; set before calls
  std::function<Status(const v1::EnginePrepare&)> prepare;  // result of each call; set before it
};

// Other agents: they accept every vote, and answer queries with `says` (nothing: unreachable),
// except while they hang.
class SlowPeers final : public Peers {
 public:
  void Query(const std::string&, const v1::QueryRequest&, std::stop_token,
             Answered answered) override {
    const std::scoped_lock lock(mu_);
    ++asked_;
    changed_.notify_all();
    answers_.emplace_back([this, answered = std::move(answered)] {
      std::unique_lock waiting(mu_);
      changed_.wait(waiting, [&] { return !hangs_; });
      waiting.unlock();
      if (says) {
        answered(*says);
      } else {
        answered(Status{Code::kUnavailable, "away"});
      }
    });
  }
  void Word(const std::string&, const v1::VoteRequest&, std::stop_token, Told told) override {
    const std::scoped_lock lock(mu_);
    answers_.emplace_back([told = std::move(told)] { told(OkStatus()); });
  }

  void Hang(bool hangs) {
    const std::scoped_lock lock(mu_);
    hangs_ = hangs;
    changed_.notify_all();
  }
  void AwaitAsked(int times) {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [&] { return asked_ >= times; });
  }

  std::optional<v1::QueryResponse> says;  // set before calls

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool hangs_ = false;
  int asked_ = 0;
  std::vector<std::jthread> answers_;
};

// Two layers of four experts; the first `dense` of them have none.
store::testing::World::Options Small(uint32_t dense = 0);

// One agent with all ranks of its world except the last `away`.
class OneAgent {
 public:
  explicit OneAgent(uint32_t ranks, std::chrono::milliseconds permit_wait = std::chrono::hours(1),
                    uint32_t away = 0, const store::testing::World::Options& world = Small());
  ~OneAgent();

  // The process dies and another one replaces it; `kept` has the memory that the engines kept.
  void Die();
  // Replaces it once more; the engines kept the same memory.
  void Reborn();
  Status Resume(uint32_t device);

  v1::Header Header(uint64_t attempt) const;
  v1::Layout First() { return stores.First(1); }
  // The next epoch of the same layout.
  v1::Layout Again();
  // `then`: targets of later flips of a run.
  Status Prepare(v1::FlipKind kind, uint64_t attempt, const v1::Layout& target,
                 const std::vector<v1::Layout>& then = {});
  v1::StatusResponse GetStatus() {
    return executor->GetStatus(&v1::StatusRequest::default_instance());
  }
  Status Stage(uint64_t attempt) { return executor->Stage(Header(attempt)); }
  void AwaitPhase(v1::Phase phase);
  void AwaitEpoch(uint64_t epoch);
  // Prepare to Permit; waits for the flip.
  Status Take(v1::FlipKind kind, uint64_t attempt, const v1::Layout& target);
  Status Retire(uint64_t attempt);            // after a step of every rank
  Status Release(const std::string& member);  // empty: the world ends
  GatePage* page(uint32_t device);

  store::testing::World stores;
  YesEngines engines;
  SlowPeers peers;
  std::vector<store::testing::Kept> kept;
  MemoryHooks hooks;                                                           // of all ranks
  std::atomic<Executor::Clock::duration> later{Executor::Clock::duration(0)};  // added to now
  std::unique_ptr<Executor> executor;

 private:
  void Start(bool after_death);

  std::vector<std::unique_ptr<HookedMemory>> memories_;
  const std::chrono::milliseconds permit_wait_;
  const uint32_t away_;
};

}  // namespace tangram::testing
