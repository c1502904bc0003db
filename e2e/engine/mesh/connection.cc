#include "e2e/engine/mesh/connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

namespace tangram::engine {
namespace {

// Bytes read, 0 when the socket has none now.
Result<size_t> ReadInto(int fd, void* to, size_t size) {
  const ssize_t got = recv(fd, to, size, 0);
  if (got > 0) return static_cast<size_t>(got);
  if (got == 0) return Status{Code::kUnavailable, "the peer closed the connection"};
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return size_t{0};
  return Status{Code::kUnavailable, std::strerror(errno)};
}

}  // namespace

Status Mesh::Connection::Read() {
  while (!frame.has_value()) {
    if (header_read < sizeof(FrameHeader)) {
      auto* raw = reinterpret_cast<uint8_t*>(&incoming.header);
      Result<size_t> got = ReadInto(fd.get(), raw + header_read, sizeof(FrameHeader) - header_read);
      if (!got.ok()) return got.status();
      if (*got == 0) return OkStatus();
      header_read += *got;
      moved += *got;
      if (header_read < sizeof(FrameHeader)) continue;
      const FrameHeader& header = incoming.header;
      if (header.magic != FrameHeader::kMagic || header.length > FrameHeader::kMaxLength) {
        return {Code::kInvalid, "not a frame of the mesh (magic " + std::to_string(header.magic) +
                                    ", length " + std::to_string(header.length) + ")"};
      }
      // Before the hello nobody may make us hold more than a hello.
      if (state != State::kReady && header.length > 4096) {
        return {Code::kInvalid, "a hello of " + std::to_string(header.length) + " bytes"};
      }
      if (state == State::kReady && header.kind == FrameKind::kBeat && header.length == 0) {
        header_read = 0;  // it says no more than that it came
        continue;
      }
      incoming.payload.resize(header.length);
      payload_read = 0;
    }
    if (payload_read < incoming.payload.size()) {
      Result<size_t> got = ReadInto(fd.get(), incoming.payload.data() + payload_read,
                                    incoming.payload.size() - payload_read);
      if (!got.ok()) return got.status();
      if (*got == 0) return OkStatus();
      payload_read += *got;
      moved += *got;
      if (payload_read < incoming.payload.size()) continue;
    }
    frame = std::move(incoming);
    incoming = {};
    header_read = 0;
  }
  return OkStatus();
}

void Mesh::Connection::Send(FrameHeader header, const uint8_t* borrowed, size_t size) {
  out_header = header;
  out_header.length = size;
  header_pending = true;
  header_sent = 0;
  out = borrowed;
  out_size = size;
  sent = 0;
}

void Mesh::Connection::SendOwned(FrameHeader header, Bytes payload) {
  owned = std::move(payload);
  Send(header, owned.data(), owned.size());
}

Status Mesh::Connection::Write() {
  while (!Flushed()) {
    iovec parts[2];
    int count = 0;
    if (header_pending) {
      parts[count++] = {reinterpret_cast<uint8_t*>(&out_header) + header_sent,
                        sizeof(FrameHeader) - header_sent};
    }
    if (sent < out_size) parts[count++] = {const_cast<uint8_t*>(out) + sent, out_size - sent};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t put = sendmsg(fd.get(), &message, MSG_NOSIGNAL);
    if (put < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return OkStatus();
      return {Code::kUnavailable, std::strerror(errno)};
    }
    size_t left = static_cast<size_t>(put);
    if (out_header.kind == FrameKind::kData) moved += left;
    if (header_pending) {
      const size_t part = std::min(left, sizeof(FrameHeader) - header_sent);
      header_sent += part;
      left -= part;
      if (header_sent == sizeof(FrameHeader)) header_pending = false;
    }
    sent += left;
  }
  return OkStatus();
}

}  // namespace tangram::engine
