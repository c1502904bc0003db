// What two ends of a wire say to each other: frames on a connection of the data port, beside the
// bytes that go over the wire. {u32 what, u32 bytes of the body}, little-endian, then the body.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <type_traits>
#include <vector>

#include "agent/base/status.h"
#include "agent/mover/wire_turns.h"
#include "agent/net/frame.h"
#include "agent/net/stream.h"

namespace tangram::mover {

// Comes in place of a token: the connection is of a wire from here on.
inline const std::string kWireToken("tangram-wire-1\0\0", 16);

enum class Said : uint32_t {
  kHello = 1,  // reader: {kind of the wires, a zero, what was offered}
  kAnswer,     // source: what the reader's end is told
  kOpen,       // source: its end stands
  kPieces,     // reader: {16 bytes of token, cut}
  kKv,         // reader: {16 bytes of token}; once, before kRead
  kRead,       // reader: {cut, the ranges as at the data port}
  kGo,         // source: it posts now
  kOver,       // source: all was sent; {u64 digest of KV, or 0}
  kRefused,    // source: {why}; the connection ends
};
// A cut is {u32 count, count x u64}: of how many bytes each message over the wire is, in order.
using Cut = std::vector<uint64_t>;

struct Word {
  Said said = Said::kRefused;
  std::vector<uint8_t> body;
};

// One thread at a time.
class WireTalk {
 public:
  WireTalk(std::unique_ptr<net::Stream> stream, TimeSource& time);

  // What comes before all words.
  Status Begin(const std::stop_token& stop);
  Status Say(Said said, std::span<const std::byte> body, const std::stop_token& stop);
  // What the other end says; nothing: not yet. kUnavailable: it is gone.
  Result<std::optional<Word>> Heard();
  // Looks until `there` is so, and hears what the other end says meanwhile: a refusal, or its end,
  // ends the wait. kUnavailable: it took longer than `most` (`what` did).
  Status Until(const std::function<Result<bool>()>& there, std::chrono::milliseconds most,
               const std::string& what, const std::stop_token& stop);
  // Waits for a word, which must be that.
  Result<std::vector<uint8_t>> Expect(Said said, std::chrono::milliseconds most,
                                      const std::stop_token& stop);
  const net::Stream& stream() const { return *stream_; }

 private:
  TimeSource& time_;
  const std::unique_ptr<net::Stream> stream_;
  net::FrameReader frame_;
  std::optional<Word> early_;  // heard while something else was waited for
};

// Bodies.
class WireBody {
 public:
  template <typename T>
  requires std::is_integral_v<T> WireBody& Add(T number) {
    return Add(std::as_bytes(std::span(&number, 1)));
  }
  WireBody& Add(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  WireBody& Add(const std::string& text) { return Add(std::as_bytes(std::span(text))); }
  WireBody& Add(const Cut& cut) {
    Add(static_cast<uint32_t>(cut.size()));
    return Add(std::as_bytes(std::span(cut)));
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// Takes a cut off the front of a body. kInvalid: it has none.
Result<Cut> TakeCut(std::span<const uint8_t>* body);

}  // namespace tangram::mover
