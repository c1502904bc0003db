// Where a rank's pieces come from: the sources (agent/mover) that RankStore::Stage asks.
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

// What a range of the job is: a run of granules of an expert, and behind it the tail if the move
// brings it, or (no move) a part of the dense tensors.
struct Wanted {
  const layout::PartProof::Move* move = nullptr;
  uint32_t dense_part = 0;
};

// The checkpoint, which has all of this revision. What is to come from it in the first place is
// enrolled before (loader::SharedReads), so that ranks of the process read it together; what others
// failed to bring is read when it is asked for.
class CheckpointSource final : public mover::Source {
 public:
  CheckpointSource(const RankStore* store, const std::vector<Wanted>* wanted)
      : store_(store), wanted_(wanted) {}
  // Ranges of the job that have this source alone.
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
  std::vector<size_t> place_;  // by range: in the list, and one more; 0: not there
};

// What the rank holds in another place.
class HeldSource final : public mover::Source {
 public:
  HeldSource(RankStore* store, const std::vector<Wanted>* wanted)
      : store_(store), wanted_(wanted) {}
  std::string name() const override { return "the local copy of this rank"; }
  Status Bring(std::span<const mover::Range> job, std::span<const size_t> ranges,
               const Arrived& arrived, const std::stop_token& stop) override;

 private:
  static constexpr uint64_t kTogether = 16 << 20;  // bytes that are copied by one batch

  Status BringSome(std::span<const mover::Range> job, std::span<const size_t> ranges,
                   const Arrived& arrived);

  RankStore* const store_;
  const std::vector<Wanted>* const wanted_;
};

// Another rank, of this process or not: both are asked in the same words, and give a token.
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
  // One connection does not fill a network, nor one thread a memory.
  size_t lanes() const override { return 2; }
  // How its bytes come: from memory of this machine, or over a network, by a communication library
  // or by connections of our own.
  enum class By { kMemory, kWire, kTcp };
  By by() const { return by_; }
  // By which way the last ones came, as BytesByTransport names it.
  const char* way() const { return way_; }
  Status Bring(std::span<const mover::Range> job, std::span<const size_t> ranges,
               const Arrived& arrived, const std::stop_token& stop) override;

 private:
  // By the transport; null: from a rank of this process.
  Result<v1::OpenPullResponse> Open(std::span<const size_t> ranges, const std::stop_token& stop,
                                    const mover::Transport* transport) const;
  // Of row-major slabs: the granules `run`, of the pull's `row` of granules, in their slab at the
  // source, which begins at address 0. kInvalid: the source does not say, or lies.
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
