#include "e2e/engine/step/announced.h"

#include <string>

namespace tangram::engine {

Bytes Announced::Encode() const {
  ByteWriter writer;
  writer.Put(figures);
  writer.PutVector(freed);
  writer.Put<uint32_t>(static_cast<uint32_t>(batch.items.size()));
  for (const BatchItem& item : batch.items) {
    writer.Put(item.start);
    writer.Put(item.count);
    writer.PutVector(item.blocks);
  }
  return writer.Take();
}

Result<Announced> Announced::Decode(const Bytes& bytes, uint32_t block_tokens) {
  ByteReader reader(bytes);
  Announced out;
  out.figures = reader.Get<HomeFigures>();
  out.freed = reader.GetVector<uint32_t>();
  const uint32_t items = reader.Get<uint32_t>();
  uint64_t rows = 0;
  for (uint32_t i = 0; i < items && reader.ok(); ++i) {
    BatchItem item;
    item.start = reader.Get<uint32_t>();
    item.count = reader.Get<uint32_t>();
    item.blocks = reader.GetVector<uint32_t>();
    rows += item.count;
    // Page lists are read at these positions.
    if (uint64_t{item.start} + item.count > item.blocks.size() * uint64_t{block_tokens} ||
        rows > kMostRows) {
      return Status{Code::kInternal, "announced step: item " + std::to_string(i) +
                                         " has positions " + std::to_string(item.start) + " + " +
                                         std::to_string(item.count) + " in " +
                                         std::to_string(item.blocks.size()) + " blocks"};
    }
    out.batch.items.push_back(std::move(item));
  }
  if (!reader.done()) return Status{Code::kInternal, "malformed announced step"};
  return out;
}

}  // namespace tangram::engine
