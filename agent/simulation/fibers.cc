#include "agent/simulation/fibers.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace tangram::simulation {
namespace {

constexpr size_t kStackBytes = 256 << 10;

Scheduler* active = nullptr;
// Where control returns at the end of a turn.
jmp_buf turn_ends;

// Stacks of ended fibers, for reuse: a history needs hundreds.
std::vector<void*>& FreeStacks() {
  static std::vector<void*> stacks;
  return stacks;
}

void* TakeStack() {
  std::vector<void*>& stacks = FreeStacks();
  if (!stacks.empty()) {
    void* stack = stacks.back();
    stacks.pop_back();
    return stack;
  }
  void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) std::abort();
  return stack;
}

}  // namespace

struct Scheduler::Fiber {
  int owner = 0;
  std::string tag;
  std::function<void()> work;
  void* stack = nullptr;
  ucontext_t start{};
  jmp_buf resume{};
  bool begun = false, waits = false, timed_out = false, killed = false, ended = false;
  bool thread = false;  // of shipping code: kept until it is joined
  const void* key = nullptr;
  Nanos deadline = kForever;
};

uint64_t Dice::Next() {  // splitmix64
  state_ += 0x9E3779B97F4A7C15;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

Scheduler::Scheduler(uint64_t seed) : dice_(seed) {
  if (active != nullptr) std::abort();
  active = this;
}

Scheduler::~Scheduler() {
  active = nullptr;
  for (const auto& fiber : fibers_) {
    if (fiber->stack == nullptr) continue;
    std::fprintf(stderr, "simulation: a fiber of process %d (%s) never ended\n", fiber->owner,
                 fiber->tag.c_str());
    std::abort();
  }
}

Scheduler* Scheduler::Active() { return active; }

Scheduler::Fiber* Scheduler::Spawn(int owner, std::string tag, std::function<void()> work) {
  auto fiber = std::make_unique<Fiber>();
  fiber->owner = owner;
  fiber->tag = std::move(tag);
  fiber->work = std::move(work);
  fiber->stack = TakeStack();
  getcontext(&fiber->start);
  fiber->start.uc_stack.ss_sp = fiber->stack;
  fiber->start.uc_stack.ss_size = kStackBytes;
  fiber->start.uc_link = nullptr;
  makecontext(&fiber->start, &Scheduler::Begin, 0);
  fibers_.push_back(std::move(fiber));
  return fibers_.back().get();
}

Scheduler::Fiber* Scheduler::SpawnHere(std::function<void()> work) {
  Fiber* fiber = Spawn(running_->owner, running_->tag, std::move(work));
  fiber->thread = true;
  return fiber;
}

void Scheduler::Begin() {
  Fiber* self = active->running_;
  try {
    self->work();
  } catch (const Killed&) {  // NOLINT: its process is gone, and that is all
  }
  self->work = nullptr;
  self->ended = true;
  active->Wake(self);
  active->SwitchBack();
}

const std::string& Scheduler::tag() const { return tag_; }
int Scheduler::owner() const { return running_->owner; }

void Scheduler::SwitchTo(Fiber* fiber) {
  running_ = fiber;
  if (_setjmp(turn_ends) == 0) {
    if (!fiber->begun) {
      fiber->begun = true;
      setcontext(&fiber->start);
    }
    _longjmp(fiber->resume, 1);
  }
}

void Scheduler::SwitchBack() {
  if (_setjmp(running_->resume) == 0) _longjmp(turn_ends, 1);
}

bool Scheduler::Turn(int only) {
  const auto mine = [&](const Fiber& fiber) {
    return !fiber.ended && (only < 0 || fiber.owner == only);
  };
  while (true) {
    size_t ready = 0;
    Nanos next = kForever;
    for (const auto& fiber : fibers_) {
      if (!mine(*fiber)) continue;
      if (!fiber->waits) {
        ++ready;
      } else {
        next = std::min(next, fiber->deadline);
      }
    }
    if (ready == 0) {
      if (next == kForever) return false;
      now_ = std::max(now_, next);
      for (const auto& fiber : fibers_) {
        if (!mine(*fiber) || !fiber->waits || fiber->deadline > now_) continue;
        fiber->waits = false;
        fiber->timed_out = true;
      }
      continue;
    }
    size_t pick = dice_.Below(ready);
    Fiber* chosen = nullptr;
    for (const auto& fiber : fibers_) {
      if (!mine(*fiber) || fiber->waits) continue;
      if (pick-- == 0) {
        chosen = fiber.get();
        break;
      }
    }
    ++turns_;
    tag_ = chosen->tag;
    SwitchTo(chosen);
    running_ = nullptr;
    if (chosen->ended) {
      FreeStacks().push_back(std::exchange(chosen->stack, nullptr));
      if (!chosen->thread) Forget(chosen, true);
    }
    return true;
  }
}

bool Scheduler::Run(const std::function<bool()>& over) {
  while (!over()) {
    if (!Turn(-1)) return false;
    if (after_turn) after_turn();
  }
  return true;
}

bool Scheduler::RunAlone(int owner, const std::function<bool()>& over) {
  const Nanos before = now_;
  bool ended = true;
  while (ended && !over()) ended = Turn(owner);
  now_ = before;
  return ended;
}

bool Scheduler::Block(const void* key, Nanos deadline) {
  Fiber* self = running_;
  self->key = key;
  self->deadline = deadline;
  self->waits = true;
  self->timed_out = false;
  SwitchBack();
  return !self->timed_out;
}

bool Scheduler::Wait(const void* key, Nanos deadline) {
  if (running_->killed) throw Killed{};
  const bool woken = Block(key, deadline);
  if (running_->killed) throw Killed{};
  return woken;
}

void Scheduler::Wake(const void* key, bool all) {
  if (key == nullptr) return;
  for (const auto& fiber : fibers_) {
    if (!fiber->waits || fiber->key != key) continue;
    fiber->waits = false;
    if (!all) return;
  }
}

void Scheduler::Kill(int owner) {
  for (const auto& fiber : fibers_) {
    if (fiber->owner != owner || fiber->ended) continue;
    fiber->killed = true;
    fiber->waits = false;
  }
}

size_t Scheduler::Count(int owner) const {
  return static_cast<size_t>(std::count_if(fibers_.begin(), fibers_.end(), [&](const auto& fiber) {
    return fiber->owner == owner && !fiber->ended;
  }));
}

bool Scheduler::Ended(const Fiber* fiber) { return fiber->ended; }

void Scheduler::Forget(Fiber* fiber, bool joined) {
  if (!joined && !fiber->ended) {
    fiber->thread = false;
    return;
  }
  const auto it = std::find_if(fibers_.begin(), fibers_.end(),
                               [&](const auto& other) { return other.get() == fiber; });
  if (it != fibers_.end()) fibers_.erase(it);
}

}  // namespace tangram::simulation
