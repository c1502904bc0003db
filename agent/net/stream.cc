#include "agent/net/stream.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace tangram::net {
namespace {

constexpr size_t kRecord = SSL3_RT_MAX_PLAIN_LENGTH;  // 16 KiB, the maximum of one TLS record
constexpr size_t kMostParts = 512;
constexpr size_t kMostAwaited = 256 << 10;

bool Later() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

constexpr size_t kMostDescriptors = 16;  // per message

}  // namespace

// The library's own socket BIO writes without MSG_NOSIGNAL: a closed peer would kill this process.
struct SocketBio {
  static int Write(BIO* bio, const char* data, size_t size, size_t* done) {
    BIO_clear_retry_flags(bio);
    iovec part{const_cast<char*>(data), size};
    const ssize_t n = static_cast<Stream*>(BIO_get_data(bio))->Send(&part, 1);
    if (n < 0) {
      if (Later()) BIO_set_retry_write(bio);
      return 0;
    }
    *done = static_cast<size_t>(n);
    return 1;
  }

  static int Read(BIO* bio, char* data, size_t size, size_t* done) {
    BIO_clear_retry_flags(bio);
    const ssize_t n = static_cast<Stream*>(BIO_get_data(bio))->Receive(data, size);
    if (n < 0 && Later()) BIO_set_retry_read(bio);
    if (n == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
    if (n <= 0) return 0;
    *done = static_cast<size_t>(n);
    return 1;
  }

  static long Control(BIO* bio, int command, long, void*) {
    if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }

  static const BIO_METHOD* Method() {
    static const BIO_METHOD* const method = [] {
      BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
      BIO_meth_set_write_ex(made, Write);
      BIO_meth_set_read_ex(made, Read);
      BIO_meth_set_ctrl(made, Control);
      return made;
    }();
    return method;
  }
};

ssize_t Stream::Receive(void* to, size_t bytes) {
  if (expected_ == 0) return recv(fd_.get(), to, bytes, 0);
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control;
  iovec part{to, bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
  for (cmsghdr* c = n < 0 ? nullptr : CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(c) + at, sizeof number);
      UniqueFd descriptor(number);
      if (came_.size() < expected_) came_.push_back(std::move(descriptor));
    }
  }
  return n;
}

ssize_t Stream::Send(iovec* parts, size_t count) {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  if (!going_.empty()) {
    const size_t bytes = std::min(going_.size(), kMostDescriptors) * sizeof(int);
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* const c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(bytes);
    for (size_t i = 0; i * sizeof(int) < bytes; ++i) {
      const int number = going_[i].get();
      std::memcpy(CMSG_DATA(c) + i * sizeof(int), &number, sizeof number);
    }
  }
  const ssize_t n = sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
  if (n > 0) going_.clear();
  return n;
}

Stream::Stream(UniqueFd fd, Side side, std::shared_ptr<Credentials> credentials)
    : fd_(std::move(fd)),
      side_(side),
      credentials_(std::move(credentials)),
      connecting_(side == Side::kDialled),
      waits_for_(side == Side::kDialled ? POLLOUT : POLLIN) {}

Result<bool> Stream::Handshake() {
  if (ready_) return true;
  if (connecting_) {
    pollfd poll_fd{fd_.get(), POLLOUT, 0};
    if (poll(&poll_fd, 1, 0) <= 0) return false;
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    errno = error;
    if (error != 0) return Fail("connecting");
    connecting_ = false;
  }
  if (!credentials_->secure()) {
    ready_ = true;
    return true;
  }
  ERR_clear_error();
  errno = 0;
  if (!ssl_) {
    const Credentials::Context context = credentials_->Current();
    ssl_.reset(SSL_new(context.get()));
    BIO* bio = ssl_ ? BIO_new(SocketBio::Method()) : nullptr;
    if (bio == nullptr) return Status{Code::kInternal, "no memory for a TLS connection"};
    BIO_set_data(bio, this);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl_.get(), bio, bio);
    SSL_set_hostflags(ssl_.get(),
                      X509_CHECK_FLAG_NO_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    if (SSL_set1_host(ssl_.get(), credentials_->name().c_str()) != 1) {
      return Status{Code::kInternal,
                    "cannot verify the peer, invalid name: " + credentials_->name()};
    }
    if (side_ == Side::kDialled) {
      SSL_set_connect_state(ssl_.get());
    } else {
      SSL_set_accept_state(ssl_.get());
    }
  }
  const int done = SSL_do_handshake(ssl_.get());
  if (done == 1) {
    TANGRAM_RETURN_IF_ERROR(Identify());
    ready_ = true;
    return true;
  }
  switch (SSL_get_error(ssl_.get(), done)) {
    case SSL_ERROR_WANT_READ:
      waits_for_ = POLLIN;
      return false;
    case SSL_ERROR_WANT_WRITE:
      waits_for_ = POLLOUT;
      return false;
    default:
      return Fail("TLS handshake");
  }
}

