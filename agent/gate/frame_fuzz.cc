// The bytes of a socket in arbitrary pieces: for any input the decoder returns messages or an
// error, and a decoded message survives a round trip.
#include <cstdlib>

#include "agent/gate/frame.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t step = 1 + data[0];
  tangram::FrameDecoder decoder;
  for (size_t at = 1; at < size; at += step) {
    decoder.Feed({reinterpret_cast<const char*>(data) + at, std::min(step, size - at)});
    while (true) {
      auto frame = decoder.Next();
      if (!frame.ok()) return 0;
      if (!frame->has_value()) break;
      tangram::v1::EngineMessage again;
      if (!again.ParseFromString((*frame)->message.SerializeAsString())) std::abort();
    }
  }
  return 0;
}
