// An engine's view of its world: maps, gate, KV pulls. An interface over the C ABI
// (agent/client/include/tangram/client.h), so that tests can simulate a world in plain memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "agent/base/status.h"
#include "agent/client/include/tangram/client.h"
#include "agent/device/device.h"

namespace tangram::engine {

// One thread. client.h defines each call.
class WorldView {
 public:
  virtual ~WorldView() = default;

  virtual const tg_model& model() const = 0;
  virtual std::span<const tg_tensor> dense() const = 0;
  // nullptr before the first layout.
  virtual const tg_maps* maps() const = 0;
  // The device of the memory that the maps' addresses refer to. Lives as long as this object.
  virtual device::Device& device() = 0;

  // kind NONE: no event. kUnavailable: the agent is gone, memory stays mapped.
  virtual Result<tg_event> Poll(int timeout_ms) = 0;
  virtual Status Prepared(uint64_t attempt, bool ok, const std::string& message) = 0;

  virtual tg_vote Word() = 0;
  virtual bool Decide(std::span<const tg_vote> words) = 0;
  virtual void Decline(const std::string& reason) = 0;
  virtual Status Commit() = 0;
  virtual void Stop(bool keep_vote) = 0;
  // Before Stop: the lost ranks.
  virtual void Missed(std::span<const tg_missed> missed) = 0;
  virtual void SetUnreachable(std::span<const uint32_t> ranks) = 0;
  virtual bool stopped() const = 0;
  // kUnavailable: the permit did not come within timeout_ms; try again.
  virtual Status Join(int timeout_ms) = 0;

  // Begins to copy KV, for the current flip or ahead of one. One copy at a time.
  virtual Status PullKv(std::span<const tg_kv_move> moves) = 0;
  virtual Status StageKv(std::span<const tg_kv_move> moves) = 0;
  // The state of the last copy. Waits at most timeout_ms.
  struct StagedKv {
    enum class State {
      kUnderWay,
      kHere,
      kLater,  // ahead of a flip: no bytes were copied, because steps are too long for more of it
               // now
    };
    State state = State::kUnderWay;
    uint64_t bytes = 0;  // copied
  };
  virtual Result<StagedKv> KvStaged(int timeout_ms) = 0;

  virtual void StepDone() = 0;
  virtual void Count(uint32_t moe_ordinal, uint32_t expert, uint64_t tokens) = 0;
  virtual void CountExecuted(uint32_t moe_ordinal, uint32_t expert, uint64_t tokens) = 0;
  virtual void Report(const tg_engine_stats& stats) = 0;

  // Counts a step's rows of a layer by expert [experts]: this rank's own, and those that it
  // computes.
  void CountRows(uint32_t moe_ordinal, std::span<const uint32_t> routed,
                 std::span<const uint32_t> executed) {
    for (uint32_t e = 0; e < routed.size(); ++e) {
      if (routed[e] > 0) Count(moe_ordinal, e, routed[e]);
      if (executed[e] > 0) CountExecuted(moe_ordinal, e, executed[e]);
    }
  }
};

}  // namespace tangram::engine
