#include "agent/mover/mover.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "agent/base/background.h"
#include "agent/base/thread.h"
#include "agent/mover/pacer.h"

namespace tangram::mover {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kLeastBytes = 2 << 20;  // per call, if a source has several lanes

// The state of one job: the queue of each source. One lock guards all; it is not held while bytes
// move.
class Run {
 public:
  Run(std::span<const Range> job, std::span<Source* const> sources, const Limits& limits)
      : job_(job),
        limits_(limits),
        pacer_(limits.share),
        left_(job.size()),
        turn_(job.size()),
        missing_(job.size(), true) {
    for (Source* source : sources) desks_.emplace_back().source = source;
    for (size_t i = 0; i < job.size(); ++i) Queue(i);
  }

  void Work(const Came& came, const std::function<void(const Source&, const Status&)>& failed,
            const std::stop_token& stop) {
    while (true) {
      const std::optional<Call> call = Next(stop);
      if (!call) return;
      pacer_.Begin();
      Source& source = *desks_[call->desk].source;
      const auto arrived = [&](size_t range, const std::vector<uint64_t>& hashes) {
        came(source, range, hashes);
        {
          const std::scoped_lock lock(mu_);
          if (missing_[range]) --left_;
          missing_[range] = false;
        }
        pacer_.Moved(stop);
      };
      Status status = source.Bring(job_, call->ranges, arrived, stop);
      if (!status.ok() && status.code() != Code::kNotHeld) failed(source, status);
      Over(*call, std::move(status));
    }
  }

  // Number of calls to make concurrently: a thread costs as much as 100 KiB take.
  size_t calls() const {
    size_t out = 0;
    for (const Desk& desk : desks_) {
      const size_t worth = (desk.bytes + kLeastBytes - 1) / kLeastBytes;
      if (!desk.queue.empty()) out += std::clamp<size_t>(worth, 1, desk.source->lanes());
    }
    return out;
  }

  Status Outcome(const std::stop_token& stop) {
    const std::scoped_lock lock(mu_);
    if (error_) return *error_;
    if (left_ > 0 && stop.stop_requested()) return {Code::kUnavailable, "stopped"};
    return OkStatus();
  }

 private:
  struct Desk {
    Source* source = nullptr;
    std::deque<size_t> queue;  // ranges to fetch from it
    uint64_t bytes = 0;        // sum of these ranges
    size_t calls = 0;          // in progress
    int failures = 0;
    Clock::time_point failed{}, not_before{};
  };
  struct Call {
    size_t desk = 0;
    std::vector<size_t> ranges;
    Clock::time_point begun = Clock::now();
  };

  // Queues the range at its next source that has not failed; without one the job has failed.
  void Queue(size_t range) {
    const std::vector<uint32_t>& sources = job_[range].sources;
    for (; turn_[range] < sources.size(); ++turn_[range]) {
      Desk& desk = desks_[sources[turn_[range]]];
      if (desk.failures >= limits_.failures) continue;
      desk.queue.push_back(range);
      desk.bytes += job_[range].bytes();
      return;
    }
    if (!error_) error_ = Status(worst_, said_.empty() ? "a range has no source" : said_);
  }

  // Waits until there is a call to make; nullopt: the job has ended.
  std::optional<Call> Next(const std::stop_token& stop) {
    std::unique_lock lock(mu_);
    while (left_ > 0 && !error_ && !stop.stop_requested()) {
      const auto now = Clock::now();
      auto wake = now + std::chrono::seconds(1);
      // Prefers another source to one more call to the same.
      size_t best = desks_.size();
      for (size_t d = 0; d < desks_.size(); ++d) {
        const Desk& desk = desks_[d];
        if (desk.calls >= desk.source->lanes() || desk.queue.empty()) continue;
        if (desk.not_before > now) {
          wake = std::min(wake, desk.not_before);
        } else if (best == desks_.size() || desk.calls < desks_[best].calls) {
          best = d;
        }
      }
      if (best < desks_.size()) return Batch(best);
      const uint64_t seen = changes_;
      changed_.wait_until(lock, stop, wake, [&] { return changes_ != seen; });
    }
    return std::nullopt;
  }

