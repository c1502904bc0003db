// The recording driver: streams, events, and their work, which runs on request.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "agent/device/testing/fake_cuda_state.h"

namespace tangram::device::testing {

bool Lines::Touches(uint64_t begin, uint64_t end) const {
  if (lines == 0 || bytes == 0 || begin >= end) return false;
  if (end <= address || begin >= address + (lines - 1) * pitch + bytes) return false;
  // The first line that ends after `begin`.
  uint64_t line = 0;
  if (begin >= address + bytes) line = (begin - address - bytes) / pitch + 1;
  return line < lines && address + line * pitch < end;
}

namespace {

bool OfDevice(uint64_t address) { return State().Reserved(address, 1); }

// Calls `use(bytes, length)` for the memory behind addresses; false: some access is not allowed.
template <typename Use>
bool EachPart(uint64_t address, uint64_t bytes, bool writes, Use&& use) {
  if (!OfDevice(address)) {
    use(reinterpret_cast<std::byte*>(address), bytes);
    return true;
  }
  const FakeState& state = State();
  while (bytes > 0) {
    const auto it = state.Find(address);
    if (it == state.mappings.end() || it->second.access == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
        (writes && it->second.access != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) {
      return false;
    }
    const uint64_t skip = address - it->first, take = std::min(bytes, it->second.bytes - skip);
    use(it->second.physical->base() + skip, take);
    address += take;
    bytes -= take;
  }
  return true;
}

using Part = std::pair<std::byte*, uint64_t>;

bool PartsOf(const Lines& side, uint64_t line, bool writes, std::vector<Part>* out) {
  out->clear();
  return EachPart(side.address + line * side.pitch, side.bytes, writes,
                  [&](std::byte* at, uint64_t bytes) {
                    out->push_back({at, bytes});
                  });
}

bool Run(const FakeWork& copy) {
  std::vector<Part> to, from;
  for (uint64_t line = 0; line < copy.to.lines; ++line) {
    if (!PartsOf(copy.to, line, true, &to) || !PartsOf(copy.from, line, false, &from)) return false;
    for (size_t t = 0, f = 0; t < to.size() && f < from.size();) {
      const uint64_t bytes = std::min(to[t].second, from[f].second);
      std::memmove(to[t].first, from[f].first, bytes);
      for (auto [part, next] : {std::pair(&to[t], &t), std::pair(&from[f], &f)}) {
        part->first += bytes;
        part->second -= bytes;
        if (part->second == 0) ++*next;
      }
    }
  }
  return true;
}

// The physical bytes behind addresses: two mappings of one memory are the same bytes.
std::vector<Segment> SegmentsOf(const Lines& side) {
  std::vector<Segment> out;
  const FakeState& state = State();
  const auto add = [&](Segment segment) {
    if (!out.empty() && out.back().memory == segment.memory && out.back().end == segment.begin) {
      out.back().end = segment.end;
    } else {
      out.push_back(segment);
    }
  };
  for (uint64_t line = 0; line < side.lines; ++line) {
    uint64_t address = side.address + line * side.pitch, bytes = side.bytes;
    if (!OfDevice(address)) {
      add({0, address, address + bytes});
      continue;
    }
    for (auto it = state.Find(address); bytes > 0 && it != state.mappings.end();
         it = state.Find(address)) {
      const uint64_t skip = address - it->first, take = std::min(bytes, it->second.bytes - skip);
      add({it->second.physical->identity(), skip, skip + take});
      address += take;
      bytes -= take;
    }
  }
  std::sort(out.begin(), out.end(), [](const Segment& a, const Segment& b) {
    return std::pair(a.memory, a.begin) < std::pair(b.memory, b.begin);
  });
  return out;
}

bool Overlap(const std::vector<Segment>& a, const std::vector<Segment>& b) {
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i].memory == b[j].memory && a[i].begin < b[j].end && b[j].begin < a[i].end) return true;
    const bool first = std::pair(a[i].memory, a[i].end) < std::pair(b[j].memory, b[j].end);
    first ? ++i : ++j;
  }
  return false;
}

// Whether a pending copy of another stream uses the same bytes, and one of the two writes.
bool Races(const FakeWork& copy, const FakeStream* stream) {
  for (const auto& weak : State().all_streams) {
    const auto other = weak.lock();
    if (other == nullptr || other.get() == stream) continue;
    const auto known = stream->before.find(other->name);
    for (const FakeWork& theirs : other->work) {
      if (known != stream->before.end() && theirs.number <= known->second) continue;
      if (Overlap(copy.writes, theirs.writes) || Overlap(copy.writes, theirs.reads) ||
          Overlap(copy.reads, theirs.writes)) {
        return true;
      }
    }
  }
  return false;
}

bool Pending(const FakeEvent& event) {
  return event.stream != nullptr && event.stream->done < event.number;
}

void Raise(Clock* clock, uint64_t stream, uint64_t number) {
  uint64_t& known = (*clock)[stream];
  known = std::max(known, number);
}

}  // namespace

