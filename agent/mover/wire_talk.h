// Messages between the two ends of a comm channel: frames on a connection of the data port, next to
// the bytes on the channel. {u32 type, u32 bytes of the body}, little-endian, then the body.
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

// Sent in place of a token: the connection is for a comm channel from here on.
inline const std::string kWireToken("tangram-wire-1\0\0", 16);

enum class Said : uint32_t {
  kHello = 1,  // reader: {kind of the library, a zero, its `hello`}
  kAnswer,     // source: `answer` for the reader's end
  kOpen,       // source: its end is open
  kPieces,     // reader: {16 bytes of token, cut}
  kKv,         // reader: {16 bytes of token}; once, before kRead
  kRead,       // reader: {cut, the ranges as at the data port}
  kGo,         // source: it posts sends now
  kOver,       // source: all was sent; {u64 digest of KV, or 0}
  kRefused,    // source: {reason}; the connection ends
};
// A cut is {u32 count, count x u64}: the bytes of each message on the channel, in order.
using Cut = std::vector<uint64_t>;

struct Word {
  Said said = Said::kRefused;
  std::vector<uint8_t> body;
};

// One thread at a time.
class WireTalk {
 public:
  WireTalk(std::unique_ptr<net::Stream> stream, TimeSource& time);

  // Sends kWireToken, before all messages.
  Status Begin(const std::stop_token& stop);
  Status Say(Said said, std::span<const std::byte> body, const std::stop_token& stop);
  // The next message of the other end; nothing: not yet. kUnavailable: it disconnected.
  Result<std::optional<Word>> Heard();
  // Polls until `there` returns true, and reads messages of the other end meanwhile: a rejection or
  // a disconnect ends the wait. kUnavailable: `what` took longer than `most`.
  Status Until(const std::function<Result<bool>()>& there, std::chrono::milliseconds most,
               const std::string& what, const std::stop_token& stop);
  // Waits for a message, which must have this type.
  Result<std::vector<uint8_t>> Expect(Said said, std::chrono::milliseconds most,
                                      const std::stop_token& stop);
  const net::Stream& stream() const { return *stream_; }

 private:
  TimeSource& time_;
  const std::unique_ptr<net::Stream> stream_;
  net::FrameReader frame_;
  std::optional<Word> early_;  // received during another wait
};

// Builds bodies.
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

// Removes a cut from the front of a body. kInvalid: it has none.
Result<Cut> TakeCut(std::span<const uint8_t>* body);

}  // namespace tangram::mover
