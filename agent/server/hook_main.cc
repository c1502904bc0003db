// tangram-hook: what a pod's containers run at their start and end. Linked statically and
// without any library of ours, so that it runs in every engine's image.
//
//   tangram-hook install PATH       copies itself there (an init container, into an emptyDir)
//   tangram-hook await-leave FILE   returns once no rank of the pod is in the world: the file
//                                   is gone, or nobody holds its lock any more (presence.h)
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
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

}  // namespace

int main(int argc, char** argv) {
  const std::string_view verb = argc == 3 ? argv[1] : "";
  if (verb == "install") return Install(argv[2]);
  if (verb == "await-leave") return AwaitLeave(argv[2]);
  std::fputs("usage: tangram-hook install PATH | await-leave FILE\n", stderr);
  return 2;
}
