// Requests for KV at the data port, with arbitrary bytes: ranges of the region, or an error.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "agent/mover/kv_wire.h"
#include "agent/mover/transport.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  static std::vector<std::byte> bytes(5000);
  const auto region = tangram::device::Memory::Own(bytes);
  const size_t step = 1 + data[0];
  std::span<const uint8_t> rest(data + 1, size - 1);
  auto reader = tangram::mover::KvRequests();
  while (!rest.empty()) {
    const std::span<std::byte> room = reader.Room();
    if (room.empty()) std::abort();
    const size_t n = std::min({room.size(), rest.size(), step});
    std::memcpy(room.data(), rest.data(), n);
    rest = rest.subspan(n);
    if (!reader.Filled(n).ok()) return 0;
    if (!reader.whole()) continue;
    const auto ranges = tangram::mover::RangesOf(reader.Take(), region);
    if (!ranges.ok()) return 0;
    if (ranges->size() > tangram::mover::kMostRanges) std::abort();
    for (const tangram::device::Memory& range : *ranges) {
      if (range.address < region.address ||
          range.address + range.bytes > region.address + region.bytes) {
        std::abort();
      }
    }
  }
  return 0;
}
