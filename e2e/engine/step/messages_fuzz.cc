// Fuzz target of the messages of a step: any bytes are decoded or rejected. A decoded message
// satisfies its readers' assumptions and survives a round trip.
#include <cstdlib>

#include "e2e/engine/step/announced.h"

using namespace tangram::engine;

namespace {

void ReadAnnounced(const Bytes& bytes, uint32_t block_tokens) {
  const auto announced = Announced::Decode(bytes, block_tokens);
  if (!announced.ok()) return;
  uint64_t rows = 0;
  for (const BatchItem& item : announced->batch.items) {
    if (uint64_t{item.start} + item.count > item.blocks.size() * uint64_t{block_tokens})
      std::abort();
    rows += item.count;
  }
  if (rows != announced->batch.Rows()) std::abort();
  if (!Announced::Decode(announced->Encode(), block_tokens).ok()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  ReadAnnounced(Bytes(data + 1, data + size), 1 + data[0]);
  return 0;
}
