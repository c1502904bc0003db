// Load-time hashes of granules, tails and dense tensors, in a file that survives the agent. A
// restarted agent verifies the engine's memory against it, because memory cannot vouch for itself.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "agent/base/unique_fd.h"
#include "agent/layout/geometry.h"

namespace tangram::store {

// A granule's hash depends only on its content, so the file is a table: 8 bytes per (MoE layer,
// expert, granule), then per (MoE layer, expert) if experts have a tail, then per dense tensor; 0:
// never verified here. It is created at full size, so that a full disk loses no hash. Plain writes:
// the page cache keeps them if the process dies (if the machine dies, the engine's memory is lost,
// too), and a truncated file is an error, not a SIGBUS.
class HashFile {
 public:
  // Opens the file, or creates it (mode 0600) if it is missing or for another revision, geometry or
  // number of tensors. kInvalid: it cannot be written.
  static Result<std::unique_ptr<HashFile>> Open(const std::string& path,
                                                const std::string& revision,
                                                const layout::GeometryView& geometry,
                                                size_t dense_tensors);

  // Thread-safe. `start` is the first granule's index. kInternal: the file cannot be written.
  Status Note(uint32_t layer, uint32_t expert, uint32_t start, std::span<const uint64_t> hashes);
  Status NoteTail(uint32_t layer, uint32_t expert, uint64_t hash);
  Status NoteDense(size_t tensor, uint64_t hash);

  // All stored hashes. kInternal: the file cannot be read.
  struct Noted {
    std::vector<uint64_t> granules, tails, dense;
    const layout::GeometryView* geometry = nullptr;  // the HashFile's

    // 0: not stored.
    uint64_t Granule(uint32_t layer, uint32_t expert, uint32_t granule) const;
    uint64_t Tail(uint32_t layer, uint32_t expert) const;  // requires a geometry with tails
  };
  Result<Noted> Read() const;

 private:
  HashFile(std::string path, const layout::GeometryView& geometry, size_t dense_tensors)
      : path_(std::move(path)), geometry_(geometry), dense_tensors_(dense_tensors) {}
  Status Write(uint64_t index, std::span<const uint64_t> hashes);

  const std::string path_;
  const layout::GeometryView geometry_;
  const size_t dense_tensors_;
  UniqueFd fd_;
};

}  // namespace tangram::store
