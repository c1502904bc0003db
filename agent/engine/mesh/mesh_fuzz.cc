// Bytes of a mesh peer, in arbitrary pieces: frames or an error. Memory held never exceeds the
// bytes received (but for the first megabyte), and a hello survives a round trip.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "agent/engine/mesh/wire.h"
#include "agent/net/frame.h"

using tangram::engine::FrameHeader;
using tangram::engine::Hello;
using tangram::engine::PayloadBytes;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const uint64_t most = data[0] % 2 == 0 ? FrameHeader::kMaxHello : FrameHeader::kMaxLength;
  const size_t step = 1 + data[0] / 2;
  std::span<const uint8_t> rest(data + 1, size - 1);
  tangram::net::FrameReader reader(sizeof(FrameHeader), [most](std::span<const std::byte> header) {
    return PayloadBytes(header, most);
  });
  while (!rest.empty()) {
    const std::span<std::byte> room = reader.Room();
    if (room.empty() || room.size() > (1u << 20) + size) std::abort();
    const size_t n = std::min({room.size(), rest.size(), step});
    std::memcpy(room.data(), rest.data(), n);
    rest = rest.subspan(n);
    if (!reader.Filled(n).ok()) return 0;
    if (!reader.whole()) continue;
    const auto payload = reader.Take();
    if (payload.size() > most) std::abort();
    if (const auto hello = Hello::Decode(payload); hello.ok() && hello->Encode() != payload) {
      std::abort();
    }
  }
  return 0;
}
