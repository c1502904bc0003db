// The file that shows that a rank of this pod is in the world. The pod's preStop hooks wait for its
// removal, so that a deleted pod serves until it has left.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "agent/base/status.h"
#include "agent/base/unique_fd.h"
#include "agent/transition/executor.h"

namespace tangram {

// Keeps the file while a rank is in a layout or in an attempt, and locks it while this process
// lives. A file without a lock belongs to a dead agent.
class PresenceFile {
 public:
  // Whether an agent died here with a rank in the world: its file exists, without a lock.
  static bool LeftBehind(const std::string& path);
  // Removes an earlier agent's file. `executor` outlives this.
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
  UniqueFd fd_;  // locked while the file exists
  std::atomic<bool> stopping_{false};
  std::jthread thread_;
};

}  // namespace tangram
