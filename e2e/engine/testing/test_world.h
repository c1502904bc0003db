// A world of engine threads over a loopback mesh and MemoryNet: the production engine, step by
// step.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "agent/net/testing/certs.h"
#include "e2e/engine/step/engine.h"
#include "e2e/engine/testing/memory_world.h"

namespace tangram::engine::testing {

// Receives all tokens and checks every stream: positions follow one another without gap or repeat,
// whichever rank emits them.
class CaptureSink final : public Sink {
 public:
  void Emit(const std::string& gateway, v1::Token token) override {
    std::lock_guard lock(mu_);
    std::vector<v1::Token>& stream = streams_[token.request()];
    if (!stream.empty() && (stream.back().position() + 1 != token.position() ||
                            stream.back().finish() != v1::FINISH_UNSPECIFIED)) {
      wrong_ += token.request() + " position " + std::to_string(token.position()) + " after " +
                std::to_string(stream.back().position()) + "; ";
    }
    if (gateway != "gw") wrong_ += token.request() + " went to gateway " + gateway + "; ";
    if (token.finish() != v1::FINISH_UNSPECIFIED) ++finished_;
    stream.push_back(std::move(token));
    changed_.notify_all();
  }
  void Refuse(const std::string&, v1::Refused refused) override {
    std::lock_guard lock(mu_);
    refused_.push_back(std::move(refused));
    changed_.notify_all();
  }
  void SetWorld(v1::World world, const std::string&, std::map<std::string, v1::Roster>) override {
    std::lock_guard lock(mu_);
    world_ = std::move(world);
  }
  void SetLoad(v1::Load load) override {
    std::lock_guard lock(mu_);
    load_ = std::move(load);
    changed_.notify_all();
  }

  template <typename Done>
  bool Wait(Done done, int seconds = 240) {
    std::unique_lock lock(mu_);
    return changed_.wait_for(lock, std::chrono::seconds(seconds), done);
  }
  bool WaitFinished(size_t count) {
    return Wait([&] { return finished_ >= count; });
  }
  bool WaitTokens(const std::string& request, size_t count) {
    return Wait([&] { return streams_[request].size() >= count; });
  }
  // For a world of one rank: waits until it reports `finished` finished requests.
  v1::RankTelemetry WaitTelemetry(uint64_t finished) {
    (void)Wait([&] { return load_.telemetry().finished() >= finished; });
    std::lock_guard lock(mu_);
    return load_.telemetry();
  }
  bool WaitRefused(size_t count) {
    return Wait([&] { return refused_.size() >= count; });
  }
  std::vector<v1::Token> Stream(const std::string& request) {
    std::lock_guard lock(mu_);
    return streams_[request];
  }
  std::vector<v1::Refused> refused() {
    std::lock_guard lock(mu_);
    return refused_;
  }
  std::string wrong() {
    std::lock_guard lock(mu_);
    return wrong_;
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::map<std::string, std::vector<v1::Token>> streams_;
  std::vector<v1::Refused> refused_;
  v1::World world_;
  v1::Load load_;
  size_t finished_ = 0;
  std::string wrong_;
};

class TestWorld {
 public:
  struct Options {
    uint32_t members = 1;
    uint32_t kv_bytes = 1 << 20;
    Engine::Options engine = {};
  };

  TestWorld(const model::Checkpoint* checkpoint, Options options)
      : net(checkpoint, options.kv_bytes) {
    options.engine.turn.patience.least = options.engine.turn.patience.most =
        tangram::testing::kHang;
    for (uint32_t i = 0; i < options.members; ++i) {
      names.push_back("pod-" + std::to_string(i) + "/0/1");
      auto rank = std::make_unique<Rank>();
      rank->mesh = std::move(Mesh::Listen("127.0.0.1:0")).value();
      rank->mesh->SetSelf("test", names.back(),
                          ca.Open("test", "engine", "pod-" + std::to_string(i)));
      rank->world = net.Attach(names.back(), "127.0.0.1:" + std::to_string(rank->mesh->port()));
      Result<std::unique_ptr<Engine>> engine =
          Engine::Make(options.engine, rank->world.get(), rank->mesh.get(), &rank->inbox, &sink);
      if (!engine.ok()) {
        failure = engine.status().message();
        return;
      }
      rank->engine = std::move(*engine);
      ranks.push_back(std::move(rank));
    }
    for (auto& rank : ranks) {
      rank->thread = std::thread([this, &rank = *rank] {
        const Status status = rank.engine->Run(rank.stop);
        if (!status.ok() && !rank.stop) {
          std::lock_guard lock(mu_);
          failure += rank.world->member() + ": " + status.message() + "\n";
        }
        rank.mesh->KeepOnly({});  // releases the ranks that wait for this one
      });
    }
  }
  ~TestWorld() { Stop(); }

  void Stop() {
    for (auto& rank : ranks) rank->stop = true;
    for (auto& rank : ranks) {
      if (rank->thread.joinable()) rank->thread.join();
    }
  }
  // Ends the engine without notice to the others.
  void Kill(size_t member) {
    ranks[member]->stop = true;
    ranks[member]->thread.join();
  }
  void Submit(size_t member, const v1::Submit& submit) {
    ranks[member]->inbox.Put(SubmitItem{"gw", submit});
  }
  void Cancel(const std::string& request) {
    for (auto& rank : ranks) rank->inbox.Put(CancelItem{request});
  }
  std::string Failure() {
    std::lock_guard lock(mu_);
    std::string out = failure + sink.wrong();
    for (const v1::Refused& refused : sink.refused()) out += refused.ShortDebugString() + "\n";
    return out;
  }
  std::vector<std::string> Names(size_t count) const {
    return {names.begin(), names.begin() + static_cast<long>(count)};
  }

  struct Rank {
    std::unique_ptr<Mesh> mesh;
    std::unique_ptr<MemoryWorld> world;
    Inbox inbox;
    std::unique_ptr<Engine> engine;
    std::atomic<bool> stop{false};
    std::thread thread;
  };

  CaptureSink sink;
  net::testing::TestCa ca;
  MemoryNet net;
  std::vector<std::string> names;
  std::vector<std::unique_ptr<Rank>> ranks;
  std::string failure;

 private:
  std::mutex mu_;
};

}  // namespace tangram::engine::testing
