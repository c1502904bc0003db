// The file that says "a rank of this pod is in the world": the pod's preStop hooks wait for it
// to go, so that a pod that somebody deletes serves on until it has left.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "agent/base/status.h"
#include "agent/base/unique_fd.h"
#include "agent/transition/executor.h"

namespace tangram {

// Keeps the file while a rank is in a layout or in an attempt, and a lock on it while this
// process lives: a file without a lock was left by an agent that died.
class PresenceFile {
 public:
  // Whether an agent died here with a rank in the world: its file is there, and nobody's.
  static bool LeftBehind(const std::string& path);
  // Removes what an earlier agent left. `executor` outlives this.
  static Result<std::unique_ptr<PresenceFile>> Follow(const std::string& path, Executor* executor);
  ~PresenceFile();

 private:
  PresenceFile(std::string path, Executor* executor)
      : path_(std::move(path)), executor_(executor) {}
  void Run();
  Status Show();
  void Hide();

  const std::string path_;
  Executor* const executor_;
  UniqueFd fd_;  // locked while the file is there
  std::atomic<bool> stopping_{false};
  std::jthread thread_;
};

}  // namespace tangram
