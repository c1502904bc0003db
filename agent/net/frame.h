// Frames off a stream: a header of fixed size that says how long the body is, then the body.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "agent/base/status.h"
#include "agent/net/stream.h"

namespace tangram::net {

// Holds at most one frame, and memory only for what has come: what a header announces is
// allocated as it arrives.
class FrameReader {
 public:
  // The body's size that a header announces, or why it is none.
  using Measure = std::function<Result<size_t>(std::span<const std::byte> header)>;

  FrameReader(size_t header_bytes, Measure measure)
      : header_(header_bytes), measure_(std::move(measure)) {}

  // Takes what the stream has until the frame is whole, and no byte more. After an error the stream
  // is lost: every later call answers the same error. `*moved` grows by the bytes that came.
  Status Read(Stream& stream, uint64_t* moved = nullptr);
  bool whole() const { return measured_ && have_ == size_; }
  std::span<const std::byte> header() const { return header_; }
  // The body of a whole frame; the next one begins.
  std::vector<uint8_t> Take();

  // Read's two halves, for bytes that come from elsewhere: room for the next ones (never more
  // than the frame lacks), and how many of it were filled.
  std::span<std::byte> Room();
  Status Filled(size_t bytes);

 private:
  std::vector<std::byte> header_;
  Measure measure_;
  std::vector<uint8_t> body_;
  size_t have_ = 0;  // of the header, or of the body once that is measured
  size_t size_ = 0;  // of the body
  bool measured_ = false;
  Status error_;
};

}  // namespace tangram::net
