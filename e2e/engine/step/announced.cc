#include "e2e/engine/step/announced.h"

#include <string>

namespace tangram::engine {

Bytes Announced::Encode() const {
  ByteWriter writer;
  writer.Put(figures);
  writer.Put(filled.attempt);
  if (filled.attempt != 0) {
    writer.PutVector(filled.blocks);
    writer.PutVector(filled.homes);
    writer.PutVector(filled.strips);
  }
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
  out.filled.attempt = reader.Get<uint64_t>();
  if (out.filled.attempt != 0) {
    out.filled.blocks = reader.GetVector<uint32_t>();
    out.filled.homes = reader.GetVector<uint32_t>();
    if (!out.filled.homes.empty() && out.filled.homes.size() != out.filled.blocks.size()) {
      return Status{Code::kInternal, "announced step: " + std::to_string(out.filled.homes.size()) +
                                         " homes of " + std::to_string(out.filled.blocks.size()) +
                                         " blocks"};
    }
    out.filled.strips = reader.GetVector<kv::Strip>();
  }
  for (const kv::Strip& strip : out.filled.strips) {
    const uint64_t last = strip.page + (uint64_t{strip.layers} - 1) * strip.stride;
    if (strip.layers == 0 || last > UINT32_MAX ||
        uint64_t{strip.layer} + strip.layers > UINT32_MAX) {
      return Status{Code::kInternal, "announced step: a strip of " + std::to_string(strip.layers) +
                                         " layers from page " + std::to_string(strip.page) + " on"};
    }
  }
  out.freed = reader.GetVector<uint32_t>();
  const uint32_t items = reader.Get<uint32_t>();
  uint64_t rows = 0;
  for (uint32_t i = 0; i < items && reader.ok(); ++i) {
    BatchItem item;
    item.start = reader.Get<uint32_t>();
    item.count = reader.Get<uint32_t>();
    item.blocks = reader.GetVector<uint32_t>();
    rows += item.count;
    // Readers index page lists by these positions.
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
