#include "e2e/engine/step/expert_message.h"

#include <cstring>

namespace tangram::engine {

Bytes ExpertMessage::Encode(std::span<const uint32_t> rows, std::span<const float> n, size_t hidden,
                            const std::vector<ExpertEntry>& entries) {
  ByteWriter writer;
  writer.Put<uint64_t>(rows.size());
  writer.Put<uint64_t>(entries.size());
  for (const uint32_t row : rows) {
    writer.PutRaw(n.data() + row * hidden, hidden * sizeof(float));
  }
  writer.PutRaw(entries.data(), entries.size() * sizeof(ExpertEntry));
  return writer.Take();
}

Result<ExpertMessage> ExpertMessage::Decode(const Bytes& bytes, size_t hidden) {
  const Status malformed{Code::kInternal, "a malformed message"};
  ByteReader reader(bytes);
  ExpertMessage out;
  out.rows = reader.Get<uint64_t>();
  const uint64_t entries = reader.Get<uint64_t>();
  // The products below stay small.
  if (out.rows > bytes.size() || entries > bytes.size()) return malformed;
  out.x = reinterpret_cast<const float*>(reader.GetRaw(out.rows * hidden * sizeof(float)));
  const uint8_t* list = reader.GetRaw(entries * sizeof(ExpertEntry));
  if (!reader.done()) return malformed;
  out.entries.resize(entries);
  if (entries > 0) std::memcpy(out.entries.data(), list, entries * sizeof(ExpertEntry));
  for (const ExpertEntry& entry : out.entries) {
    if (entry.row >= out.rows) return Status{Code::kInternal, "no such row"};
  }
  return out;
}

}  // namespace tangram::engine
