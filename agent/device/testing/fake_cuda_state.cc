#include "agent/device/testing/fake_cuda_state.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
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

namespace {

// The value of the test, else of the environment variable, else the default.
uint64_t Told(uint64_t here, const char* variable, uint64_t usual) {
  if (here != 0) return here;
  const char* const told = std::getenv(variable);
  const uint64_t value = told != nullptr ? std::strtoull(told, nullptr, 10) : 0;
  return value != 0 ? value : usual;
}

}  // namespace

uint64_t FakeState::total_bytes() const {
  return Told(machine.memory_mib, "FAKE_CUDA_MIB", 4096) << 20;
}

uint64_t FakeState::granularity() const {
  return Told(machine.granularity, "FAKE_CUDA_GRANULARITY", 2 << 20);
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
  state.faults.Take();
  const uint64_t before = state.calls[name]++;
  const auto failing = state.failing.find(name);
  if (failing != state.failing.end() && before >= failing->second.from &&
      before < failing->second.to) {
    failure_ = failing->second.result;
    if (failure_ == CUDA_ERROR_ECC_UNCORRECTABLE) state.broken = failure_;
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
  State().report.Write("refused " + State().complaint);
  return result;
}

FakeReport::FakeReport() {
  if (const char* const told = std::getenv("FAKE_CUDA_REPORT")) file_ = told;
}

FakeFaults::FakeFaults() {
  if (const char* const told = std::getenv("FAKE_CUDA_FAULTS")) file_ = told;
}

namespace {

void Arm(const std::string& name, CUresult result, uint64_t skip, uint64_t times) {
  FakeState& state = State();
  const uint64_t from = state.calls[name] + skip;
  state.failing[name] = {from, from + times, result};
}

}  // namespace

void FakeFaults::Take() const {
  if (file_.empty() || access(file_.c_str(), F_OK) != 0) return;
  std::ifstream lines(file_);
  std::string name;
  int result = 0;
  uint64_t skip = 0, times = 0;
  while (lines >> name >> result >> skip >> times) {
    Arm(name, static_cast<CUresult>(result), skip, times);
  }
  unlink(file_.c_str());
}

void FakeReport::Write(const std::string& line) const {
  if (file_.empty()) return;
  std::ofstream(file_, std::ios::app) << line << "\n";
}

namespace {

// Runs after main and the program's destructors, which have freed its devices.
[[gnu::destructor]] void TellTheEnd() {
  const std::string leaks = FakeCuda::Leaks();
  State().report.Write(leaks.empty() ? "ended" : "leaked " + leaks);
}

}  // namespace

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

void FakeCuda::Fail(const std::string& name, CUresult result, uint64_t skip, uint64_t times) {
  FakeState& state = State();
  const std::scoped_lock lock(state.mu);
  Arm(name, result, skip, times);
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
  add(state.buffers.size(), "buffers");
  add(state.pinned.size(), "pinned buffers");
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
