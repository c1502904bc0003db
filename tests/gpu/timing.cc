#include "tests/gpu/timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace tangram::gpu {

double Quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<size_t>(std::lround(share * last))];
}

void Stopwatch::Gate::Shut() {
  const std::scoped_lock lock(mu_);
  open_ = late_ = false;
}

void Stopwatch::Gate::Open() {
  {
    const std::scoped_lock lock(mu_);
    open_ = true;
  }
  changed_.notify_all();
}

bool Stopwatch::Gate::opened() {
  const std::scoped_lock lock(mu_);
  return !late_;
}

void Stopwatch::Gate::Pass(void* data) {
  auto& gate = *static_cast<Gate*>(data);
  std::unique_lock lock(gate.mu_);
  gate.late_ =
      !gate.changed_.wait_for(lock, std::chrono::milliseconds(500), [&] { return gate.open_; });
}

Stopwatch::Stopwatch(const Gpu& gpu, size_t streams) : gpu_(gpu), begin_(gpu), end_(gpu) {
  for (size_t i = 0; i < streams; ++i) {
    streams_.push_back(std::make_unique<Stream>(gpu));
    met_.push_back(std::make_unique<Event>(gpu));
  }
}

void Stopwatch::Meet() {
  for (size_t i = 0; i < streams_.size(); ++i) met_[i]->Record(*streams_[i]);
  for (size_t i = 0; i < streams_.size(); ++i) {
    for (size_t j = 0; j < streams_.size(); ++j) {
      if (i != j) met_[j]->HoldUp(*streams_[i]);
    }
  }
}

double Stopwatch::Once(const std::function<void()>& fill) {
  gate_.Shut();
  try {
    gpu_.Check(gpu_.more().LaunchHostFunc(stream(0), &Gate::Pass, &gate_), "a call of the host");
    begin_.Record(stream(0));
    for (size_t i = 1; i < streams_.size(); ++i) begin_.HoldUp(stream(i));
    fill();
    Meet();
    end_.Record(stream(0));
  } catch (...) {
    gate_.Open();  // otherwise the destruction of the streams would wait for it
    throw;
  }
  gate_.Open();
  end_.Wait();
  if (!gate_.opened()) ++hurried_;
  return end_.SecondsSince(begin_);
}

double Stopwatch::Seconds(int rounds, const std::function<void()>& fill) {
  (void)Once(fill);
  hurried_ = 0;
  std::vector<double> seconds;
  for (int i = 0; i < rounds; ++i) seconds.push_back(Once(fill));
  return Quantile(seconds, 0.5);
}

std::string Stopwatch::Note() const {
  if (hurried_ == 0) return "";
  return std::to_string(hurried_) + " rounds were not queued in time, and tell of the host, too";
}

double HostMicroseconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}

}  // namespace tangram::gpu
