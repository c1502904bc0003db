// A pod's preStop hook, as a process, with an agent's file.
#include "agent/server/presence.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "agent/server/testing/world.h"

namespace tangram::testing {
namespace {

// A running `tangram-hook`; killed if it has not ended by itself.
class Hook {
 public:
  Hook(std::string verb, std::string path, std::string user = "") {
    std::string program = TANGRAM_HOOK;
    char* const args[] = {program.data(), verb.data(), path.data(),
                          user.empty() ? nullptr : user.data(), nullptr};
    EXPECT_EQ(posix_spawn(&pid_, TANGRAM_HOOK, nullptr, nullptr, args, environ), 0);
  }
  ~Hook() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  // Its exit code, or -1 if it still runs after `limit`.
  int Ended(std::chrono::milliseconds limit) {
    const auto end = std::chrono::steady_clock::now() + limit;
    do {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = 0;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
      }
      usleep(10'000);
    } while (std::chrono::steady_clock::now() < end);
    return -1;
  }

 private:
  pid_t pid_ = 0;
};

TEST(Hook, WaitsWhileARankIsInTheWorld) {
  World world({1, 1});
  const std::string file = world.dir() + "/0.in-world";
  EXPECT_EQ(Hook("await-leave", file).Ended(kHang), 0) << "no layout yet";
  Engines engines(world);
  ASSERT_TRUE(world.Take(v1::FLIP_KIND_FIRST, 1, ExpertLayout(world.members(), 1, false)));
  ASSERT_TRUE(std::filesystem::exists(file));
  Hook waiting("await-leave", file);
  EXPECT_EQ(waiting.Ended(std::chrono::milliseconds(300)), -1);
  world.agent(0).Stop();
  EXPECT_EQ(waiting.Ended(kHang), 0);
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(Hook, DoesNotWaitForADeadAgent) {
  World world({1});
  const std::string file = world.dir() + "/left";
  close(open(file.c_str(), O_CREAT | O_WRONLY, 0644));  // without a lock
  EXPECT_EQ(Hook("await-leave", file).Ended(kHang), 0);
  // A starting agent removes it: it is in no world yet.
  auto presence = PresenceFile::Follow(file, world.agent(0).executor());
  ASSERT_TRUE(presence.ok()) << presence.status().message();
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(Hook, InstallsItself) {
  World world({1});
  const std::string copy = world.dir() + "/bin/tangram-hook";
  EXPECT_EQ(Hook("install", copy).Ended(kHang), 0);
  EXPECT_EQ(access(copy.c_str(), X_OK), 0);
  EXPECT_EQ(Hook("install", "/proc/nowhere/hook").Ended(kHang), 1);
  EXPECT_EQ(Hook("fly", copy).Ended(kHang), 2);
}

// The kubelet's folder belongs to root; agents of several pods find it and change its owner.
TEST(Hook, GivesNewFolderToAgentsOnly) {
  World world({1});
  const std::string folder = world.dir() + "/node";
  ASSERT_EQ(mkdir(folder.c_str(), 0755), 0);
  const bool root = getuid() == 0;
  const uid_t user = root ? 65532 : getuid();
  ASSERT_EQ(chmod(folder.c_str(), root ? 0755 : 0700), 0);  // otherwise as if root had changed it
  const auto own = [&](const std::string& path, const std::string& number) {
    return Hook("own", path, number).Ended(kHang);
  };
  for (int pod = 0; pod < 2; ++pod) {
    EXPECT_EQ(own(folder, std::to_string(user)), 0);
    struct stat there {};
    ASSERT_EQ(stat(folder.c_str(), &there), 0);
    EXPECT_EQ(there.st_uid, user);
    EXPECT_EQ(there.st_mode & 07777, 0700U);
  }
  EXPECT_EQ(own(folder, std::to_string(user + 1)), 1) << "it is somebody else's";
  ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
  EXPECT_EQ(own(folder, std::to_string(user)), 1) << "others could get in";
  EXPECT_EQ(own(world.dir() + "/none", std::to_string(user)), 1);
  for (const char* number : {"0", "-1", "agent", "65532x"}) EXPECT_EQ(own(folder, number), 2);
}

// A hook polls every 50 ms, and holds a lock for that moment.
TEST(Presence, DetectsDeadAgentDespiteHookLock) {
  World world({1});
  const std::string file = world.dir() + "/left";
  const UniqueFd hook(open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644));
  ASSERT_EQ(flock(hook.get(), LOCK_SH | LOCK_NB), 0);
  EXPECT_TRUE(PresenceFile::LeftBehind(file));
}

// The file never exists without a lock.
TEST(Presence, CreatesFileLocked) {
  World world({1});
  const std::string file = world.dir() + "/shown";
  const UniqueFd watch(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  ASSERT_GE(inotify_add_watch(watch.get(), world.dir().c_str(), IN_CREATE | IN_MOVED_TO), 0);
  auto presence = PresenceFile::Follow(file, world.agent(0).executor());  // creates it once
  ASSERT_TRUE(presence.ok()) << presence.status().message();
  std::vector<uint32_t> came;
  alignas(inotify_event) char bytes[16384];
  const ssize_t n = read(watch.get(), bytes, sizeof bytes);
  for (ssize_t at = 0; at < n;) {
    const auto* event = reinterpret_cast<const inotify_event*>(bytes + at);
    if (std::string("shown") == event->name) came.push_back(event->mask);
    at += static_cast<ssize_t>(sizeof *event + event->len);
  }
  EXPECT_EQ(came, (std::vector<uint32_t>{IN_MOVED_TO})) << "it was made under another name";
  EXPECT_FALSE(std::filesystem::exists(file + ".new"));
}

TEST(Presence, RejectsUnwritableFolderAtStart) {
  World world({1});
  const auto presence = PresenceFile::Follow("/proc/nowhere/file", world.agent(0).executor());
  ASSERT_FALSE(presence.ok());
  EXPECT_NE(presence.status().message().find("in_world_file /proc/nowhere/file: No such file"),
            std::string::npos);
}

}  // namespace
}  // namespace tangram::testing
