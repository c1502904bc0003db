// The backend of an engine in another language: tge_backend (tangram/engine.h) behind Backend.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "agent/engine/abi/incoming.h"
#include "agent/engine/abi/manifest.h"
#include "agent/engine/abi/told.h"
#include "agent/engine/frontend/sink.h"
#include "agent/engine/include/tangram/engine.h"
#include "agent/engine/prefixes/prefixes.h"
#include "agent/engine/rows/rows.h"
#include "agent/engine/turn/backend.h"
#include "agent/engine/world/world.h"

namespace tangram::engine {

class Called final : public Backend, private BlockRoom {
 public:
  // `backend` has all callbacks, except perhaps those of KV ahead; all outlive this.
  Called(const tge_backend& backend, uint32_t block_tokens, WorldView* world, Sink* sink)
      : backend_(backend),
        block_tokens_(block_tokens),
        world_(world),
        sink_(sink),
        incoming_(this, world) {}

  // Within Compute. kUnavailable as Communicator::Exchange.
  Status Exchange(uint64_t sequence, const tge_bytes* send, tge_bytes* recv);
  // Rows of experts (rows.cc). Errors as ExpertRows.
  Status Pieces(uint32_t layer, const tge_piece** out, size_t* count, size_t* piece_size) const;
  Status Dispatch(const tge_rows& rows, tge_dispatched* arrived);
  Status Combine(const float* results, float* y);
  Status MayEmit();
  void Emit(const std::string& gateway, v1::Token token);
  void Refuse(const std::string& gateway, v1::Refused refused) {
    sink_->Refuse(gateway, std::move(refused));
  }

  // Reports this rank's cached prefixes to gateways.
  void Cached(std::span<const uint64_t> hashes, bool here);
  void CachedNone();

  void Submit(const std::string& gateway, v1::Submit submit) override;
  bool Cancel(const std::string& request) override;
  std::map<std::string, v1::Roster> Rosters() const override;
  void Measure(v1::Load* load, tg_engine_stats* stats) override;
  uint32_t max_tokens() const override { return backend_.max_tokens; }
  uint32_t vocabulary() const override { return backend_.vocabulary; }
  std::vector<std::string> can() const override;
  Status Fits(const tg_maps& target, bool repair) override;
  Announcement Announce(uint64_t step) override;
  Status Heard(const std::vector<Bytes>& texts, uint32_t* malformed) override;
  Status Compute(const StepInput& input) override;
  void StepDone(bool) override { incoming_.TakeUp(nullptr); }
  Bytes Manifest(const Side& to, bool whole) override;
  Status Plan(const Side& from, const Side& to, bool whole, const std::vector<Bytes>& manifests,
              uint64_t* moved, uint32_t* malformed) override;
  Result<uint64_t> Bring(uint32_t rank, Between& between) override;
  void Drop() override;
  void Stage(uint64_t attempt, const Side& to) override;
  bool Advance() override;
  void Unstage() override;
  Status Enter(const Epoch& epoch, Entry entry) override;
  void Leave() override;

 private:
  BlockManifest Here() const;
  kv::Shape ShapeOf() const;
  // The engine's blocks, with those reserved ahead of a flip as free: that flip frees or uses them.
  BlockLayout LayoutWithReserved() const;
  // BlockRoom
  BlockLayout Layout() const override;
  Status Reserve(const std::string& request, std::span<uint32_t> blocks) override;
  void Unreserve(const std::string& request) override;
  // KV ahead (ahead.cc): this rank's report in a step; the flip's begin; another epoch, or none.
  Bytes Tell();
  Status Settle(uint32_t rank, Between& between);
  void TellCarried(uint64_t ahead, uint64_t flip);
  void EndStaging();
  // The error for an engine that continues a step after an exchange of it failed.
  static Status StepLost();
  // The exchange for rows of an element, made for the first rows; it stays.
  Result<ExpertRows*> ExchangeOf(const tge_rows& rows);

  const tge_backend backend_;
  const uint32_t block_tokens_;
  WorldView* const world_;
  Sink* const sink_;
  const Epoch* epoch_ = nullptr;
  CachedPrefixes prefixes_;
  uint64_t cached_ = 0;  // generation of these reports; 0: the engine reports none
  // The step in compute.
  const StepInput* input_ = nullptr;
  bool lost_ = false;  // an exchange failed: the step is abandoned, whatever the callback returns
  std::vector<Bytes> came_;
  // The active layout's; the exchange has it too, once it is made.
  std::shared_ptr<const dispatch::Routes> routes_;
  std::optional<ExpertRows> experts_;
  dispatch::Format format_;
  // The planned flip.
  struct Transition {
    std::vector<BlockManifest> manifests;
    BlockPlan blocks;
    std::vector<std::string> gone;
  };
  std::optional<Transition> transition_;
  // KV ahead of a flip.
  struct Staged {
    uint64_t attempt = 0;
    Side to;
  };
  std::optional<Staged> staged_;
  Teller teller_;
  Board board_;
  Incoming incoming_;
};

}  // namespace tangram::engine

// The list to which tge_manifest_add adds.
struct tge_manifest {
  std::vector<tangram::engine::BlockRequest> requests;
};
