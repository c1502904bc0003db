// The header parser on arbitrary bytes. An accepted header must tile the file.
#include <cstdlib>

#include "agent/loader/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const auto parsed = tangram::loader::ParseHeader(file, size, "fuzz");
  if (!parsed.ok()) {
    if (parsed.status().message().find('\n') != std::string::npos) abort();
    return 0;
  }
  uint64_t sum = 0;
  for (const auto& [name, tensor] : *parsed) {
    uint64_t bytes = tangram::loader::ElementBytes(tensor.dtype);
    for (const uint64_t n : tensor.shape) bytes *= n;
    if (bytes != tensor.bytes || tensor.begin < 8 || tensor.begin + tensor.bytes > size) abort();
    sum += tensor.bytes;
  }
  const auto header = tangram::loader::HeaderBytes(file.substr(0, 8), size, "fuzz");
  if (!header.ok() || *header + sum != size) abort();
  return 0;
}
