#include "tests/gpu/passed.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "tests/gpu/gpu.h"

namespace tangram::gpu {
namespace {

union Control {
  char bytes[CMSG_SPACE(sizeof(int))];
  cmsghdr align;
};

}  // namespace

void Line::Say(const std::string& words) const {
  if (send(socket_.get(), words.data(), words.size(), MSG_NOSIGNAL) < 0) {
    throw Failed("the other process is gone");
  }
}

std::string Line::Hear(int timeout_seconds) const {
  pollfd wait{socket_.get(), POLLIN, 0};
  if (poll(&wait, 1, timeout_seconds * 1000) <= 0) throw Failed("the other process says nothing");
  char words[4096];
  const ssize_t got = recv(socket_.get(), words, sizeof words, 0);
  if (got <= 0) throw Failed("the other process is gone");
  return {words, static_cast<size_t>(got)};
}

void Line::Pass(int descriptor) const {
  char byte = 0;
  iovec part{&byte, 1};
  Control control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  if (sendmsg(socket_.get(), &message, MSG_NOSIGNAL) != 1) {
    throw Failed(std::string("passing a descriptor: ") + std::strerror(errno));
  }
}

UniqueFd Line::Take() const {
  char byte = 0;
  iovec part{&byte, 1};
  Control control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  int descriptor = -1;
  if (recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC) == 1 &&
      CMSG_FIRSTHDR(&message) != nullptr) {
    std::memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
  }
  if (descriptor < 0) throw Failed("no descriptor came");
  return UniqueFd(descriptor);
}

// A pair of sockets that keep message boundaries.
Child::Ends Child::SocketPair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Failed(std::string("a pair of sockets: ") + std::strerror(errno));
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Child::Child(const std::function<void(const Line&)>& work, Ends ends)
    : line_(std::move(ends.first)) {
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) throw Failed(std::string("a process: ") + std::strerror(errno));
  if (pid_ > 0) return;
  // The child ends with its parent.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const Line line(std::move(ends.second));
  try {
    work(line);
  } catch (const std::exception& e) {
    try {
      line.Say(std::string("failed: ") + e.what());
    } catch (const Failed&) {
    }
  }
  _exit(0);
}

void Child::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

Child::~Child() { Kill(); }

}  // namespace tangram::gpu
