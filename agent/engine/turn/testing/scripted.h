// For tests of the step loop: layouts of a model of one layer without experts, and a scripted agent
// and engine.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/engine/turn/turn.h"

namespace tangram::engine::testing {

constexpr uint32_t kQueryHeads = 4;

// Attention of all ranks by data, or of `together` by heads.
class TestMaps {
 public:
  TestMaps(uint64_t epoch, int32_t rank, std::vector<std::string> members,
           std::vector<std::string> endpoints, bool together = false)
      : members_(std::move(members)), endpoints_(std::move(endpoints)) {
    const auto count = static_cast<uint32_t>(members_.size());
    for (uint32_t r = 0; r < count; ++r) {
      names_.push_back(members_[r].c_str());
      mesh_.push_back(endpoints_[r].c_str());
      pods_.push_back("");
      ranks_.push_back(r);
      heads_.push_back(r * kQueryHeads / count);
    }
    heads_.push_back(kQueryHeads);
    for (uint32_t r = 0; r < count && !together; ++r) groups_.push_back({1, &ranks_[r], all_});
    if (together) groups_.push_back({count, ranks_.data(), heads_.data()});
    layer_.moe_ordinal = -1;
    layer_.attention_groups = static_cast<uint32_t>(groups_.size());
    layer_.attention = groups_.data();
    maps.struct_size = sizeof maps;
    maps.epoch = epoch;
    maps.rank = rank;
    maps.world_size = count;
    maps.members = maps.frontends = names_.data();
    maps.mesh = mesh_.data();
    maps.pods = pods_.data();
    maps.layers = &layer_;
  }
  TestMaps(const TestMaps&) = delete;
  TestMaps& operator=(const TestMaps&) = delete;

  tg_maps maps{};

 private:
  const std::vector<std::string> members_, endpoints_;
  std::vector<const char*> names_, mesh_, pods_;
  std::vector<uint32_t> ranks_, heads_;
  const uint32_t all_[2] = {0, kQueryHeads};
  std::vector<tg_attention_group> groups_;
  tg_layer_map layer_{};
};

inline tg_event Flipped(const TestMaps& to, bool repair = false) {
  tg_event event = TG_INIT(tg_event);
  event.kind = TG_EVENT_FLIPPED;
  event.attempt = event.target_epoch = to.maps.epoch;
  event.repair = repair;
  event.target = &to.maps;
  return event;
}

inline tg_event Prepare(const TestMaps& target, bool repair = false) {
  tg_event event = Flipped(target, repair);
  event.kind = TG_EVENT_PREPARE;
  return event;
}

// An agent that returns `events` one after another. A flip leads to the target of the last event.
class ScriptedWorld final : public WorldView {
 public:
  explicit ScriptedWorld(const std::string& member) : member_(member) {
    model_.world = "w";
    model_.member = member_.c_str();
    model_.layers = 1;
    model_.query_heads = kQueryHeads;
    model_.kv_heads = 2;
  }
  const tg_model& model() const override { return model_; }
  std::span<const tg_tensor> dense() const override { return {}; }
  const tg_maps* maps() const override { return now_; }
  device::Device& device() override { std::abort(); }
  Result<tg_event> Poll(int) override {
    if (events.empty()) return tg_event{};
    const tg_event event = events.front();
    events.pop_front();
    target_ = event.target;
    if (event.kind == TG_EVENT_FLIPPED) {
      now_ = target_;
      stopped_ = false;
    }
    return event;
  }
  Status Prepared(uint64_t, bool ok, const std::string& message) override {
    answers.push_back(ok ? "" : message);
    prepared_ = ok;
    return OkStatus();
  }
  tg_vote Word() override {
    return prepared_ ? tg_vote{target_->epoch, 7} : tg_vote{now_->epoch, 0};
  }
  bool Decide(std::span<const tg_vote> words) override {
    return std::ranges::all_of(words, [&](const tg_vote& w) { return w.epoch > now_->epoch; });
  }
  void Decline(const std::string& reason) override { declined = reason; }
  Status Commit() override {
    now_ = target_;
    return OkStatus();
  }
  void Stop(bool keep_vote) override {
    stopped_ = true;
    kept_word = keep_vote;
  }
  void Missed(std::span<const tg_missed> those) override {
    missed.assign(those.begin(), those.end());
  }
  void SetUnreachable(std::span<const uint32_t> ranks) override {
    unreachable.assign(ranks.begin(), ranks.end());
  }
  bool stopped() const override { return stopped_; }
  Status Join(int) override { return OkStatus(); }
  Status PullKv(std::span<const tg_kv_move>) override { return OkStatus(); }
  Status StageKv(std::span<const tg_kv_move>) override { return OkStatus(); }
  Result<StagedKv> KvStaged(int) override { return StagedKv{}; }
  void StepDone() override {}
  void Count(uint32_t, uint32_t, uint64_t) override {}
  void CountExecuted(uint32_t, uint32_t, uint64_t) override {}
  void Report(const tg_engine_stats&) override {}

