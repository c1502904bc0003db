// The safetensors container: an 8-byte little-endian header length, a JSON header, data.
// Format: https://huggingface.co/docs/safetensors. Every claim of the header is checked
// against the file before a byte of data is used.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "agent/base/status.h"
#include "tangram/v1/layout.pb.h"

namespace tangram::loader {

struct TensorInfo {
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  std::vector<uint64_t> shape;
  uint64_t begin = 0;  // absolute offset in the file
  uint64_t bytes = 0;
};

// Bytes per element, 0 for types that Tangram does not support.
uint64_t ElementBytes(v1::DType dtype);

// Reads the header of a file of `file_bytes` bytes; `prefix` is its start and must contain the
// whole header (8 + header length). `file` is for messages. Rejects: a length beyond the file or 64
// MiB, invalid JSON, unknown types, shapes that do not match the offsets, ranges outside the file,
// overlaps, gaps, repeated names. kInvalid names file and tensor.
Result<std::map<std::string, TensorInfo>> ParseHeader(std::string_view prefix, uint64_t file_bytes,
                                                      const std::string& file);
// The necessary length of the prefix, from the first 8 bytes.
Result<uint64_t> HeaderBytes(std::string_view first8, uint64_t file_bytes, const std::string& file);

}  // namespace tangram::loader
