#include "agent/device/testing/fake_cuda_state.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace tangram::device::testing {

FakeState& State() {
  static FakeState* const state = new FakeState;
  return *state;
}

CUcontext Primary() { return reinterpret_cast<CUcontext>(&State()); }

CUcontext& Current() {
  thread_local CUcontext current = nullptr;
  return current;
}

uint64_t FakeState::total_bytes() const {
  if (machine.memory_mib != 0) return machine.memory_mib << 20;
  const char* const told = std::getenv("FAKE_CUDA_MIB");
  const uint64_t mib = told != nullptr ? std::strtoull(told, nullptr, 10) : 0;
  return (mib != 0 ? mib : 4096) << 20;
}

std::map<uint64_t, FakeMapping>::const_iterator FakeState::Find(uint64_t address) const {
  auto it = mappings.upper_bound(address);
  if (it == mappings.begin()) return mappings.end();
  --it;
  return address - it->first < it->second.bytes ? it : mappings.end();
}

bool FakeState::Reserved(uint64_t address, uint64_t bytes) const {
  auto it = reservations.upper_bound(address);
  if (it == reservations.begin()) return false;
  --it;
  const uint64_t skip = address - it->first;
  return skip < it->second && bytes <= it->second - skip;
}

Call::Call(const char* name, Needs needs) : name_(name), lock_(State().mu) {
  FakeState& state = State();
  const uint64_t before = state.calls[name]++;
  const auto failing = state.failing.find(name);
  if (failing != state.failing.end() && failing->second.first == before) {
    failure_ = failing->second.second;
    state.failing.erase(failing);
  } else if (needs != kNothing && !state.begun) {
    failure_ = Refuse(CUDA_ERROR_NOT_INITIALIZED, "before cuInit");
  } else if (needs == kContext && (Current() == nullptr || state.retained == 0)) {
    failure_ = Refuse(CUDA_ERROR_INVALID_CONTEXT, "the calling thread is in no living context");
  } else if (needs == kContext) {
    failure_ = state.broken;
  }
}

CUresult Call::Refuse(CUresult result, const std::string& why) const {
  State().complaint = fmt::format("{}: {}", name_, why);
  return result;
}

void Call::Rest() {
  lock_.unlock();
  std::this_thread::sleep_for(std::chrono::microseconds(50));
  lock_.lock();
}

void FakeCuda::Become(const FakeMachine& machine) {
  FakeState& state = State();
  const std::scoped_lock lock(state.mu);
  state.machine = machine;
  state.begun = false;
  state.broken = CUDA_SUCCESS;
  state.calls.clear();
  state.failing.clear();
  state.complaint.clear();
}

uint64_t FakeCuda::Calls(const std::string& name) {
  const std::scoped_lock lock(State().mu);
  return State().calls[name];
}

void FakeCuda::Fail(const std::string& name, CUresult result, uint64_t skip) {
  FakeState& state = State();
  const std::scoped_lock lock(state.mu);
  state.failing[name] = {state.calls[name] + skip, result};
}

std::string FakeCuda::Complaint() {
  const std::scoped_lock lock(State().mu);
  return std::exchange(State().complaint, {});
}

std::string FakeCuda::Leaks() {
  const FakeState& state = State();
  const std::scoped_lock lock(State().mu);
  std::string out;
  const auto add = [&](uint64_t count, const char* what) {
    if (count > 0) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", count, what);
  };
  add(state.handles.size(), "handles");
  add(state.mappings.size(), "mappings");
  add(state.reservations.size(), "reservations");
  add(state.streams.size(), "streams");
  add(state.events.size(), "events");
  add(state.modules.size(), "modules");
  add(state.graphs.size() + state.executables.size(), "graphs");
  add(state.retained, "uses of the primary context");
  add(state.used_bytes, "bytes of memory");
  return out;
}

uint64_t FakeCuda::Waiting() {
  const std::scoped_lock lock(State().mu);
  uint64_t out = 0;
  for (const auto& stream : State().all_streams) {
    if (const auto there = stream.lock()) out += there->work.size();
  }
  return out;
}

}  // namespace tangram::device::testing
