// The members of one epoch, by rank, over the mesh.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "e2e/engine/mesh/mesh.h"

namespace tangram::engine {

class Communicator {
 public:
  Communicator() = default;
  Communicator(Mesh* mesh, uint64_t epoch, uint32_t rank, std::vector<std::string> members,
               std::chrono::milliseconds timeout);

  uint64_t epoch() const { return epoch_; }
  uint32_t rank() const { return rank_; }
  uint32_t size() const { return static_cast<uint32_t>(members_.size()); }
  const std::vector<std::string>& members() const { return members_; }

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
  Mesh* mesh_ = nullptr;
  uint64_t epoch_ = 0;
  uint32_t rank_ = 0;
  std::vector<std::string> members_;
  std::chrono::milliseconds timeout_{};
};

}  // namespace tangram::engine
