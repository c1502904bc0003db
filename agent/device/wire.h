// Comm channels: connections between the memories of two processes by a communication library (NCCL
// between GPUs, UCX). Each end posts its sends and receives, in the same order and of the same
// sizes. Bytes pass through buffers that the channel owns, never through memory of pieces or KV. So
// after a failure the library holds only its own memory, and the end of a lease waits for no
// network.
//
// Nothing here blocks. The caller polls, and calls Abort after a timeout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "agent/base/status.h"
#include "agent/device/memory.h"

namespace tangram::device {

// One end of a channel. One thread at a time. An error is final, and has aborted this end.
class Wire {
 public:
  static constexpr size_t kBuffers = 2;  // one is filled or emptied while the other is being sent

  virtual ~Wire() = default;  // like Abort
  // Called once, on the offering end, with the result of the other end's Accept.
  virtual Status Answered(const std::string& answer) = 0;
  // Whether the channel is open; false: not yet. kUnavailable: it never will be.
  virtual Result<bool> Open() = 0;
  // A buffer of WireOptions::buffer_bytes; `buffer` is less than kBuffers.
  virtual Memory Buffer(size_t buffer) const = 0;
  // Post a buffer that is not in use, once the channel is open. Posted work ends in order.
  virtual Status Send(size_t buffer, uint64_t bytes) = 0;
  virtual Status Receive(size_t buffer, uint64_t bytes) = 0;
  // Whether the last posted work of a buffer has ended; also true if there was none. kUnavailable:
  // it never will: the other end was lost, or the library failed.
  virtual Result<bool> Done(size_t buffer) = 0;
  // Ends all posted work. The other end may detect it late or never.
  virtual void Abort() = 0;
};

struct WireOptions {
  std::string name;     // "nccl", "ucx"; empty: the default for the platform's memory
  std::string library;  // found by the loader, or a path; empty: the default
  uint64_t buffer_bytes = 16 << 20;
};

// All channels of a process. Thread-safe.
class Wires {
 public:
  virtual ~Wires() = default;
  virtual const char* name() const = 0;
  // Library and version; must be the same string at both ends.
  virtual const std::string& kind() const = 0;
  // One end, and the `hello` for the other process.
  virtual Result<std::unique_ptr<Wire>> Offer(std::string* hello) = 0;
  // The other end for a `hello`, and the `answer` for the offering end.
  virtual Result<std::unique_ptr<Wire>> Accept(const std::string& hello, std::string* answer) = 0;
};

}  // namespace tangram::device
