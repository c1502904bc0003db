// The links of agent/dispatch over the mesh: the messages of one lane are one exchange, with a slot
// for each rank.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "agent/dispatch/link.h"
#include "agent/engine/mesh/communicator.h"

namespace tangram::engine {

// One thread. One dispatch and its combine at a time.
class MeshLinks final : public dispatch::Links {
 public:
  MeshLinks() = default;
  MeshLinks(const MeshLinks&) = delete;  // its links point here

  // Begins a pair: dispatch is exchange `sequence` of the step, combine the next one, both among
  // `ranks`. `layer` is the ordinal among the layers with experts. `comm` must outlive the pair.
  void Begin(Communicator* comm, uint64_t step, uint64_t sequence, uint32_t layer,
             std::vector<uint32_t> ranks);
  // Records that the rank's message in a lane is malformed, for the report of an abandoned step
  // (Communicator::missed).
  void TellHostile(uint32_t rank, dispatch::Lane lane);

  uint32_t ranks() const override { return static_cast<uint32_t>(links_.size()); }
  uint32_t rank() const override { return comm_->rank(); }
  dispatch::Link* at(uint32_t rank) override {
    return rank == comm_->rank() ? nullptr : &links_[rank];
  }
  // Errors as Communicator::Exchange.
  Status Settle(dispatch::Lane lane) override;

 private:
  class MeshLink final : public dispatch::Link {
   public:
    MeshLink(MeshLinks* all, uint32_t rank) : all_(all), rank_(rank) {}
    std::span<uint8_t> Room(dispatch::Lane lane, size_t want) override;
    void Publish(dispatch::Lane lane, size_t bytes) override;
    std::span<const uint8_t> Front(dispatch::Lane lane) override;
    void Pop(dispatch::Lane lane) override;
    // The mesh sends heartbeats itself.
    void Beat() override {}
    uint64_t Beats() override { return 0; }
    // Succeeds before the exchange; afterwards no more data will arrive.
    Status Work() override;
    void HangUp() override {}
    const char* path() const override { return "mesh"; }

   private:
    MeshLinks* all_;
    uint32_t rank_;
  };
  struct Way {
    std::vector<Bytes> send, came;  // [ranks]
  };
  void Doing(dispatch::Lane lane);
  Way& way(dispatch::Lane lane) { return ways_[static_cast<size_t>(lane)]; }

  Communicator* comm_ = nullptr;
  uint64_t step_ = 0, sequence_ = 0;
  uint32_t layer_ = 0;
  bool settled_ = false;  // an exchange of this pair has ended
  std::vector<uint32_t> among_;
  std::vector<MeshLink> links_;
  std::array<Way, dispatch::kLanes> ways_;
};

}  // namespace tangram::engine