  std::deque<tg_event> events;
  // The rank's reports. `answers`: per preparation the reason of its failure, or an empty text.
  std::vector<std::string> answers;
  std::string declined;
  std::vector<tg_missed> missed;
  std::vector<uint32_t> unreachable;
  bool kept_word = false;

 private:
  const std::string member_;
  const tg_maps *now_ = nullptr, *target_ = nullptr;
  tg_model model_{};
  bool prepared_ = false;
  std::atomic<bool> stopped_{false};
};

// A backend without requests. Announces steps of `rows`.
class ScriptedBackend final : public Backend {
 public:
  void Submit(const std::string&, v1::Submit) override {}
  bool Cancel(const std::string&) override { return false; }
  std::map<std::string, v1::Roster> Rosters() const override { return {}; }
  void Measure(v1::Load*, tg_engine_stats*) override {}
  uint32_t max_tokens() const override { return 1; }
  uint32_t vocabulary() const override { return 1; }
  Status Fits(const tg_maps&, bool) override { return OkStatus(); }
  Announcement Announce(uint64_t) override {
    return {rows, rows > 0, text_is_wrong ? Bytes{9} : Bytes{}};
  }
  Status Heard(const std::vector<Bytes>& texts, uint32_t* malformed) override {
    const auto wrong = std::find(texts.begin(), texts.end(), Bytes{9});
    if (wrong == texts.end()) return OkStatus();
    *malformed = static_cast<uint32_t>(wrong - texts.begin());
    return {Code::kInternal, "no text of this backend"};
  }
  Status Compute(const StepInput&) override {
    ++steps;
    return OkStatus();
  }
  Bytes Manifest(const Side&, bool whole) override { return {whole ? uint8_t{2} : uint8_t{1}}; }
  Status Plan(const Side&, const Side&, bool whole, const std::vector<Bytes>& manifests, uint64_t*,
              uint32_t*) override {
    planned.push_back(manifests);
    if (takes_the_whole && !whole) return {Code::kNotHeld, "the whole"};
    return OkStatus();
  }
  Result<uint64_t> Bring(uint32_t, Between& between) override { return bring(between); }
  void Drop() override {}
  Status Enter(const Epoch&, Entry entry) override {
    entries.push_back(entry);
    return OkStatus();
  }
  void Leave() override {}

  std::function<Result<uint64_t>(Between&)> bring;
  bool takes_the_whole = false;
  std::vector<std::vector<Bytes>> planned;
  std::vector<Entry> entries;
  std::atomic<uint64_t> rows{0}, steps{0};
  std::atomic<bool> text_is_wrong{false};
};

class Nowhere final : public Sink {
 public:
  void Emit(const std::string&, v1::Token) override {}
  void Refuse(const std::string&, v1::Refused) override {}
  void SetWorld(v1::World, const std::string&, std::map<std::string, v1::Roster>) override {}
  void SetLoad(v1::Load) override {}
};

// Listens on loopback, without TLS.
inline std::unique_ptr<Mesh> Listening(const std::string& member, TimeSource& time = SteadyTime()) {
  auto mesh = std::move(Mesh::Listen("127.0.0.1:0", Mesh::Limits(), time)).value();
  mesh->SetSelf("w", member, net::Credentials::Insecure());
  return mesh;
}

inline std::string EndpointOf(const Mesh& mesh) {
  return "127.0.0.1:" + std::to_string(mesh.port());
}

}  // namespace tangram::engine::testing
