// Rows that a peer sends, in arbitrary bytes: refused, or exactly what it would have encoded.
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "agent/engine/exchange/message.h"

using namespace tangram::engine;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  const RowFormat format{1u + data[0], 1u + data[1] % 16,
                         data[2] % 2 == 0 ? Element::kF32 : Element::kBf16};
  const Bytes bytes(data + 3, data + size);
  const auto message = RowMessage::Decode(format, bytes);
  if (!message.ok()) return 0;
  const size_t rows = message->rows;
  std::vector<float> x(rows * format.hidden), weights(rows * format.top_k);
  std::vector<int32_t> choices(rows * format.top_k);
  std::vector<uint32_t> numbers(rows);
  std::iota(numbers.begin(), numbers.end(), 0u);
  ToFloat(format.element, message->x, x.size(), x.data());
  if (rows > 0) {
    std::memcpy(choices.data(), message->choices, choices.size() * sizeof(int32_t));
    std::memcpy(weights.data(), message->weights, weights.size() * sizeof(float));
  }
  if (RowMessage::Encode(format, numbers, message->x, weights.data(), choices) != bytes)
    std::abort();
  return 0;
}
