// The folder of a checkpoint: which of its files hold the weights.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "agent/loader/file.h"

namespace tangram::loader {

// The path of a file in the folder, whose name may end in slashes.
std::string PathIn(const std::string& directory, const std::string& name);

// Opens a file of a checkpoint. kInvalid names the file, and says so if it is a pointer that Git
// LFS left in its place, or a symbolic link to nothing.
Result<std::unique_ptr<File>> OpenFile(const std::string& path);

// The text of config.json or of an index: at most 64 MiB.
Result<std::string> ReadText(const std::string& path);

struct Weights {
  std::vector<std::string> files;                 // names in the folder
  std::string index;                              // path of the index; empty: none was read
  std::map<std::string, std::string> weight_map;  // of the index: from tensor to file
};

// model.safetensors, which comes first as in transformers; else what model.safetensors.index.json
// names; else all of model-00001-of-N to model-N-of-N. kInvalid says which of them are missing.
Result<Weights> FindWeights(const std::string& directory);

}  // namespace tangram::loader
