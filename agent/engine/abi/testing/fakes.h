// A fake agent and fake blocks of an engine, for tests of the code between them (incoming.h).
#pragma once

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "agent/engine/abi/incoming.h"

namespace tangram::engine {

// An agent whose pulls end when the test sets it.
class FakeWorld : public WorldView {
 public:
  const tg_model& model() const override { return described; }
  std::span<const tg_tensor> dense() const override { return {}; }
  const tg_maps* maps() const override { return nullptr; }
  device::Device& device() override { std::abort(); }
  Result<tg_event> Poll(int) override { return tg_event{}; }
  Status Prepared(uint64_t, bool, const std::string&) override { return OkStatus(); }
  tg_vote Word() override { return {}; }
  bool Decide(std::span<const tg_vote>) override { return false; }
  void Decline(const std::string&) override {}
  Status Commit() override { return OkStatus(); }
  void Stop(bool) override {}
  void Missed(std::span<const tg_missed>) override {}
  void SetUnreachable(std::span<const uint32_t>) override {}
  bool stopped() const override { return false; }
  Status Join(int) override { return OkStatus(); }
  Status PullKv(std::span<const tg_kv_move> moves) override {
    pulled.insert(pulled.end(), moves.begin(), moves.end());
    ++pulls;
    return StageKv(moves);
  }
  void StepDone() override {}
  void Count(uint32_t, uint32_t, uint64_t) override {}
  void CountExecuted(uint32_t, uint32_t, uint64_t) override {}
  void Report(const tg_engine_stats&) override {}

  Status StageKv(std::span<const tg_kv_move> moves) override {
    if (!under_way.empty()) std::abort();  // one at a time
    under_way.assign(moves.begin(), moves.end());
    return OkStatus();
  }
  Result<StagedKv> KvStaged(int timeout_ms) override {
    if (under_way.empty()) std::abort();
    if (!lands && timeout_ms == 0) return StagedKv{};
    if (waits > 0) {  // with a waiting caller: in progress for that long
      waits -= std::min(waits, timeout_ms);
      return StagedKv{};
    }
    const std::vector<tg_kv_move> came = std::exchange(under_way, {});
    if (later) return StagedKv{StagedKv::State::kLater};
    if (fails) return Status{Code::kUnavailable, "the source is gone"};
    uint64_t bytes = 0;
    for (const tg_kv_move& move : came) bytes += move.length;
    if (copy) copy(came);
    return StagedKv{StagedKv::State::kHere, bytes};
  }

  std::vector<tg_kv_move> under_way;
  std::vector<tg_kv_move> pulled;  // in flips
  int pulls = 0;                   // of these
  int waits = 0;                   // milliseconds that a waiting caller waits for a pull
  bool lands = true, fails = false, later = false;
  std::function<void(std::span<const tg_kv_move>)> copy;  // copies the bytes of a pull at its end
  tg_model described{};
};

class FakeRoom final : public BlockRoom {
 public:
  explicit FakeRoom(BlockLayout layout) : layout_(std::move(layout)) {
    for (uint32_t b = 0; b < layout_.blocks; ++b) free.insert(b);
  }
  BlockLayout Layout() const override {
    BlockLayout out = layout_;
    out.free_blocks = static_cast<uint32_t>(free.size());
    return out;
  }
  Status Reserve(const std::string& request, std::span<uint32_t> blocks) override {
    if (blocks.size() > free.size()) return {Code::kNoMemory, "none"};
    for (uint32_t& block : blocks) {
      block = *free.begin();
      free.erase(block);
      reserved[request].push_back(block);
    }
    return OkStatus();
  }
  void Unreserve(const std::string& request) override {
    if (!reserved.contains(request)) std::abort();
    for (const uint32_t block : reserved[request]) free.insert(block);
    reserved.erase(request);
  }
  std::set<uint32_t> free;
  std::map<std::string, std::vector<uint32_t>> reserved;

 private:
  const BlockLayout layout_;
};

class Waits final : public Between {
 public:
  Status Answer() override { return OkStatus(); }
  Status Lives() override {
    if (heartbeats++ < until) return OkStatus();
    return {Code::kUnavailable, "a peer hung up"};
  }
  Status MayEmit() override { return OkStatus(); }
  bool Hurries() override { return false; }
  int heartbeats = 0;
  int until = INT_MAX;  // the others wait for this many heartbeats
};

// One group of one rank each, of models with 4 query heads.
inline Side DataParallel(std::vector<std::string> members, uint32_t layers) {
  kv::LayerGroups groups;
  for (uint32_t r = 0; r < members.size(); ++r) groups.push_back({{r}, {0, 4}});
  return {std::vector(layers, groups), std::move(members)};
}

}  // namespace tangram::engine
