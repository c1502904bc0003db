// How this program was started, and how to start another that lies beside it.
#pragma once

#include <string>
#include <vector>

namespace tangram::gpu {

// The command for a program in this one's folder: by the loader of the bundle, if that started this
// one, else by itself. The last word is the program's path.
std::vector<std::string> Beside(const std::string& program);

}  // namespace tangram::gpu
