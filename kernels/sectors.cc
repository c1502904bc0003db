#include "kernels/sectors.h"

#include <algorithm>
#include <bit>

namespace tangram::kernels {

void CountingMemory::Begin(const Where& where) {
  const uint64_t warp = (uint64_t{where.block} << 32) | where.thread / kWarp;
  if (warp != warp_) EndWarp();
  warp_ = warp;
  round_ = 0;
  Request(0);
}

Traffics CountingMemory::Total() {
  EndWarp();
  return total_;
}

void CountingMemory::Touch(bool store, uint64_t address, uint64_t bytes) {
  const uint32_t access = store ? in_request_.stores++ : in_request_.loads++;
  Sectors& sectors = requests_[{store, round_, number_, access}];
  for (const uint64_t end = address + bytes; address < end;) {
    const uint64_t at = address % kSector, part = std::min(end - address, kSector - at);
    sectors[address / kSector] |= static_cast<uint32_t>(((uint64_t{1} << part) - 1) << at);
    address += part;
  }
}

void CountingMemory::EndWarp() {
  for (const auto& [key, sectors] : requests_) {
    Traffic& traffic = std::get<0>(key) ? total_.stores : total_.loads;
    ++traffic.requests;
    traffic.sectors += sectors.size();
    for (const auto& [sector, bytes] : sectors) {
      traffic.bytes += static_cast<uint64_t>(std::popcount(bytes));
      traffic.full += bytes == UINT32_MAX ? 1 : 0;
    }
  }
  requests_.clear();
}

}  // namespace tangram::kernels
