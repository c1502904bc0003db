// The folder of a checkpoint, and its files with weights.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "agent/loader/file.h"

namespace tangram::loader {

// The path of a file in the folder; `directory` may end in slashes.
std::string PathIn(const std::string& directory, const std::string& name);

// Opens a file of a checkpoint. kInvalid names the file, and says if it is a Git LFS pointer or a
// dangling symbolic link.
Result<std::unique_ptr<File>> OpenFile(const std::string& path);

// The text of config.json or of an index: at most 64 MiB.
Result<std::string> ReadText(const std::string& path);

struct Weights {
  std::vector<std::string> files;                 // names in the folder
  std::string index;                              // path of the index; empty: none was read
  std::map<std::string, std::string> weight_map;  // from the index: tensor to file
};

// model.safetensors first, as in transformers; else the files that model.safetensors.index.json
// names; else model-00001-of-N to model-N-of-N. kInvalid names the missing ones.
Result<Weights> FindWeights(const std::string& directory);

}  // namespace tangram::loader
