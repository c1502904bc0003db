// A link over connections between machines: a stream per lane, plain or TLS, slots as frames.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "agent/dispatch/link.h"
#include "agent/dispatch/shm.h"
#include "agent/net/frame.h"
#include "agent/net/stream.h"

namespace tangram::dispatch {

class TcpLink final : public Link {
 public:
  // Both streams are ready, and their hellos have been read.
  TcpLink(std::array<std::unique_ptr<net::Stream>, kLanes> streams, const Geometry& geometry);

  std::span<uint8_t> Room(Lane lane, size_t want) override;
  void Publish(Lane lane, size_t bytes) override;
  std::span<const uint8_t> Front(Lane lane) override;
  void Pop(Lane lane) override;
  void Beat() override;
  uint64_t Beats() override { return beats_; }
  Status Work() override;
  void HangUp() override;
  const char* path() const override { return "TCP"; }

 private:
  // A slot, or (without bytes) a heartbeat.
  struct FrameHead {
    uint64_t bytes = 0;
  };
  struct Way {
    std::unique_ptr<net::Stream> stream;
    net::FrameReader reader;
    std::vector<uint8_t> front;
    bool here = false;
    // Queued slots with their heads; `sent` bytes of the first one are sent.
    std::deque<std::vector<uint8_t>> out;
    size_t sent = 0;
    std::vector<uint8_t> room;
  };
  void Write(Way& way);
  void Read(Way& way);

  const Geometry geometry_;
  std::array<Way, kLanes> ways_;
  uint64_t beats_ = 0;
  Status broken_;
};

}  // namespace tangram::dispatch
