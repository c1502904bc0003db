// The members of one epoch, by rank, over the mesh.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/engine/mesh/mesh.h"

namespace tangram::engine {

class Communicator {
 public:
  Communicator() = default;
  Communicator(Mesh* mesh, uint64_t epoch, uint32_t rank, std::vector<std::string> members,
               Patience* patience);

  uint64_t epoch() const { return epoch_; }
  uint32_t rank() const { return rank_; }
  uint32_t size() const { return static_cast<uint32_t>(members_.size()); }
  const std::vector<std::string>& members() const { return members_; }

  // What the exchanges from here on are for: a step of so many rows; nullopt: something that is
  // like no other (a flip, the first step of an epoch).
  void SetWork(std::optional<uint64_t> rows) { rows_ = rows; }

  // What they are part of, for whoever is told of a rank that is missed in one; `layer`: of those
  // with experts. `point`: a fault point in them (Mesh::Terms).
  void SetDoing(tg_doing doing, uint32_t layer = 0, std::string_view point = {}) {
    doing_ = doing;
    layer_ = layer;
    point_ = point;
  }
  // Of a rank that a caller finds what no exchange sees.
  void Missed(uint32_t rank, tg_cause cause) {
    missed_.push_back({rank, static_cast<uint32_t>(cause), static_cast<uint32_t>(doing_), layer_});
  }
  // For whom the exchange that failed last did.
  const std::vector<tg_missed>& missed() const { return missed_; }

  // All-to-all among `ranks` (this one among them; every one of them calls with the same
  // list): send[r] goes to rank r, recv[r] is what r sent here. Both have size() entries;
  // those of ranks outside the list are left alone.
  Status Exchange(uint64_t step, uint64_t sequence, std::span<const uint32_t> ranks,
                  const std::vector<Bytes>& send, std::vector<Bytes>* recv);
  // Among all: the same bytes to everyone.
  Status Gather(uint64_t step, uint64_t sequence, const Bytes& mine, std::vector<Bytes>* recv);
  // Has this epoch begun elsewhere: does a frame of it wait here?
  bool Begun() const;

 private:
  Status Exchange(const Tag& tag, std::span<const std::string> members,
                  std::span<const Bytes* const> send, std::span<Bytes> recv);

  Mesh* mesh_ = nullptr;
  uint64_t epoch_ = 0;
  uint32_t rank_ = 0;
  std::vector<std::string> members_;
  Patience* patience_ = nullptr;  // of the engine
  std::optional<uint64_t> rows_;
  tg_doing doing_ = TG_IN_VOTE;
  uint32_t layer_ = 0;
  std::string_view point_;
  std::vector<tg_missed> missed_;
};

}  // namespace tangram::engine
