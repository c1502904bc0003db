// A way between the memories of two processes that a communication library makes: NCCL between
// GPUs, UCX. Each end posts what it sends and receives, both in the same order and of the same
// sizes. Bytes pass through buffers that the wire owns, never through memory of pieces or KV: what
// a library still holds when something breaks is its own, and a lease that ends waits for nobody's
// network.
//
// Nothing here blocks. Who waits looks again, and ends what takes too long by Abort.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "agent/base/status.h"
#include "agent/device/memory.h"

namespace tangram::device {

// One end. One thread at a time. An error is final, and has aborted this end.
class Wire {
 public:
  static constexpr size_t kBuffers = 2;  // one is filled or emptied while the other is under way

  virtual ~Wire() = default;  // as Abort
  // Of the end that offered, once: what the other's Accept told.
  virtual Status Answered(const std::string& answer) = 0;
  // Whether this end stands; false: not yet. kUnavailable: it never will.
  virtual Result<bool> Open() = 0;
  // Of WireOptions::buffer_bytes, below kBuffers.
  virtual Memory Buffer(size_t buffer) const = 0;
  // Of a buffer that is not under way, once the wire is open. What was posted is over in order.
  virtual Status Send(size_t buffer, uint64_t bytes) = 0;
  virtual Status Receive(size_t buffer, uint64_t bytes) = 0;
  // Whether what was posted last of a buffer is over; true too if nothing was. kUnavailable: it
  // never will be: the other end is gone, or the library failed.
  virtual Result<bool> Done(size_t buffer) = 0;
  // Ends whatever is under way; the other end learns it sooner or later, or never.
  virtual void Abort() = 0;
};

struct WireOptions {
  std::string name;     // "nccl", "ucx"; empty: what suits the platform's memory
  std::string library;  // that the loader finds, or a path; empty: the usual one
  uint64_t buffer_bytes = 16 << 20;
};

// All wires of a process. Thread-safe.
class Wires {
 public:
  virtual ~Wires() = default;
  virtual const char* name() const = 0;
  // What both ends must have, to the letter: library and version.
  virtual const std::string& kind() const = 0;
  // An end, and what the other process must be told of it.
  virtual Result<std::unique_ptr<Wire>> Offer(std::string* hello) = 0;
  // The other end of what was offered elsewhere, and what that end must be told.
  virtual Result<std::unique_ptr<Wire>> Accept(const std::string& hello, std::string* answer) = 0;
};

}  // namespace tangram::device
