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

  // The work of the exchanges from here on: a step of this many rows; nullopt: work that no size
  // describes (a flip, the first step of an epoch).
  void SetWork(std::optional<uint64_t> rows) { rows_ = rows; }

  // The operation that the exchanges belong to, for the report of a lost rank. `layer`: ordinal
  // among the layers with experts. `point`: a fault point in them (Mesh::Terms).
  void SetDoing(tg_doing doing, uint32_t layer = 0, std::string_view point = {}) {
    doing_ = doing;
    layer_ = layer;
    point_ = point;
  }
  // Records a lost rank that the caller detects and no exchange does.
  void Missed(uint32_t rank, tg_cause cause) {
    missed_.push_back({rank, static_cast<uint32_t>(cause), static_cast<uint32_t>(doing_), layer_});
  }
  // The ranks because of which the last failed exchange failed.
  const std::vector<tg_missed>& missed() const { return missed_; }

  // All-to-all among `ranks` (including this one; each of them calls with the same list): send[r]
  // goes to rank r, recv[r] is what r sent here. Both have size() entries; those of ranks outside
  // the list are left alone.
  Status Exchange(uint64_t step, uint64_t sequence, std::span<const uint32_t> ranks,
                  const std::vector<Bytes>& send, std::vector<Bytes>* recv);
  // Among all ranks: the same bytes to each.
  Status Gather(uint64_t step, uint64_t sequence, const Bytes& mine, std::vector<Bytes>* recv);
  // Whether this epoch has begun elsewhere: a frame of it waits here.
  bool Begun() const;

 private:
  Status Exchange(const Tag& tag, std::span<const std::string> members,
                  std::span<const Bytes* const> send, std::span<Bytes> recv);

  Mesh* mesh_ = nullptr;
  uint64_t epoch_ = 0;
  uint32_t rank_ = 0;
  std::vector<std::string> members_;
  Patience* patience_ = nullptr;  // owned by the engine
  std::optional<uint64_t> rows_;
  tg_doing doing_ = TG_IN_VOTE;
  uint32_t layer_ = 0;
  std::string_view point_;
  std::vector<tg_missed> missed_;
};

}  // namespace tangram::engine
