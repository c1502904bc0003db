// The thread that maps and unmaps an engine's slabs, so that no step waits for the kernel to fill
// page tables.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace tangram {

class Mapper {
 public:
  Mapper() : thread_([this] { Run(); }) {}
  Mapper(const Mapper&) = delete;
  Mapper& operator=(const Mapper&) = delete;
  // Completes queued work first.
  ~Mapper();

  // Queues work; runs it in order.
  void Do(std::function<void()> work);
  // Whether no queued or running work is left.
  bool idle();
  // For queued work: waits until `fd` is readable, or until the mapper is to end. False: neither
  // happened within `limit`.
  bool Await(int fd, std::chrono::milliseconds limit);

 private:
  void Run();

  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;  // the first is running
  bool over_ = false;
  std::jthread thread_;
};

}  // namespace tangram
