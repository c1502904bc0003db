// What the ranks of one process read of a checkpoint, read together: who reads a part of an expert
// reads with it the parts that the others still want, so that a shard's columns of `down` come in
// large reads, and each byte once.
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
  // Granules of an expert, of which there may be none, and its tail, if that has bytes, and where
  // they go; nobody else writes there while it is enrolled.
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
    Status failed;  // why the last read of it failed, if it did; told once
    std::vector<uint64_t> hashes;
  };

 public:
  // What one rank wants. Ends with nobody writing to the rank's memory any more.
  class List {
   public:
    ~List();
    List(const List&) = delete;
    List& operator=(const List&) = delete;
    // Blocks until the want `i` is there, read here or by another rank's thread; the hashes of its
    // granules, then of the tail if it is wanted. Thread-safe. Errors as of Checkpoint::ReadRuns;
    // it may be asked for again.
    Result<std::vector<uint64_t>> Bring(size_t i);

   private:
    friend class SharedReads;
    List(SharedReads* reads, std::vector<Want> wants);

    SharedReads* const reads_;
    std::vector<Entry> entries_;
  };

  explicit SharedReads(std::shared_ptr<const Checkpoint> checkpoint)
      : checkpoint_(std::move(checkpoint)) {}
  // Must outlive the list.
  std::unique_ptr<List> Enrol(std::vector<Want> wants) {
    return std::unique_ptr<List>(new List(this, std::move(wants)));
  }

 private:
  using Key = std::pair<uint32_t, uint32_t>;  // layer, expert
  std::vector<Entry*> TakeLocked(Entry* mine);
  Status Read(std::span<Entry* const> entries) const;

  const std::shared_ptr<const Checkpoint> checkpoint_;
  std::mutex mu_;
  std::condition_variable changed_;            // an entry is read no more
  std::map<Key, std::vector<Entry*>> wanted_;  // not there yet
};

}  // namespace tangram::loader
