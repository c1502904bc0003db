// One connection of the mesh: frames in and out of a non-blocking socket.
#pragma once

#include <optional>
#include <string>

#include "e2e/engine/mesh/mesh.h"

namespace tangram::engine {

enum class FrameKind : uint32_t { kHello = 1, kWelcome = 2, kData = 3, kBeat = 4 };

// On the wire, little-endian, followed by `length` bytes.
struct FrameHeader {
  static constexpr uint32_t kMagic = 0x314d4754;  // "TGM1"
  // No step of a model that an engine could run sends more to one peer.
  static constexpr uint64_t kMaxLength = 1ull << 30;

  uint32_t magic = kMagic;
  FrameKind kind = FrameKind::kData;
  uint64_t epoch = 0, step = 0, sequence = 0;
  uint64_t length = 0;
};
static_assert(sizeof(FrameHeader) == 40);

struct Mesh::Connection {
  enum class State { kDialled, kAccepted, kReady };
  struct Frame {
    FrameHeader header;
    Bytes payload;
  };

  Connection(UniqueFd socket, State at) : fd(std::move(socket)), state(at) {}

  // Takes what the socket has until one frame is whole, and no byte more.
  Status Read();
  // Queues a frame; `borrowed` payloads must live until Flushed().
  void Send(FrameHeader header, const uint8_t* borrowed, size_t size);
  void SendOwned(FrameHeader header, Bytes payload);
  Status Write();
  bool Flushed() const { return !header_pending && sent == out_size; }

  UniqueFd fd;
  State state;
  std::string member;  // known from the start when dialled, from the hello otherwise
  std::optional<Frame> frame;
  // Grows with every byte that came, and with every byte of data that the socket took.
  uint64_t moved = 0;

 private:
  Frame incoming;
  size_t header_read = 0, payload_read = 0;

  FrameHeader out_header;
  bool header_pending = false;
  size_t header_sent = 0;
  const uint8_t* out = nullptr;
  size_t out_size = 0, sent = 0;
  Bytes owned;
};

}  // namespace tangram::engine
