#include "agent/engine/mesh/connection.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace tangram::engine {

Mesh::Connection::Connection(UniqueFd socket, State at,
                             std::shared_ptr<net::Credentials> credentials)
    : stream(std::move(socket), at == State::kDialled ? net::Side::kDialled : net::Side::kAccepted,
             std::move(credentials)),
      state(at),
      incoming(sizeof(FrameHeader), [this](std::span<const std::byte> header) {
        // Before the hello a peer must not make us hold more than a hello.
        return PayloadBytes(
            header, state == State::kReady ? FrameHeader::kMaxLength : FrameHeader::kMaxHello);
      }) {}

short Mesh::Connection::Events() const {
  if (!stream.ready()) return stream.waits_for();
  return static_cast<short>((frame ? 0 : POLLIN) | (Flushed() ? 0 : POLLOUT));
}

Status Mesh::Connection::Read() {
  const Result<bool> known = stream.Handshake();
  if (!known.ok() || !*known) return known.status();
  while (!frame) {
    TANGRAM_RETURN_IF_ERROR(incoming.Read(stream, &moved));
    if (!incoming.whole()) return OkStatus();
    FrameHeader header;
    std::memcpy(&header, incoming.header().data(), sizeof(header));
    Bytes payload = incoming.Take();
    if (state == State::kReady && header.length == 0 &&
        (header.kind == FrameKind::kBeat || header.kind == FrameKind::kStill)) {
      still = header.kind == FrameKind::kStill ? header.epoch : 0;
      continue;  // it has no other content
    }
    frame = Frame{header, std::move(payload)};
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

void Mesh::Connection::KeepUnsent() {
  if (sent == out_size || out == owned.data()) return;
  owned.assign(out, out + out_size);
  out = owned.data();
}

Status Mesh::Connection::Write() {
  const Result<bool> known = stream.Handshake();
  if (!known.ok() || !*known) return known.status();
  while (!Flushed()) {
    std::array<iovec, 2> parts;
    size_t count = 0;
    if (header_pending) {
      parts[count++] = {reinterpret_cast<uint8_t*>(&out_header) + header_sent,
                        sizeof(FrameHeader) - header_sent};
    }
    if (sent < out_size) parts[count++] = {const_cast<uint8_t*>(out) + sent, out_size - sent};
    const Result<size_t> put = stream.Write(std::span(parts).first(count));
    if (!put.ok()) return put.status();
    if (*put == 0) return OkStatus();
    size_t left = *put;
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