  Call Batch(size_t d) {
    Call call{d, {}, Clock::now()};
    Desk& desk = desks_[d];
    // Lanes share the ranges only if there are enough bytes for each call, and fewer sources left
    // than workers. Otherwise each source gets one call for everything.
    const auto left = static_cast<size_t>(
        std::ranges::count_if(desks_, [](const Desk& other) { return !other.queue.empty(); }));
    const size_t lanes = std::min(desk.source->lanes(), (limits_.workers + left - 1) / left);
    const uint64_t idle = lanes > desk.calls ? lanes - desk.calls : 1;
    const uint64_t share = std::max(desk.bytes / idle, kLeastBytes);
    ++desk.calls;
    const uint64_t most = std::min(limits_.batch_bytes, share);
    for (uint64_t bytes = 0; !desk.queue.empty(); desk.queue.pop_front()) {
      const uint64_t range = job_[desk.queue.front()].bytes();
      bytes += range;
      if (!call.ranges.empty() && bytes > most) break;
      call.ranges.push_back(desk.queue.front());
      desk.bytes -= range;
    }
    return call;
  }

  void Over(const Call& call, Status status) {
    const std::scoped_lock lock(mu_);
    Desk& desk = desks_[call.desk];
    --desk.calls;
    const bool whole = std::none_of(call.ranges.begin(), call.ranges.end(),
                                    [&](size_t range) { return missing_[range]; });
    if (status.ok() && !whole) {
      status = {Code::kInternal, desk.source->name() + " delivered fewer ranges than it reported"};
    }
    if (!status.ok()) Failed(&desk, call, std::move(status));
    ++changes_;
    changed_.notify_all();
  }

  void Failed(Desk* desk, const Call& call, Status status) {
    std::vector<size_t> rest;
    for (const size_t range : call.ranges) {
      if (missing_[range]) rest.push_back(range);
    }
    const bool later = status.code() == Code::kNotHeld;
    if (!later && status.code() != Code::kUnavailable && status.code() != Code::kCorrupt) {
      if (!error_) error_ = std::move(status);
      return;
    }
    if (later) {
      desk->not_before = Clock::now() + limits_.ask_again;
    } else {
      if (call.begun >= desk->failed) {
        ++desk->failures;
        desk->failed = Clock::now();
        desk->not_before = desk->failed + limits_.after_failure;
      }
      worst_ = status.code();
      said_ += (said_.empty() ? "" : "; ") + desk->source->name() + ": " + status.message();
    }
    std::reverse(rest.begin(), rest.end());  // to the front, in order
    for (const size_t range : rest) {
      // Wait only for the range's first source: two sources that replace each other would wait
      // forever.
      if (later && turn_[range] > 0) {
        ++turn_[range];
        if (!error_) Queue(range);
      } else {
        desk->queue.push_front(range);
        desk->bytes += job_[range].bytes();
      }
    }
    if (desk->failures < limits_.failures) return;
    desk->bytes = 0;
    for (const size_t range : std::exchange(desk->queue, {})) {
      if (!error_) Queue(range);
    }
  }

  const std::span<const Range> job_;
  const Limits limits_;
  Pacer pacer_;
  std::mutex mu_;
  std::condition_variable_any changed_;
  std::vector<Desk> desks_;
  uint64_t changes_ = 0;  // counts changes of the members below
  size_t left_;
  std::vector<size_t> turn_;   // by range: index of its current source
  std::vector<bool> missing_;  // by range
  Code worst_ = Code::kBadPlan;
  std::string said_;  // by failed sources
  std::optional<Status> error_;
};

}  // namespace

uint64_t Range::bytes() const {
  uint64_t sum = 0;
  for (const device::Memory& unit : units) sum += unit.bytes;
  return sum;
}

Status Bring(std::span<const Range> job, std::span<Source* const> sources, const Limits& limits,
             const Came& came, const std::function<void(const Source&, const Status&)>& failed,
             std::stop_token stop) {
  if (job.empty()) return OkStatus();  // a flip without moves starts no thread
  Run run(job, sources, limits);
  {
    std::vector<std::jthread> workers;
    for (size_t i = 1, most = std::min(limits.workers, run.calls()); i < most; ++i) {
      auto worker = StartThread([&] {
        if (limits.yields) YieldToServing();
        run.Work(came, failed, stop);
      });
      if (!worker.ok()) break;  // fewer workers fetch the rest
      workers.push_back(std::move(worker).value());
    }
    run.Work(came, failed, stop);
  }
  return run.Outcome(stop);
}

}  // namespace tangram::mover
