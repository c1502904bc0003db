// Frames from a stream: a header of fixed size that states the body's length, then the body.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "agent/base/status.h"
#include "agent/net/stream.h"

namespace tangram::net {

// Holds at most one frame. Memory is allocated as bytes arrive, not as a header announces them.
class FrameReader {
 public:
  // The body's size that a header announces, or the reason for rejecting it.
  using Measure = std::function<Result<size_t>(std::span<const std::byte> header)>;

  FrameReader(size_t header_bytes, Measure measure)
      : header_(header_bytes), measure_(std::move(measure)) {}

  // Reads available bytes until the frame is whole, and no byte beyond it. After an error the
  // stream is unusable: every later call returns the same error. `*moved` grows by the bytes
  // received.
  Status Read(Stream& stream, uint64_t* moved = nullptr);
  bool whole() const { return measured_ && have_ == size_; }
  std::span<const std::byte> header() const { return header_; }
  // Returns the body of a whole frame and begins the next frame.
  std::vector<uint8_t> Take();

  // The two halves of Read, for bytes from another source: room for the next bytes (never more than
  // the frame lacks), and the number of bytes filled in.
  std::span<std::byte> Room();
  Status Filled(size_t bytes);

 private:
  std::vector<std::byte> header_;
  Measure measure_;
  std::vector<uint8_t> body_;
  size_t have_ = 0;  // of the header, or of the body once the size is known
  size_t size_ = 0;  // of the body
  bool measured_ = false;
  Status error_;
};

}  // namespace tangram::net
