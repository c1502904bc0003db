// tangram-hook: runs in a pod's containers at their start and end. Linked statically and without
// our libraries, so that it runs in every engine's image.
//
//   tangram-hook install PATH       copies itself to PATH (an init container, into an emptyDir)
//   tangram-hook await-leave FILE   returns once no rank of the pod is in the world: the file
//                                   is gone, or its lock is free (presence.h)
//   tangram-hook own FOLDER UID     gives a folder of root to this user alone
//                                   (an init container: root, with only CAP_CHOWN)
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace {

constexpr useconds_t kLook = 50'000;  // microseconds

int Install(const char* path) {
  std::error_code error;
  const std::filesystem::path to(path);
  std::filesystem::create_directories(to.parent_path(), error);
  if (!error) {
    std::filesystem::copy_file("/proc/self/exe", to,
                               std::filesystem::copy_options::overwrite_existing, error);
  }
  if (!error) std::filesystem::permissions(to, std::filesystem::perms(0755), error);
  if (!error) return 0;
  std::fprintf(stderr, "tangram-hook: install %s: %s\n", path, error.message().c_str());
  return 1;
}

int AwaitLeave(const char* path) {
  for (;; usleep(kLook)) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      if (errno == ENOENT) return 0;
      std::fprintf(stderr, "tangram-hook: await-leave %s: %s\n", path, std::strerror(errno));
      return 1;
    }
    const bool free = flock(fd, LOCK_SH | LOCK_NB) == 0;
    close(fd);
    if (free) return 0;
  }
}

// Accepts a folder that is closed and the user's, or fresh: root's. Other folders are rejected,
// because their earlier users may have left anything there.
int Own(const char* path, uid_t user) {
  constexpr mode_t kClosed = 0700;
  int error = 0;
  for (int look = 0; look < 2; ++look) {
    struct stat there {};
    if (lstat(path, &there) != 0) {
      error = errno;
      break;
    }
    const mode_t mode = there.st_mode & 07777;
    if (S_ISDIR(there.st_mode) && there.st_uid == user && mode == kClosed) return 0;
    if (!S_ISDIR(there.st_mode) || there.st_uid != 0) {
      std::fprintf(stderr,
                   "tangram-hook: own %s: must be a folder of root, or of user %u with mode 0700, "
                   "but belongs to user %u with mode %04o; remove it from the node\n",
                   path, user, there.st_uid, mode);
      return 1;
    }
    // The mode first: after chown it can no longer be set. If another pod of the node is faster,
    // chmod fails here, and the second check finds the folder as wanted.
    error = chmod(path, kClosed) == 0 && chown(path, user, user) == 0 ? 0 : errno;
  }
  if (error == 0) return 0;
  std::fprintf(stderr, "tangram-hook: own %s: %s\n", path, std::strerror(error));
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view verb = argc >= 3 ? argv[1] : "";
  if (argc == 3 && verb == "install") return Install(argv[2]);
  if (argc == 3 && verb == "await-leave") return AwaitLeave(argv[2]);
  if (argc == 4 && verb == "own") {
    const std::string_view number = argv[3];
    uid_t user = 0;
    const auto [end, bad] = std::from_chars(number.begin(), number.end(), user);
    if (bad == std::errc() && end == number.end() && user != 0) return Own(argv[2], user);
  }
  std::fputs("usage: tangram-hook install PATH | await-leave FILE | own FOLDER UID\n", stderr);
  return 2;
}
