// tangram-false-alarm: an hour of steps through the timeouts for peers (patience.h), in simulated
// time. Steps are log-normal, one rank pauses now and then for up to half of the limit, and the
// whole machine for up to 10 s. Prints one JSON object per case; no peer may be fenced. `naive`
// counts the peers that a plain clock would have fenced.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>

#include "agent/engine/mesh/patience.h"

namespace tangram::engine {
namespace {

using Time = Wait::Clock::time_point;
using Duration = Patience::Duration;
using std::chrono::hours;
using std::chrono::seconds;

constexpr size_t kPeers = 5;  // of six ranks

struct Case {
  const char* name;
  double median_ms, sigma;
  double prefill;  // share of steps with a hundred times the rows, ten times as long
};

Duration Nanoseconds(double ns) { return Duration(static_cast<int64_t>(ns)); }

struct Outcome {
  uint64_t steps = 0, fences = 0, naive = 0, pauses = 0, machine_pauses = 0;
};

Outcome Play(const Case& c, uint64_t seed) {
  std::mt19937_64 draw(seed);
  std::uniform_real_distribution<double> even(0, 1);
  std::lognormal_distribution<double> step(std::log(c.median_ms * 1e6), c.sigma);
  Patience patience({});
  Outcome out;
  Time now{}, rank_pauses = now + seconds(30), machine_pauses = now + seconds(120);
  for (const Time end = now + hours(1); now < end; ++out.steps) {
    const bool prefill = even(draw) < c.prefill;
    const uint64_t rows = prefill ? 3000 : 30;
    const Duration limit = patience.Limit(rows);
    const Time began = now;
    Time comes[kPeers];
    for (Time& at : comes) at = now + Nanoseconds(step(draw) * (prefill ? 10 : 1));
    if (now >= rank_pauses) {
      comes[draw() % kPeers] += Nanoseconds(even(draw) * static_cast<double>(limit.count()) / 2);
      rank_pauses = now + Nanoseconds(60e9 * even(draw));
      ++out.pauses;
    }
    Wait wait(kPeers, limit, patience.bounds().heartbeat(), now);
    bool waiting = true, silent = false, late = false;
    while (waiting && !silent) {
      // The peers are paused as well, so their messages arrive later by the pause.
      Duration pause{};
      if (now >= machine_pauses) {
        pause = Nanoseconds(10e9 * even(draw));
        machine_pauses = now + pause + Nanoseconds(240e9 * even(draw));
        ++out.machine_pauses;
      }
      Time next = now + Wait::kLook;
      for (Time& at : comes) {
        if (at > now) {
          at += pause;
          next = std::min(next, at - pause);
        }
      }
      now = next + pause;
      wait.Look(now);
      waiting = false;
      for (size_t peer = 0; peer < kPeers; ++peer) {
        if (comes[peer] <= now) continue;
        waiting = true;
        silent = silent || wait.Silent(peer);
        late = late || now - began >= limit;
      }
    }
    out.fences += silent ? 1 : 0;
    out.naive += late ? 1 : 0;
    if (!silent) patience.Learn(rows, wait.ran());
  }
  return out;
}

int Main() {
  const Case cases[] = {{"decode of a small model", 5, .5, 0},
                        {"decode", 30, .6, 0},
                        {"decode and prefill", 20, .6, .1},
                        {"long steps", 50, .5, .05},
                        {"very long steps", 2000, .3, 0}};
  uint64_t seed = 1;
  for (const Case& c : cases) {
    const Outcome o = Play(c, seed++);
    std::printf(
        "{\"case\":\"%s\",\"median_ms\":%g,\"sigma\":%g,\"steps\":%llu,\"pauses\":%llu,"
        "\"machine_pauses\":%llu,\"fences\":%llu,\"naive\":%llu}\n",
        c.name, c.median_ms, c.sigma, static_cast<unsigned long long>(o.steps),
        static_cast<unsigned long long>(o.pauses),
        static_cast<unsigned long long>(o.machine_pauses),
        static_cast<unsigned long long>(o.fences), static_cast<unsigned long long>(o.naive));
  }
  return 0;
}

}  // namespace
}  // namespace tangram::engine

int main() { return tangram::engine::Main(); }
