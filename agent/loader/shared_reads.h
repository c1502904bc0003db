// Checkpoint reads shared by the ranks of one process. A rank that reads a part of an expert also
// reads the parts that the others still need. So columns of `down` are read in large blocks, and
// each byte once.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "agent/device/memory.h"
#include "agent/loader/checkpoint.h"

namespace tangram::loader {

class SharedReads {
 public:
  // Granules of an expert (may be none), its tail if that has bytes, and their destinations. While
  // it is registered, no other code writes to these.
  struct Want {
    uint32_t layer = 0, expert = 0;
    layout::Run run;
    device::Memory to, tail;
  };

 private:
  enum class State { kOpen, kReading, kThere };
  struct Entry {
    Want want;
    State state = State::kOpen;
    Status failed;  // error of the last read; reported once
    std::vector<uint64_t> hashes;
  };

 public:
  // The reads of one rank. After its destructor no thread writes to the rank's memory.
  class List {
   public:
    ~List();
    List(const List&) = delete;
    List& operator=(const List&) = delete;
    // Blocks until entry `i` was read, by this or by another rank's thread. Returns the hashes of
    // its granules, then of the tail if requested. Thread-safe. Errors as of Checkpoint::ReadRuns;
    // the call may be repeated.
    Result<std::vector<uint64_t>> Bring(size_t i);

   private:
    friend class SharedReads;
    List(SharedReads* reads, std::vector<Want> wants);

    SharedReads* const reads_;
    std::vector<Entry> entries_;
  };

  explicit SharedReads(std::shared_ptr<const Checkpoint> checkpoint)
      : checkpoint_(std::move(checkpoint)) {}
  // `this` must outlive the list.
  std::unique_ptr<List> Enrol(std::vector<Want> wants) {
    return std::unique_ptr<List>(new List(this, std::move(wants)));
  }

 private:
  using Key = std::pair<uint32_t, uint32_t>;  // layer, expert
  std::vector<Entry*> TakeLocked(Entry* mine);
  Status Read(std::span<Entry* const> entries) const;

  const std::shared_ptr<const Checkpoint> checkpoint_;
  std::mutex mu_;
  std::condition_variable changed_;            // a read of an entry has ended
  std::map<Key, std::vector<Entry*>> wanted_;  // not read yet
};

}  // namespace tangram::loader
