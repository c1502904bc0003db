#include "tests/gpu/started.h"

#include <filesystem>
#include <fstream>
#include <iterator>

namespace tangram::gpu {

std::vector<std::string> Beside(const std::string& program) {
  std::ifstream file("/proc/self/cmdline");
  const std::string all((std::istreambuf_iterator<char>(file)), {});
  std::vector<std::string> words;
  for (size_t at = 0; at < all.size(); at = all.find('\0', at) + 1) words.push_back(&all[at]);
  // ld-linux.so.2 --library-path FOLDERS PROGRAM ...: /proc/self/exe is then the loader.
  if (words.size() > 3 && words[1] == "--library-path") {
    const auto folder = std::filesystem::path(words[3]).parent_path();
    return {words[0], words[1], words[2], folder / program};
  }
  return {std::filesystem::read_symlink("/proc/self/exe").parent_path() / program};
}

}  // namespace tangram::gpu