CUresult Give(const Call& call, CUstream name, FakeWork work) {
  FakeState& state = State();
  const auto it = state.streams.find(name);
  if (it == state.streams.end()) return call.Refuse(CUDA_ERROR_INVALID_HANDLE, "no such stream");
  if (it->second->graph != nullptr) {
    it->second->graph->push_back(std::move(work));
    return CUDA_SUCCESS;
  }
  work.writes = SegmentsOf(work.to);
  work.reads = SegmentsOf(work.from);
  if (Overlap(work.writes, work.reads)) {
    return call.Refuse(CUDA_ERROR_ILLEGAL_STATE, "it reads what it writes");
  }
  if (Races(work, it->second.get())) {
    return call.Refuse(CUDA_ERROR_ILLEGAL_STATE,
                       "a copy of another stream that did not run yet has the same bytes");
  }
  work.number = ++it->second->given;
  it->second->work.push_back(std::move(work));
  return CUDA_SUCCESS;
}

bool RunUntil(FakeStream* stream, uint64_t number) {
  while (!stream->work.empty() && stream->work.front().number <= number) {
    if (const auto goes_on = stream->work.front().goes_on) {
      const FakeRun run = State().broken == CUDA_SUCCESS ? goes_on() : FakeRun::kDone;
      if (run == FakeRun::kRunning) return false;
      if (run == FakeRun::kFailed) {
        State().broken = CUDA_ERROR_ILLEGAL_ADDRESS;
        State().report.Write("refused an address that was touched without access");
      }
      stream->done = stream->work.front().number;
      stream->work.pop_front();
      continue;
    }
    // Removed first, because running it may run other streams.
    const FakeWork work = std::move(stream->work.front());
    stream->work.pop_front();
    if (State().broken == CUDA_SUCCESS && !(work.does ? work.does() : Run(work))) {
      State().broken = CUDA_ERROR_ILLEGAL_ADDRESS;
      State().report.Write("refused an address that was touched without access");
    }
    stream->done = work.number;
  }
  return true;
}

CUresult FakeCuda::Put(CUstream stream, FakeLongKernel kernel) {
  Call call("FakeCuda::Put", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  const auto parts = [=](std::vector<std::span<std::byte>>* out) {
    return EachPart(kernel.address, kernel.bytes, kernel.writes,
                    [&](std::byte* at, uint64_t bytes) { out->emplace_back(at, bytes); });
  };
  std::vector<std::span<std::byte>> reached;
  if (!OfDevice(kernel.address) || !parts(&reached)) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE, "a kernel's memory that is not mapped so");
  }
  FakeWork work;
  (kernel.writes ? work.to : work.from) = {kernel.address, 1, kernel.bytes, kernel.bytes};
  work.goes_on = [parts, runs = std::move(kernel.runs)] {
    std::vector<std::span<std::byte>> now;
    return parts(&now) ? runs(now) : FakeRun::kFailed;
  };
  return Give(call, stream, std::move(work));
}

}  // namespace tangram::device::testing

using namespace tangram::device::testing;

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  Call call("cuMemcpyAsync", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  FakeWork copy;
  copy.to = {to, 1, bytes, bytes};
  copy.from = {from, 1, bytes, bytes};
  return Give(call, stream, std::move(copy));
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* what, CUstream stream) {
  Call call("cuMemcpy2DAsync", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  // 0: lines without gaps.
  const uint64_t to_pitch = what->dstPitch == 0 ? what->WidthInBytes : what->dstPitch;
  const uint64_t from_pitch = what->srcPitch == 0 ? what->WidthInBytes : what->srcPitch;
  if (to_pitch < what->WidthInBytes || from_pitch < what->WidthInBytes) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE, "lines that reach into the next");
  }
  const auto address = [](CUmemorytype type, const void* host, CUdeviceptr device) -> uint64_t {
    if (type == CU_MEMORYTYPE_HOST) return reinterpret_cast<uint64_t>(host);
    return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED ? device : 0;
  };
  const uint64_t to = address(what->dstMemoryType, what->dstHost, what->dstDevice);
  const uint64_t from = address(what->srcMemoryType, what->srcHost, what->srcDevice);
  const auto lies = [](CUmemorytype type, uint64_t at) {  // as its type states
    return type == CU_MEMORYTYPE_UNIFIED || (type == CU_MEMORYTYPE_DEVICE) == OfDevice(at);
  };
  if (to == 0 || from == 0 || !lies(what->dstMemoryType, to) || !lies(what->srcMemoryType, from)) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE, "memory that is not of the kind that it is named");
  }
  FakeWork copy;
  copy.to = {to + what->dstY * to_pitch + what->dstXInBytes, what->Height, what->WidthInBytes,
             to_pitch};
  copy.from = {from + what->srcY * from_pitch + what->srcXInBytes, what->Height, what->WidthInBytes,
               from_pitch};
  return Give(call, stream, std::move(copy));
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int, int priority) {
  Call call("cuStreamCreateWithPriority", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (priority > 0 || priority < -5) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE, "a priority outside of the range");
  }
  FakeState& state = State();
  *stream = reinterpret_cast<CUstream>(state.next++);
  const auto made = std::make_shared<FakeStream>();
  made->name = state.next++;
  state.streams[*stream] = made;
  std::erase_if(state.all_streams, [](const auto& weak) { return weak.expired(); });
  state.all_streams.push_back(made);
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
  Call call("cuStreamSynchronize", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  const auto it = State().streams.find(stream);
  if (it == State().streams.end()) {
    return call.Refuse(CUDA_ERROR_INVALID_HANDLE, "no such stream");
  }
  const auto all = it->second;
  const uint64_t last = all->given;
  while (!RunUntil(all.get(), last)) call.Rest();
  return State().broken;
}

