#include "e2e/engine/model/test_checkpoint.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace tangram::model {

Result<std::string> TestCheckpoint(const std::string& preset) {
  namespace fs = std::filesystem;
  const fs::path root = TANGRAM_SOURCE_DIR;
  const fs::path models = fs::path(TANGRAM_BINARY_DIR) / "models";
  std::error_code ignored;
  fs::create_directories(models, ignored);
  // Tests run concurrently: one writes, the others wait.
  const int lock = open((models / (preset + ".lock")).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (lock < 0 || flock(lock, LOCK_EX) != 0) {
    return Status(Code::kInternal, "cannot lock " + models.string());
  }
  struct Closer {
    int fd;
    ~Closer() { close(fd); }
  } closer{lock};
  const fs::path scripts = root / "e2e/model", script = scripts / "make_checkpoint.py";
  const fs::path folder = models / preset;
  const fs::path done = folder / ".done";
  const auto older = [&done](const fs::path& file) {
    return file.extension() != ".py" || fs::last_write_time(done) > fs::last_write_time(file);
  };
  if (fs::exists(done) && std::all_of(fs::directory_iterator(scripts), {}, older)) {
    return folder.string();
  }
  const char* python = std::getenv("TANGRAM_PYTHON");
  const std::string command =
      fmt::format("'{}' '{}' --preset {} --seed 1 --out '{}' >/dev/null 2>&1 && touch '{}'",
                  python != nullptr ? python : (root / "build/venv/bin/python").string(),
                  script.string(), preset, folder.string(), done.string());
  if (std::system(command.c_str()) != 0) {
    return Status(
        Code::kInternal,
        "cannot write the test checkpoint; run `make setup` first, or set TANGRAM_PYTHON to "
        "a Python with e2e/model/requirements.txt. Command: " +
            command);
  }
  return folder.string();
}

uint32_t TestGranuleRows(const std::string& preset) {
  if (preset == "demo") return 16;
  return preset == "fp8" || preset == "deepseek-v3" ? 128 : 8;
}

}  // namespace tangram::model
