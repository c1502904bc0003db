#include "agent/net/frame.h"

#include <algorithm>
#include <utility>

namespace tangram::net {
namespace {

// The minimum allocation for a body. Later allocations equal the bytes received so far.
constexpr size_t kFirst = 1 << 20;

}  // namespace

std::span<std::byte> FrameReader::Room() {
  if (!measured_) return std::span(header_).subspan(have_);
  if (have_ == body_.size()) body_.resize(std::min(size_, std::max(kFirst, 2 * have_)));
  return std::as_writable_bytes(std::span(body_)).subspan(have_);
}

Status FrameReader::Filled(size_t bytes) {
  have_ += bytes;
  if (measured_ || have_ < header_.size()) return OkStatus();
  const auto size = measure_(header_);
  if (!size.ok()) return error_ = size.status();
  measured_ = true;
  have_ = 0;
  size_ = *size;
  return OkStatus();
}

Status FrameReader::Read(Stream& stream, uint64_t* moved) {
  TANGRAM_RETURN_IF_ERROR(error_);
  while (!whole()) {
    const auto got = stream.Read(Room());
    if (!got.ok()) return got.status();
    if (*got == 0) return OkStatus();
    if (moved != nullptr) *moved += *got;
    TANGRAM_RETURN_IF_ERROR(Filled(*got));
  }
  return OkStatus();
}

std::vector<uint8_t> FrameReader::Take() {
  measured_ = false;
  have_ = 0;
  return std::exchange(body_, {});
}

}  // namespace tangram::net
