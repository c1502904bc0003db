// Writes checkpoints of real sizes for benches, without a whole tensor in memory.
#pragma once

#include <string>
#include <vector>

#include "agent/loader/testing/writer.h"

namespace tangram::loader::testing {

// Writes config.json, an index and files like those of the hub: bf16 tensors in order of their
// names, at most 1 GiB per file, on disk when it returns. The bytes are one random block, and each
// tensor starts at another offset in it. Returns the paths of the files.
std::vector<std::string> WriteLarge(const std::string& directory, const ModelShape& shape);

}  // namespace tangram::loader::testing
