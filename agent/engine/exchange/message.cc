#include "agent/engine/exchange/message.h"

#include <bit>
#include <cstring>
#include <string>

namespace tangram::engine {
namespace {

struct Head {
  uint32_t rows, top_k, hidden, element;
};

}  // namespace

Bytes RowMessage::Encode(const RowFormat& format, std::span<const uint32_t> rows, const void* x,
                         const float* weights, std::span<const int32_t> choices) {
  if (rows.empty()) return {};
  const Head head{static_cast<uint32_t>(rows.size()), format.top_k, format.hidden,
                  static_cast<uint32_t>(format.element)};
  Bytes out(sizeof head + rows.size() * format.row_bytes());
  uint8_t* to = out.data();
  const auto put = [&to](const void* from, size_t size) {
    std::memcpy(to, from, size);
    to += size;
  };
  put(&head, sizeof head);
  const size_t x_bytes = format.hidden * BytesOf(format.element);
  for (const uint32_t row : rows) put(static_cast<const uint8_t*>(x) + row * x_bytes, x_bytes);
  put(choices.data(), choices.size_bytes());
  for (const uint32_t row : rows)
    put(weights + size_t{row} * format.top_k, format.top_k * sizeof(float));
  return out;
}

Result<RowMessage> RowMessage::Decode(const RowFormat& format, std::span<const uint8_t> bytes) {
  if (bytes.empty()) return RowMessage{};
  ByteReader reader(bytes);
  const auto head = reader.Get<Head>();
  if (!reader.ok() || head.rows == 0 || head.top_k != format.top_k ||
      head.hidden != format.hidden || head.element != static_cast<uint32_t>(format.element) ||
      (bytes.size() - sizeof head) / format.row_bytes() != head.rows ||
      (bytes.size() - sizeof head) % format.row_bytes() != 0) {
    return Status{Code::kInternal,
                  "a message of " + std::to_string(bytes.size()) + " bytes, said to be " +
                      std::to_string(head.rows) + " rows of " + std::to_string(head.hidden) +
                      " elements of kind " + std::to_string(head.element) + " with " +
                      std::to_string(head.top_k) + " experts each; rows here have " +
                      std::to_string(format.hidden) + " of kind " +
                      std::to_string(static_cast<uint32_t>(format.element)) + " and " +
                      std::to_string(format.top_k)};
  }
  RowMessage out;
  out.rows = head.rows;
  out.x = reader.GetRaw(out.rows * uint64_t{format.hidden} * BytesOf(format.element));
  out.choices = reader.GetRaw(out.rows * uint64_t{format.top_k} * sizeof(int32_t));
  out.weights = reader.GetRaw(out.rows * uint64_t{format.top_k} * sizeof(float));
  return out;
}

void ToFloat(Element element, const void* from, size_t count, float* to) {
  if (element == Element::kF32) {
    if (count > 0) std::memcpy(to, from, count * sizeof(float));
    return;
  }
  const auto* const raw = static_cast<const uint8_t*>(from);
  for (size_t i = 0; i < count; ++i) {
    uint16_t half;
    std::memcpy(&half, raw + i * sizeof half, sizeof half);
    to[i] = std::bit_cast<float>(uint32_t{half} << 16);
  }
}

}  // namespace tangram::engine
