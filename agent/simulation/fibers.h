// Threads of a simulated world: fibers that take turns in one real thread. A seed decides order and
// times. Shipping code is unchanged: threads.cc provides fibers for std::thread, std::mutex,
// std::condition_variable and the clocks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tangram::simulation {

using Nanos = int64_t;  // since the history's start
inline constexpr Nanos kForever = INT64_MAX;
inline constexpr Nanos kMillisecond = 1'000'000;
inline constexpr Nanos kSecond = 1'000 * kMillisecond;

// Random numbers that depend only on the seed.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15 + 1) {}
  uint64_t Below(uint64_t limit) { return limit == 0 ? 0 : Next() % limit; }
  bool OneIn(uint64_t times) { return Below(times) == 0; }
  Nanos Between(Nanos least, Nanos most) {
    return least + static_cast<Nanos>(Below(static_cast<uint64_t>(most - least + 1)));
  }

 private:
  uint64_t Next();

  uint64_t state_;
};

// Thrown in a wait of simulated code whose process was killed. Shipping code never sees it.
struct Killed {};

// At most one per process at a time.
class Scheduler {
 public:
  struct Fiber;

  explicit Scheduler(uint64_t seed);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  static Scheduler* Active();  // null: none

  // `owner`: the process of the fiber. `tag`: its task, for traces; inherited by threads that it
  // starts.
  Fiber* Spawn(int owner, std::string tag, std::function<void()> work);
  // A thread of the running fiber.
  Fiber* SpawnHere(std::function<void()> work);

  // Takes turns until `over`, which is called before each; false: no fiber can ever run.
  bool Run(const std::function<bool()>& over);
  // Runs only fibers of this owner, in a separate time that other fibers do not see.
  bool RunAlone(int owner, const std::function<bool()>& over);
  // Called after each turn, except in RunAlone.
  std::function<void()> after_turn;

  Nanos now() const { return now_; }
  Dice& dice() { return dice_; }
  uint64_t turns() const { return turns_; }
  bool InFiber() const { return running_ != nullptr; }
  const std::string& tag() const;  // of the last turn
  int owner() const;               // of the running fiber

  // For simulated code. True: woken; false: deadline reached. Throws Killed.
  bool Wait(const void* key, Nanos deadline);
  void Sleep(Nanos pause) { (void)Wait(nullptr, now_ + pause); }
  void Wake(const void* key, bool all = true);
  // All fibers of the owner that wait in simulated code end by Killed.
  void Kill(int owner);
  size_t Count(int owner) const;

  // For threads.cc: the same for shipping code, which cannot be killed.
  bool Block(const void* key, Nanos deadline);
  static bool Ended(const Fiber* fiber);
  void Forget(Fiber* fiber, bool joined);  // it is joined, or never will be

 private:
  bool Turn(int only);
  void SwitchTo(Fiber* fiber);
  void SwitchBack();
  static void Begin();

  Dice dice_;
  Nanos now_ = 0;
  uint64_t turns_ = 0;
  Fiber* running_ = nullptr;
  std::string tag_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
};

}  // namespace tangram::simulation
