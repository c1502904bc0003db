// Writes checkpoints of real sizes, for benches: no tensor is held in memory.
#pragma once

#include <string>
#include <vector>

#include "agent/loader/testing/writer.h"

namespace tangram::loader::testing {

// config.json, an index and files as the hub's: bf16 tensors in order of their names, 1 GiB or less
// of them in each; on the disk when it returns. Their bytes are drawn by chance once, and each
// tensor begins elsewhere in them. The paths of the files.
std::vector<std::string> WriteLarge(const std::string& directory, const ModelShape& shape);

}  // namespace tangram::loader::testing
