// The sources' ends of comm channels. Each connection for a channel (wire_talk.h) at the data port
// is served by a separate thread until it ends.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "agent/device/wire.h"
#include "agent/mover/grants.h"
#include "agent/mover/wire_turns.h"
#include "agent/net/stream.h"

namespace tangram::mover {

class WireServer {
 public:
  struct Options {
    std::shared_ptr<device::Wires> wires;
    std::shared_ptr<Turns> turns;
    WirePatience patience = {};
    // Each session costs a thread, buffers and resources of the library. Further peers are
    // rejected, and use another transport.
    size_t most = 32;
  };
  WireServer(Options options, Grants* grants);
  ~WireServer();

  // Does not block.
  void Take(std::unique_ptr<net::Stream> stream);
  size_t sessions() const { return sessions_; }  // now
  uint64_t batches() const { return batches_; }  // sent so far

 private:
  class Session;
  struct Worker {
    std::atomic<bool> over{false};
    std::jthread thread;
  };

  const Options options_;
  Grants* const grants_;
  std::atomic<size_t> sessions_{0};
  std::atomic<uint64_t> batches_{0};
  std::mutex mu_;
  std::list<Worker> workers_;  // last: they end before the members they use
};

}  // namespace tangram::mover
