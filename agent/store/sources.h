// Sources (agent/mover) of a rank's pieces, for RankStore::Stage.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/mover/mover.h"
#include "agent/store/rank_store.h"

namespace tangram::store {

// A range of the job: a run of granules of an expert, followed by the tail if the move brings it,
// or (no move) a part of the dense tensors.
struct Wanted {
  const layout::PartProof::Move* move = nullptr;
  uint32_t dense_part = 0;
};

// The checkpoint, which has everything of this revision. Ranges planned from it are registered in
// advance (loader::SharedReads), so that ranks of the process read them together. Ranges that other
// sources failed to deliver are read on request.
class CheckpointSource final : public mover::Source {
 public:
  CheckpointSource(const RankStore* store, const std::vector<Wanted>* wanted)
      : store_(store), wanted_(wanted) {}
  // Registers ranges of the job whose only source is the checkpoint.
  void Enrol(std::span<const mover::Range> job, std::span<const size_t> ranges);
  std::string name() const override { return "the checkpoint"; }
  Status Bring(std::span<const mover::Range> job, std::span<const size_t> ranges,
               const Arrived& arrived, const std::stop_token& stop) override;

 private:
  Result<std::vector<uint64_t>> BringOne(size_t i, const mover::Range& range) const;
  Result<std::vector<uint64_t>> Dense(uint32_t part, const mover::Range& range) const;

  const RankStore* const store_;
  const std::vector<Wanted>* const wanted_;
  std::unique_ptr<loader::SharedReads::List> list_;
  std::vector<size_t> place_;  // by range: index in the list plus 1; 0: not in it
};

// Pieces that the rank holds in another place.
class HeldSource final : public mover::Source {
 public:
  HeldSource(RankStore* store, const std::vector<Wanted>* wanted)
      : store_(store), wanted_(wanted) {}
  std::string name() const override { return "the local copy of this rank"; }
  Status Bring(std::span<const mover::Range> job, std::span<const size_t> ranges,
               const Arrived& arrived, const std::stop_token& stop) override;

 private:
  static constexpr uint64_t kTogether = 16 << 20;  // bytes per batch of copies

  Status BringSome(std::span<const mover::Range> job, std::span<const size_t> ranges,
                   const Arrived& arrived);

  RankStore* const store_;
  const std::vector<Wanted>* const wanted_;
};

// Another rank, of this process or not: the same request gives a token.
class RankSource final : public mover::Source {
 public:
  RankSource(RankStore* store, const std::vector<Wanted>* wanted, v1::Header header,
             v1::PeerAddress peer)
      : store_(store),
        wanted_(wanted),
        header_(std::move(header)),
        peer_(std::move(peer)),
        sibling_(store->options_.sibling(peer_.member())) {}
  std::string name() const override { return peer_.member(); }
  // One connection does not saturate a network, nor one thread a memory.
  size_t lanes() const override { return 2; }
  // The kind of transport: memory of this machine, or a network with a communication library or
  // with our own connections.
  enum class By { kMemory, kWire, kTcp };
  By by() const { return by_; }
  // Transport of the last bytes, as BytesByTransport names it.
  const char* way() const { return way_; }
  Status Bring(std::span<const mover::Range> job, std::span<const size_t> ranges,
               const Arrived& arrived, const std::stop_token& stop) override;

 private:
  // Uses the transport; null: a rank of this process.
  Result<v1::OpenPullResponse> Open(std::span<const size_t> ranges, const std::stop_token& stop,
                                    const mover::Transport* transport) const;
  // For row-major slabs: the granules `run` of the pull's granule row `row`, in the source's slab,
  // which begins at address 0. kInvalid: missing or wrong data of the source.
  Result<device::Memory> SlabOf(const v1::OpenPullResponse& opened, int row, layout::Run run) const;
  Status Pull(mover::Transport* transport, const std::string& token,
              std::span<const mover::Target> targets, const std::function<void(uint64_t)>& done,
              const std::stop_token& stop) const;

  RankStore* const store_;
  const std::vector<Wanted>* const wanted_;
  const v1::Header header_;
  const v1::PeerAddress peer_;
  RankStore* const sibling_;
  std::atomic<By> by_{sibling_ != nullptr ? By::kMemory : By::kTcp};
  std::atomic<const char*> way_{kWithinProcess};
};

}  // namespace tangram::store
