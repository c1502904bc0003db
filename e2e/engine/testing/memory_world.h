// Worlds in plain memory: a replacement for the agents of engines in one process. Weights are read
// from one copy of the checkpoint, each member's KV is a buffer, and flips follow the rules of
// client.h (prepare, equal votes, commit; joiners enter after they saw the epoch begin).
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "agent/base/testing/hang.h"
#include "agent/engine/world/world.h"
#include "e2e/engine/model/checkpoint.h"

namespace tangram::engine::testing {

using Ranks = std::vector<uint32_t>;

struct LayerSpec {
  std::vector<Ranks> experts;  // groups; expert e is in group e % groups
  bool redundant = false;      // every third expert has a replica in the next group
  std::vector<Ranks> attention;
};

struct LayoutSpec {
  std::vector<std::string> members;
  std::vector<LayerSpec> layers;
};

// Groups of `size` over ranks 0 .. ranks - 1 (the last one may be smaller).
std::vector<Ranks> GroupsOfSize(uint32_t ranks, uint32_t size);
// The same g and t in every layer over the first `serving` members.
LayoutSpec Uniform(std::vector<std::string> members, uint32_t layers, uint32_t serving, uint32_t g,
                   uint32_t t);

class MemoryWorld;

class MemoryNet {
 public:
  MemoryNet(const model::Checkpoint* checkpoint, uint32_t kv_bytes)
      : checkpoint_(checkpoint), kv_bytes_(kv_bytes) {}

  // A member's view; `mesh` is where its engine listens.
  std::unique_ptr<MemoryWorld> Attach(const std::string& member, const std::string& mesh);
  // Flips the world to this layout. Waits until every member has prepared and flipped. An error
  // names the members that did not within `seconds`; the attempt is aborted if no member flipped.
  Status Flip(const LayoutSpec& spec, int seconds = tangram::testing::kHang.count());
  // Stops a member, as its agent does when a fence removes it.
  void Stop(const std::string& member);
  // Behaviour of fetches ahead: each completes at the `looks`-th poll, and every `fails`-th one
  // fails (0: none). The first `flips_fail` fetches in flips fail.
  struct Staging {
    uint32_t looks = 1, fails = 0, flips_fail = 0;
  };
  void SetStaging(const Staging& staging);
  // Whether attempts from now on pause steps.
  void SetPause(bool pauses);
  // Prepares for this layout, as a flip does, and aborts the attempt when `until` returns true.
  Status Abort(const LayoutSpec& spec, const std::function<bool()>& until);
  // Continues with the members of `spec`, all stopped, without the others.
  Status Repair(const LayoutSpec& spec, int seconds = tangram::testing::kHang.count());
  // Waits until each of these members is stopped.
  bool WaitStopped(const std::vector<std::string>& members,
                   int seconds = tangram::testing::kHang.count());
  uint64_t epoch() const { return epoch_; }

 private:
  friend class MemoryWorld;
  struct Maps;
  struct Member {
    std::vector<uint8_t> kv;
    std::string mesh;
    std::deque<tg_event> events;
    std::shared_ptr<Maps> current, target;
    bool prepared = false, flipped = false, stopped = false;
    std::string refusal;
  };
  Status Take(const LayoutSpec& spec, bool repair, int seconds,
              const std::function<bool()>& aborts = nullptr);
  std::shared_ptr<Maps> Build(const LayoutSpec& spec, uint64_t epoch, const std::string& member);

  const model::Checkpoint* checkpoint_;
  const uint32_t kv_bytes_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::map<std::string, Member> members_;
  std::vector<std::shared_ptr<Maps>> keep_;
  LayoutSpec spec_;
  uint64_t epoch_ = 0, attempt_ = 0;
  bool armed_ = false, pauses_ = false;
  Staging staging_;
};

class MemoryWorld final : public WorldView {
 public:
  MemoryWorld(MemoryNet* net, std::string member);
  const std::string& member() const { return member_; }

  const tg_model& model() const override { return model_; }
  std::span<const tg_tensor> dense() const override { return dense_; }
  const tg_maps* maps() const override;
  device::Device& device() override { return *device_; }
  Result<tg_event> Poll(int timeout_ms) override;
  Status Prepared(uint64_t attempt, bool ok, const std::string& message) override;
  tg_vote Word() override;
  bool Decide(std::span<const tg_vote> words) override;
  void Decline(const std::string&) override {}
  Status Commit() override;
  void Stop(bool keep_vote) override;
  void Missed(std::span<const tg_missed>) override {}
  void SetUnreachable(std::span<const uint32_t>) override {}
  bool stopped() const override;
  Status Join(int timeout_ms) override;
  Status PullKv(std::span<const tg_kv_move> moves) override;
  Result<uint64_t> Pull(std::span<const tg_kv_move> moves);
  Status StageKv(std::span<const tg_kv_move> moves) override;
  Result<StagedKv> KvStaged(int timeout_ms) override;
  void StepDone() override {}
  void Count(uint32_t moe_ordinal, uint32_t expert, uint64_t tokens) override;
  void CountExecuted(uint32_t moe_ordinal, uint32_t expert, uint64_t tokens) override;
  void Report(const tg_engine_stats& stats) override {
    all_free_ = stats.kv_free_pages == stats.kv_pages;
    ++reports_;
  }
  uint64_t reports() const { return reports_; }
  bool all_free() const { return all_free_; }  // as of the last report
  uint64_t routed() const { return routed_; }
  // By (MoE ordinal, expert); read it after the engine has stopped.
  const std::map<std::pair<uint32_t, uint32_t>, uint64_t>& executed() const { return executed_; }
  const std::map<std::pair<uint32_t, uint32_t>, uint64_t>& routed_by() const { return routed_by_; }

 private:
  std::atomic<uint64_t> reports_{0};
  std::atomic<bool> all_free_{false};
  MemoryNet* net_;
  std::string member_;
  std::unique_ptr<device::Device> device_;  // the host device: it can reach plain memory
  tg_model model_{};
  std::vector<tg_tensor> dense_;
  std::optional<Result<uint64_t>> staged_;  // the next result of KvStaged
  uint32_t stagings_ = 0, looks_ = 0;       // fetches ahead so far; polls of the current one
  uint64_t routed_ = 0;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> routed_by_, executed_;
};

}  // namespace tangram::engine::testing
