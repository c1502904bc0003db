// What another engine may send in a step: decoded, or an error; what is decoded holds what its
// readers rely on and survives a round trip.
#include <cstdlib>

#include "e2e/engine/step/announced.h"
#include "e2e/engine/step/expert_message.h"

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

void ReadExperts(const Bytes& bytes, size_t hidden) {
  const auto message = ExpertMessage::Decode(bytes, hidden);
  if (!message.ok()) return;
  std::vector<uint32_t> rows;
  for (uint32_t row = 0; row < message->rows; ++row) rows.push_back(row);
  if (ExpertMessage::Encode(rows, {message->x, message->rows * hidden}, hidden, message->entries) !=
      bytes) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const Bytes bytes(data + 1, data + size);
  if (data[0] % 2 == 0) {
    ReadAnnounced(bytes, 1 + data[0] / 2);
  } else {
    ReadExperts(bytes, 1 + data[0] / 2);
  }
  return 0;
}