// Its remaining work still runs: for its events, if there are any.
CUresult cuStreamDestroy(CUstream stream) {
  Call call("cuStreamDestroy");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  const auto it = State().streams.find(stream);
  if (it == State().streams.end()) {
    return call.Refuse(CUDA_ERROR_INVALID_HANDLE, "it is gone already, or never was");
  }
  if (it->second.use_count() == 1 && !RunUntil(it->second.get(), UINT64_MAX)) {
    return call.Refuse(CUDA_ERROR_ILLEGAL_STATE, "a kernel runs on it: who shall hear of its end?");
  }
  State().streams.erase(it);
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  Call call("cuEventCreate", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  *event = reinterpret_cast<CUevent>(State().next++);
  State().events[*event].timed = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  Call call("cuEventRecord", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  FakeState& state = State();
  const auto is = state.events.find(event);
  const auto on = state.streams.find(stream);
  if (is == state.events.end() || on == state.streams.end()) {
    return call.Refuse(CUDA_ERROR_INVALID_HANDLE, "no such event or stream");
  }
  if (on->second->graph != nullptr) {
    return call.Refuse(CUDA_ERROR_NOT_SUPPORTED, "events in graphs were not recorded");
  }
  is->second = {on->second, on->second->given, on->second->before, is->second.timed};
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int) {
  Call call("cuStreamWaitEvent", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  FakeState& state = State();
  const auto is = state.events.find(event);
  const auto on = state.streams.find(stream);
  if (is == state.events.end() || on == state.streams.end()) {
    return call.Refuse(CUDA_ERROR_INVALID_HANDLE, "no such event or stream");
  }
  const FakeEvent& waited = is->second;
  if (!Pending(waited) || waited.stream == on->second) return CUDA_SUCCESS;
  FakeWork wait;
  wait.goes_on = [from = waited.stream, number = waited.number] {
    return RunUntil(from.get(), number) ? FakeRun::kDone : FakeRun::kRunning;
  };
  const CUresult given = Give(call, stream, std::move(wait));
  if (given != CUDA_SUCCESS || on->second->graph != nullptr) return given;
  for (const auto& [name, number] : waited.before) Raise(&on->second->before, name, number);
  Raise(&on->second->before, waited.stream->name, waited.number);
  return CUDA_SUCCESS;
}

// Time is not modelled: any two events are a millisecond apart.
CUresult cuEventElapsedTime(float* milliseconds, CUevent from, CUevent to) {
  Call call("cuEventElapsedTime", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  for (const CUevent event : {from, to}) {
    const auto it = State().events.find(event);
    if (it == State().events.end() || !it->second.timed || it->second.stream == nullptr) {
      return call.Refuse(CUDA_ERROR_INVALID_HANDLE, "an event without a time, or never recorded");
    }
    if (Pending(it->second)) return CUDA_ERROR_NOT_READY;
  }
  *milliseconds = 1;
  return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  Call call("cuLaunchHostFunc", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  FakeWork work;
  work.does = [function, data] {
    function(data);
    return true;
  };
  return Give(call, stream, std::move(work));
}

CUresult cuEventQuery(CUevent event) {
  Call call("cuEventQuery", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  const auto it = State().events.find(event);
  if (it == State().events.end()) return call.Refuse(CUDA_ERROR_INVALID_HANDLE, "no such event");
  if (!Pending(it->second)) return State().broken;
  RunUntil(it->second.stream.get(), it->second.stream->done + 1);
  return CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
  Call call("cuEventSynchronize", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  const auto it = State().events.find(event);
  if (it == State().events.end()) return call.Refuse(CUDA_ERROR_INVALID_HANDLE, "no such event");
  if (Pending(it->second)) {
    const auto stream = it->second.stream;
    const uint64_t number = it->second.number;
    while (!RunUntil(stream.get(), number)) call.Rest();
  }
  return State().broken;
}

CUresult cuEventDestroy(CUevent event) {
  Call call("cuEventDestroy");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (State().events.erase(event) == 0) {
    return call.Refuse(CUDA_ERROR_INVALID_HANDLE, "it is gone already, or never was");
  }
  return CUDA_SUCCESS;
}
