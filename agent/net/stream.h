// One connection, plain or TLS, that never blocks. One thread at a time.
#pragma once

#include <openssl/ssl.h>
#include <poll.h>
#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "agent/base/limits.h"
#include "agent/base/status.h"
#include "agent/base/unique_fd.h"
#include "agent/net/credentials.h"

namespace tangram::net {

enum class Side { kDialled, kAccepted };

class Stream {
 public:
  Stream(UniqueFd fd, Side side, std::shared_ptr<Credentials> credentials);
  Stream(const Stream&) = delete;  // the library's BIO points here
  Stream& operator=(const Stream&) = delete;

  int fd() const { return fd_.get(); }
  // Connects and shakes hands as far as possible without blocking. True: both sides are
  // authenticated (before that nothing is read or written). False: wait until the socket is ready
  // for `waits_for`. kUnauthenticated: the peer is not of this world and role. kUnavailable: it is
  // not reachable.
  Result<bool> Handshake();
  bool ready() const { return ready_; }
  short waits_for() const { return waits_for_; }

  // Bytes read or written; 0 if the socket has none or takes none now.
  Result<size_t> Read(std::span<std::byte> to);
  Result<size_t> Write(std::span<const iovec> parts);
  // Whether bytes wait here that poll() does not show: the rest of a record. (Never a part of an
  // incomplete record: the library reads no further than necessary.)
  bool Buffered() const { return ssl_ && SSL_pending(ssl_.get()) > 0; }
  // Lets poll() wake a reader only when many of the `bytes` that are certain to come have arrived,
  // or the connection ends: not for every packet.
  void WakeFor(size_t bytes);
  // Checks, without reading, whether the peer disconnected or sent unexpected bytes.
  bool Disturbed() const;

  // Descriptors, between processes of one machine (unix:). They are sent with the next written
  // byte, and closed here then.
  void Attach(std::vector<UniqueFd> descriptors) { going_ = std::move(descriptors); }
  // Accepts this many descriptors from now on; the kernel closes all others.
  void Expect(size_t descriptors) { expected_ = descriptors; }
  std::vector<UniqueFd> TakeDescriptors() { return std::exchange(came_, {}); }

  // Timeout of blocking waits (blocking.h) for a silent peer.
  std::chrono::milliseconds silence() const { return silence_; }
  void set_silence(std::chrono::milliseconds silence) { silence_ = silence; }

  bool secure() const { return ssl_ != nullptr; }
  // The pod in the peer's certificate; empty on a plain connection.
  const std::string& pod() const { return pod_; }

 private:
  friend struct SocketBio;
  Status Identify();
  Status Fail(const char* doing);
  // Like recv and sendmsg, without blocking, and with descriptors.
  ssize_t Receive(void* to, size_t bytes);
  ssize_t Send(iovec* parts, size_t count);

  UniqueFd fd_;
  Side side_;
  std::shared_ptr<Credentials> credentials_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_{nullptr, &SSL_free};
  bool connecting_, ready_ = false;
  short waits_for_;
  std::string pod_;
  std::chrono::milliseconds silence_ = limits::kDataSilence;
  size_t wakes_for_ = 1;
  size_t expected_ = 0;
  std::vector<UniqueFd> going_, came_;
};

}  // namespace tangram::net
