// The recording NCCL: the socket between two ends, and its setup.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "agent/device/testing/fake_nccl_state.h"

namespace tangram::device::testing {
namespace {

constexpr size_t kPart = 1 << 20;

template <typename T>
void Append(std::vector<std::byte>* to, const T& what) {
  const auto* const begin = reinterpret_cast<const std::byte*>(&what);
  to->insert(to->end(), begin, begin + sizeof what);
}

}  // namespace

bool FakePair::Pump() {
  while (out_at_ < out_.size()) {
    const ssize_t put = send(socket_.get(), out_.data() + out_at_, out_.size() - out_at_,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0 && errno != EAGAIN) return false;
    if (put < 0) break;
    out_at_ += static_cast<size_t>(put);
  }
  if (out_at_ == out_.size()) {
    out_.clear();
    out_at_ = 0;
  }
  while (true) {
    const size_t before = in_.size();
    in_.resize(before + kPart);
    const ssize_t got = recv(socket_.get(), in_.data() + before, kPart, MSG_DONTWAIT);
    const bool more = got > 0;
    const bool gone = got == 0 || (got < 0 && errno != EAGAIN);
    in_.resize(before + (more ? static_cast<size_t>(got) : 0));
    if (gone) return false;
    if (!more) break;
  }
  while (met_ && in_.size() >= sizeof(FakeMessage)) {
    FakeMessage message;
    std::memcpy(&message, in_.data(), sizeof message);
    if (in_.size() < sizeof message + message.bytes) break;
    const auto begin = in_.begin() + sizeof message;
    const auto end = begin + static_cast<std::ptrdiff_t>(message.bytes);
    if (message.received != 0) {
      received_ = message.number;
    } else {
      came_[message.number].assign(begin, end);
    }
    in_.erase(in_.begin(), end);
  }
  return true;
}

void FakePair::Say(const FakeMessage& message, const std::vector<std::byte>& bytes) {
  Append(&out_, message);
  out_.insert(out_.end(), bytes.begin(), bytes.end());
}

bool FakePair::Take(uint64_t number, std::vector<std::byte>* bytes) {
  const auto it = came_.find(number);
  if (it == came_.end()) return false;
  *bytes = std::move(it->second);
  came_.erase(it);
  return true;
}

bool FakePair::Meet(std::array<int, 2> mine, std::array<int, 2>* theirs) {
  if (!std::exchange(told_, true)) Append(&out_, mine);
  if (!Pump() || in_.size() < sizeof *theirs) return false;
  std::memcpy(theirs, in_.data(), sizeof *theirs);
  in_.erase(in_.begin(), in_.begin() + sizeof *theirs);
  met_ = true;
  return true;
}

void Connect(FakeComm* comm) {
  FakeNcclState& state = NcclState();
  if (comm->pair == nullptr && comm->rank == 0) {
    const std::scoped_lock lock(state.mu);
    UniqueFd other(accept4(state.offered.at(comm->name).get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!other) return;
    state.offered.erase(comm->name);
    comm->pair = std::make_unique<FakePair>(std::move(other));
  }
  if (comm->pair == nullptr) {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;  // an abstract name: it begins with a zero
    std::memcpy(address.sun_path + 1, comm->name.data(), comm->name.size());
    const auto size =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + comm->name.size());
    if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
      if (errno != EAGAIN && !state.options.deaf) comm->error = kNcclRemoteError;
      return;
    }
    comm->pair = std::make_unique<FakePair>(std::move(socket));
  }
  std::array<int, 2> theirs{};
  if (!comm->pair->Meet({state.options.version, comm->rank}, &theirs)) {
    if (!comm->pair->Pump() && !state.options.deaf) comm->error = kNcclRemoteError;
    return;
  }
  if (theirs[0] != state.options.version) {
    comm->error = Complain(kNcclInternalError, "two versions in one communicator");
  } else if (theirs[1] == comm->rank) {
    comm->error = Complain(kNcclInvalidUsage, "both ends have the same rank");
  }
  comm->connected = comm->error == kNcclSuccess;
}

}  // namespace tangram::device::testing
