// The world of a real engine: the agent, through the C ABI.
#pragma once

#include <memory>
#include <string>

#include "agent/engine/world/world.h"

namespace tangram::engine {

class ClientWorld final : public WorldView {
 public:
  struct Options {
    std::string agent_socket;
    std::string token;
    uint32_t device = 0;
    std::string mesh_endpoint;
    std::string frontend;
    uint32_t block_tokens = 16;
    std::string cuda_driver = "libcuda.so.1";  // for memory of a GPU
    // The engine's capabilities (tg_options).
    bool attention_data_only = false, even_shards_only = false;
    uint32_t slab_formats = TG_SLAB_GRANULE_MAJOR | TG_SLAB_ROW_MAJOR;
    std::string settings;
  };

  static Result<std::unique_ptr<ClientWorld>> Attach(const Options& options);

  tg_client* client() const { return client_.get(); }
  const tg_model& model() const override { return *tg_get_model(client_.get()); }
  std::span<const tg_tensor> dense() const override;
  const tg_maps* maps() const override { return tg_maps_current(client_.get()); }
  device::Device& device() override { return *device_; }
  Result<tg_event> Poll(int timeout_ms) override;
  Status Prepared(uint64_t attempt, bool ok, const std::string& message) override;
  tg_vote Word() override { return tg_gate_vote(client_.get()); }
  bool Decide(std::span<const tg_vote> words) override;
  void Decline(const std::string& reason) override;
  Status Commit() override;
  void Stop(bool keep_vote) override { tg_stop(client_.get(), keep_vote ? 1 : 0); }
  void Missed(std::span<const tg_missed> missed) override;
  void SetUnreachable(std::span<const uint32_t> ranks) override;
  bool stopped() const override { return tg_stopped(client_.get()) != 0; }
  Status Join(int timeout_ms) override;
  Status PullKv(std::span<const tg_kv_move> moves) override;
  Status StageKv(std::span<const tg_kv_move> moves) override;
  Result<StagedKv> KvStaged(int timeout_ms) override;
  void StepDone() override { tg_step_done(client_.get()); }
  void Count(uint32_t moe_ordinal, uint32_t expert, uint64_t tokens) override;
  void CountExecuted(uint32_t moe_ordinal, uint32_t expert, uint64_t tokens) override;
  void Report(const tg_engine_stats& stats) override {
    (void)tg_report(client_.get(), &stats, nullptr);  // a complete report is never rejected
  }

 private:
  struct Detach {
    void operator()(tg_client* client) const { tg_detach(client); }
  };
  explicit ClientWorld(tg_client* client) : client_(client) {}
  Status OpenDevice(const Options& options);

  std::unique_ptr<tg_client, Detach> client_;
  std::unique_ptr<device::Device> device_;
};

}  // namespace tangram::engine
