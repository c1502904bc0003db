// How this program was started, and how to start another program of its folder.
#pragma once

#include <string>
#include <vector>

namespace tangram::gpu {

// The command for a program in this one's folder: with the bundle's loader if that started this
// program, else directly. The last word is the program's path.
std::vector<std::string> Beside(const std::string& program);

}  // namespace tangram::gpu
