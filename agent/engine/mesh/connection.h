// One connection of the mesh: frames in and out of a stream.
#pragma once

#include <optional>
#include <string>

#include "agent/engine/mesh/mesh.h"
#include "agent/engine/mesh/wire.h"
#include "agent/net/frame.h"
#include "agent/net/stream.h"

namespace tangram::engine {

struct Mesh::Connection {
  enum class State { kDialled, kAccepted, kReady };
  struct Frame {
    FrameHeader header;
    Bytes payload;
  };

  Connection(UniqueFd socket, State at, std::shared_ptr<net::Credentials> credentials);

  // Connects and shakes hands first. Then Read takes bytes until one frame is complete, and no byte
  // more; Write sends the queued frame.
  Status Read();
  Status Write();
  // Queues a frame; `borrowed` payloads must live until Flushed().
  void Send(FrameHeader header, const uint8_t* borrowed, size_t size);
  void SendOwned(FrameHeader header, Bytes payload);
  // Copies the unsent part of a borrowed payload, which may be freed then.
  void KeepUnsent();
  bool Flushed() const { return !header_pending && sent == out_size; }
  // The events for poll(); 0: none, because a frame waits to be taken.
  short Events() const;
  // Whether the stream has buffered bytes that poll() does not report.
  bool Buffered() const { return stream.ready() && !frame && stream.Buffered(); }

  net::Stream stream;
  State state;
  std::string member;  // known from the start when dialled, from the hello otherwise
  std::optional<Frame> frame;
  // Grows with every received byte, and with every byte of data that the socket took.
  uint64_t moved = 0;
  // The epoch that the other side reported as abandoned; 0: none.
  uint64_t still = 0;
  bool GaveUp(uint64_t epoch) const { return still != 0 && still >= epoch; }

 private:
  net::FrameReader incoming;

  FrameHeader out_header;
  bool header_pending = false;
  size_t header_sent = 0;
  const uint8_t* out = nullptr;
  size_t out_size = 0, sent = 0;
  Bytes owned;
};

}  // namespace tangram::engine
