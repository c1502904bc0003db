// What granules, tails and dense tensors hashed to when they were verified at the load, in a file
// that outlives the agent: who comes after it holds the memory that an engine kept to this, and
// never to what the memory says of itself.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "agent/base/unique_fd.h"
#include "agent/layout/geometry.h"

namespace tangram::store {

// The hash of a granule is that of its content alone, wherever it lies, so the file is a table of
// 8 bytes for each (MoE layer, expert, granule), then for each (MoE layer, expert) if experts have
// a tail, and then for each dense tensor; 0: never verified here. It is made whole at once, so that
// no disk that fills up takes a hash away. Written with plain writes: the page cache keeps them
// when the process dies (a machine that dies takes the engine's memory with it), and a file that
// somebody cuts short is an error, not a SIGBUS.
class HashFile {
 public:
  // Opens the file, or makes it anew (mode 0600) if it is not there or is of another revision,
  // geometry or number of tensors. kInvalid: it cannot be written.
  static Result<std::unique_ptr<HashFile>> Open(const std::string& path,
                                                const std::string& revision,
                                                const layout::GeometryView& geometry,
                                                size_t dense_tensors);

  // Thread-safe. `start` is the first granule's number. kInternal: the file cannot be written.
  Status Note(uint32_t layer, uint32_t expert, uint32_t start, std::span<const uint64_t> hashes);
  Status NoteTail(uint32_t layer, uint32_t expert, uint64_t hash);
  Status NoteDense(size_t tensor, uint64_t hash);

  // All that was noted. kInternal: the file cannot be read.
  struct Noted {
    std::vector<uint64_t> granules, tails, dense;
    const layout::GeometryView* geometry = nullptr;  // the HashFile's

    // 0: never noted.
    uint64_t Granule(uint32_t layer, uint32_t expert, uint32_t granule) const;
    uint64_t Tail(uint32_t layer, uint32_t expert) const;  // the geometry has tails
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
