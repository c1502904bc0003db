// Where an engine's slabs are mapped and unmapped: a thread of its own, so that no step waits for
// the kernel to fill page tables.
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
  // Does first what it was told.
  ~Mapper();

  // One after another, in the order in which they were told.
  void Do(std::function<void()> work);
  // Nothing that it was told is left to do.
  bool idle();
  // For what it does: waits until `fd` is readable, or until the mapper is to end. False: neither
  // within `limit`.
  bool Await(int fd, std::chrono::milliseconds limit);

 private:
  void Run();

  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;  // the first is being done
  bool over_ = false;
  std::jthread thread_;
};

}  // namespace tangram