// The handshake checked the chain and the name. The pod's identity remains.
Status Stream::Identify() {
  const std::unique_ptr<X509, decltype(&X509_free)> cert(SSL_get1_peer_certificate(ssl_.get()),
                                                         &X509_free);
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> names(
      cert ? static_cast<GENERAL_NAMES*>(
                 X509_get_ext_d2i(cert.get(), NID_subject_alt_name, nullptr, nullptr))
           : nullptr,
      &GENERAL_NAMES_free);
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    int type = 0;
    const auto* text = static_cast<const ASN1_STRING*>(
        GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names.get(), i), &type));
    if (type != GEN_URI) continue;
    const std::string_view uri(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                               static_cast<size_t>(ASN1_STRING_length(text)));
    const std::string& start = credentials_->uri();
    if (uri.size() > start.size() && uri.starts_with(start)) {
      pod_ = uri.substr(start.size());
      return OkStatus();
    }
  }
  return {Code::kUnauthenticated,
          "the peer's certificate has no URI " + credentials_->uri() + "<pod>"};
}

Result<size_t> Stream::Read(std::span<std::byte> to) {
  if (to.empty()) return size_t{0};
  if (!ssl_) {
    const ssize_t n = Receive(to.data(), to.size());
    if (n > 0) return static_cast<size_t>(n);
    if (n < 0 && Later()) return size_t{0};
    if (n < 0) return Fail("receiving");
    return Status{Code::kUnavailable, "the peer closed the connection"};
  }
  ERR_clear_error();
  errno = 0;
  size_t n = 0;
  const int done = SSL_read_ex(ssl_.get(), to.data(), to.size(), &n);
  if (done == 1) return n;
  const int error = SSL_get_error(ssl_.get(), done);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return size_t{0};
  if (error == SSL_ERROR_ZERO_RETURN) {
    return Status{Code::kUnavailable, "the peer closed the connection"};
  }
  return Fail("receiving");
}

Result<size_t> Stream::Write(std::span<const iovec> parts) {
  while (!parts.empty() && parts.front().iov_len == 0) parts = parts.subspan(1);
  if (parts.empty()) return size_t{0};
  if (!ssl_) {
    const ssize_t n = Send(const_cast<iovec*>(parts.data()), std::min(parts.size(), kMostParts));
    if (n >= 0) return static_cast<size_t>(n);
    if (Later()) return size_t{0};
    return Fail("sending");
  }
  // One record at a time, filled from as many parts as necessary. If the socket did not take a
  // record, the next call passes the same bytes again, as the library requires.
  std::array<std::byte, kRecord> record;
  const void* data = parts.front().iov_base;
  size_t size = std::min(parts.front().iov_len, kRecord);
  if (size < kRecord && parts.size() > 1) {
    size = 0;
    for (const iovec& part : parts) {
      const size_t take = std::min(part.iov_len, kRecord - size);
      if (take > 0) std::memcpy(record.data() + size, part.iov_base, take);
      size += take;
      if (size == kRecord) break;
    }
    data = record.data();
  }
  ERR_clear_error();
  errno = 0;
  size_t n = 0;
  const int done = SSL_write_ex(ssl_.get(), data, size, &n);
  if (done == 1) return n;
  const int error = SSL_get_error(ssl_.get(), done);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return size_t{0};
  return Fail("sending");
}

void Stream::WakeFor(size_t bytes) {
  // All but one byte of the current record may already be in the library, so only bytes beyond one
  // record are certain to arrive.
  const size_t sure = !ssl_ ? bytes : bytes - std::min(bytes, kRecord);
  const size_t want = std::clamp<size_t>(sure, 1, kMostAwaited);
  if (want == wakes_for_) return;
  const int number = static_cast<int>(want);
  if (setsockopt(fd_.get(), SOL_SOCKET, SO_RCVLOWAT, &number, sizeof number) == 0) {
    wakes_for_ = want;
  }
}

bool Stream::Disturbed() const {
  if (Buffered()) return true;
  char byte = 0;
  const ssize_t n = recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n >= 0 || !Later();
}

// Text from errno or the library's error queue.
Status Stream::Fail(const char* doing) {
  const int number = errno;
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  if (error == 0) {
    return {Code::kUnavailable,
            fmt::format("{}: {}", doing,
                        number == 0 ? "the peer closed the connection" : std::strerror(number))};
  }
  const long verdict = ssl_ ? SSL_get_verify_result(ssl_.get()) : X509_V_OK;
  if (verdict != X509_V_OK) {
    return {Code::kUnauthenticated, fmt::format("the peer is not {}: {}", credentials_->name(),
                                                X509_verify_cert_error_string(verdict))};
  }
  const char* why = ERR_reason_error_string(error);
  return {ready_ ? Code::kUnavailable : Code::kUnauthenticated,
          fmt::format("{} with {}: {}", doing, credentials_->name(), why == nullptr ? "TLS" : why)};
}

}  // namespace tangram::net
