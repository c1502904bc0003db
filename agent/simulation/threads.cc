// Threads, locks and clocks of shipping code while a simulated world runs. These definitions
// override those of the C library. Outside of a world they forward to the C library.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>

#include "agent/simulation/fibers.h"

namespace {

using tangram::simulation::kForever;
using tangram::simulation::Nanos;
using tangram::simulation::Scheduler;

template <typename Function>
Function* Real(const char* name) {
  auto* found = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
  if (found == nullptr) std::abort();
  return found;
}

Nanos At(const timespec* when) {
  return Nanos{when->tv_sec} * tangram::simulation::kSecond + when->tv_nsec;
}

// Simulated calls need a fiber: when the world itself reads shipping code's state, no lock is held.
void MustBeInFiber(const char* what) {
  if (Scheduler::Active()->InFiber()) return;
  std::fprintf(stderr, "simulation: %s outside of a fiber\n", what);
  std::abort();
}

// The first word of the C library's mutex states whether it is held. A fiber's lock uses the same
// word.
int& Held(pthread_mutex_t* mutex) { return mutex->__data.__lock; }

int WaitOn(pthread_cond_t* condition, pthread_mutex_t* mutex, Nanos deadline) {
  MustBeInFiber("a wait");
  Scheduler& world = *Scheduler::Active();
  Held(mutex) = 0;
  world.Wake(mutex);
  const bool woken = world.Block(condition, deadline);
  while (Held(mutex) != 0) (void)world.Block(mutex, kForever);
  Held(mutex) = 1;
  return woken ? 0 : ETIMEDOUT;
}

}  // namespace

extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) {
  Scheduler* world = Scheduler::Active();
  if (world == nullptr) {
    static auto* real = Real<int(pthread_mutex_t*)>("pthread_mutex_lock");
    return real(mutex);
  }
  while (Held(mutex) != 0) {
    MustBeInFiber("a lock that is held");
    (void)world->Block(mutex, kForever);
  }
  Held(mutex) = 1;
  return 0;
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) {
  if (Scheduler::Active() == nullptr) {
    static auto* real = Real<int(pthread_mutex_t*)>("pthread_mutex_trylock");
    return real(mutex);
  }
  if (Held(mutex) != 0) return EBUSY;
  Held(mutex) = 1;
  return 0;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) {
  Scheduler* world = Scheduler::Active();
  if (world == nullptr) {
    static auto* real = Real<int(pthread_mutex_t*)>("pthread_mutex_unlock");
    return real(mutex);
  }
  Held(mutex) = 0;
  world->Wake(mutex);
  return 0;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  if (Scheduler::Active() == nullptr) {
    static auto* real = Real<int(pthread_cond_t*, pthread_mutex_t*)>("pthread_cond_wait");
    return real(condition, mutex);
  }
  return WaitOn(condition, mutex, kForever);
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* when) {
  if (Scheduler::Active() == nullptr) {
    static auto* real =
        Real<int(pthread_cond_t*, pthread_mutex_t*, const timespec*)>("pthread_cond_timedwait");
    return real(condition, mutex, when);
  }
  return WaitOn(condition, mutex, At(when));
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* when) {
  if (Scheduler::Active() == nullptr) {
    static auto* real = Real<int(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)>(
        "pthread_cond_clockwait");
    return real(condition, mutex, clock, when);
  }
  return WaitOn(condition, mutex, At(when));
}

int pthread_cond_signal(pthread_cond_t* condition) {
  if (Scheduler::Active() == nullptr) {
    static auto* real = Real<int(pthread_cond_t*)>("pthread_cond_signal");
    return real(condition);
  }
  Scheduler::Active()->Wake(condition, false);
  return 0;
}

int pthread_cond_broadcast(pthread_cond_t* condition) {
  if (Scheduler::Active() == nullptr) {
    static auto* real = Real<int(pthread_cond_t*)>("pthread_cond_broadcast");
    return real(condition);
  }
  Scheduler::Active()->Wake(condition);
  return 0;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*),
                   void* argument) {
  if (Scheduler::Active() == nullptr) {
    static auto* real =
        Real<int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
    return real(thread, attributes, work, argument);
  }
  MustBeInFiber("a thread");
  *thread = reinterpret_cast<pthread_t>(
      Scheduler::Active()->SpawnHere([work, argument] { (void)work(argument); }));
  return 0;
}

int pthread_join(pthread_t thread, void** result) {
  Scheduler* world = Scheduler::Active();
  if (world == nullptr) {
    static auto* real = Real<int(pthread_t, void**)>("pthread_join");
    return real(thread, result);
  }
  MustBeInFiber("a join");
  auto* fiber = reinterpret_cast<Scheduler::Fiber*>(thread);
  while (!Scheduler::Ended(fiber)) (void)world->Block(fiber, kForever);
  world->Forget(fiber, true);
  return 0;
}

int pthread_detach(pthread_t thread) {
  if (Scheduler::Active() == nullptr) {
    static auto* real = Real<int(pthread_t)>("pthread_detach");
    return real(thread);
  }
  Scheduler::Active()->Forget(reinterpret_cast<Scheduler::Fiber*>(thread), false);
  return 0;
}

int clock_gettime(clockid_t clock, timespec* out) {
  const Scheduler* world = Scheduler::Active();
  if (world == nullptr) {
    static auto* real = Real<int(clockid_t, timespec*)>("clock_gettime");
    return real(clock, out);
  }
  out->tv_sec = world->now() / tangram::simulation::kSecond;
  out->tv_nsec = world->now() % tangram::simulation::kSecond;
  return 0;
}

// All threads are one real thread, whose priority must not change.
int setpriority(__priority_which_t which, id_t who, int value) noexcept {
  if (Scheduler::Active() != nullptr) return 0;
  static auto* real = Real<int(__priority_which_t, id_t, int)>("setpriority");
  return real(which, who, value);
}

}  // extern "C"
