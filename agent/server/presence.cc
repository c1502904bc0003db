#include "agent/server/presence.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "agent/base/thread.h"

namespace tangram {
namespace {

constexpr auto kLook = std::chrono::milliseconds(200);

// A leaver counts until its attempt is retired: others may still read from it.
bool InWorld(Executor* executor) {
  if (executor->Resuming()) return true;  // the previous agent was in the world
  const v1::StatusResponse status = executor->GetStatus(nullptr);
  return std::any_of(status.ranks().begin(), status.ranks().end(), [](const v1::RankStatus& rank) {
    return rank.in_world() || rank.transition().phase() > v1::PHASE_IDLE;
  });
}

}  // namespace

bool PresenceFile::LeftBehind(const std::string& path) {
  if (path.empty()) return false;
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  // A shared lock, as hooks take: it conflicts only with an agent's lock.
  return fd && flock(fd.get(), LOCK_SH | LOCK_NB) == 0;
}

Result<std::unique_ptr<PresenceFile>> PresenceFile::Follow(const std::string& path,
                                                           Executor* executor) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return Status{Code::kInvalid, fmt::format("in_world_file {}: {}", path, std::strerror(errno))};
  }
  auto file = std::unique_ptr<PresenceFile>(new PresenceFile(path, executor));
  TANGRAM_RETURN_IF_ERROR(file->Show());  // reports an error at the start, not when it matters
  if (!InWorld(executor)) file->Hide();
  auto thread = StartThread([raw = file.get()] { raw->Run(); });
  if (!thread.ok()) return thread.status();
  file->thread_ = std::move(thread).value();
  return file;
}

PresenceFile::~PresenceFile() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
  Hide();
}

void PresenceFile::Run() {
  uint64_t seen = 0;
  while (!stopping_) {
    if (!InWorld(executor_)) {
      Hide();
    } else if (const Status shown = Show(); !shown.ok()) {
      spdlog::error("in_world_file not written error=\"{}\"", shown.message());
    }
    executor_->WaitChange(&seen, kLook);
  }
}

Status PresenceFile::Show() {
  if (fd_) return OkStatus();
  // Has another name until it is locked. Without the lock, a hook would take the file for a dead
  // agent's, and would lock it itself meanwhile.
  const std::string fresh = path_ + ".new";
  (void)unlink(fresh.c_str());  // an agent died before the rename
  UniqueFd fd(open(fresh.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0644));
  if (!fd || flock(fd.get(), LOCK_EX | LOCK_NB) != 0 || rename(fresh.c_str(), path_.c_str()) != 0) {
    return {Code::kInvalid, fmt::format("in_world_file {}: {}", path_, std::strerror(errno))};
  }
  fd_ = std::move(fd);
  return OkStatus();
}

void PresenceFile::Hide() {
  if (!fd_) return;
  unlink(path_.c_str());
  fd_ = UniqueFd();
}

}  // namespace tangram
