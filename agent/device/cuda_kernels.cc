#include "agent/device/cuda_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "agent/device/cuda.h"
#include "agent/device/runs.h"

namespace tangram::device {
namespace {

// Hashed by a launch; an op may have more by itself. What it needs beside them is a sixteenth; of
// what must be brought together first, as much again, so that counts for more.
constexpr uint64_t kMostBytes = 256 << 20, kGathered = 8;
constexpr size_t kMostRanges = 1 << 16;
// A quarter of the multiprocessors of the GPUs that we know: decoding goes on beside.
constexpr uint32_t kMostBlocks = 32;

constexpr uint64_t kAlign = 256;
uint64_t Aligned(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

CUdeviceptr HostAddress(const void* at) { return reinterpret_cast<CUdeviceptr>(at); }

}  // namespace

// What the driver reads and writes while a batch is under way.
struct CudaKernels::Results {
  std::vector<uint64_t*> wanted;
  std::vector<uint64_t> came;                         // one for each
  std::deque<std::vector<kernels::HashRange>> lists;  // of each launch
  CudaLists strips;
};

class CudaKernels::HashEvent final : public Event::State {
 public:
  HashEvent(std::shared_ptr<const CudaEvent> event, std::unique_ptr<Results> results)
      : event_(std::move(event)), results_(std::move(results)) {}
  // Nobody may have waited, and the driver still writes.
  ~HashEvent() override { (void)event_->Wait(); }
  bool Done() const override {
    if (!event_->Done()) return false;
    (void)Wait();  // does not block any more
    return true;
  }
  Status Wait() const override {
    const std::scoped_lock lock(mu_);
    if (over_) return ended_;
    ended_ = event_->Wait();
    over_ = true;
    for (size_t i = 0; ended_.ok() && i < results_->wanted.size(); ++i) {
      *results_->wanted[i] = results_->came[i];
    }
    return ended_;
  }

 private:
  const std::shared_ptr<const CudaEvent> event_;
  const std::unique_ptr<Results> results_;
  mutable std::mutex mu_;
  mutable bool over_ = false;
  mutable Status ended_;
};

Result<std::unique_ptr<CudaKernels>> CudaKernels::Make(std::shared_ptr<CudaContext> context,
                                                       CUstream stream) {
  if (kernels::Image().empty()) return std::unique_ptr<CudaKernels>();
  std::unique_ptr<CudaKernels> out(new CudaKernels(std::move(context), stream));
  TANGRAM_RETURN_IF_ERROR(out->Load());
  return out;
}

Status CudaKernels::Load() {
  const CudaDriver& driver = context_->driver();
  const CudaContext::Entered in(*context_);
  TANGRAM_RETURN_IF_ERROR(driver.Check(driver.ModuleLoadData(&module_, kernels::Image().data()),
                                       "loading kernels for " + context_->name()));
  for (const auto& [name, function] :
       {std::pair{"hash_sums", &sums_}, {"hash_chain", &chain_}, {"copy_strips", &strips_}}) {
    TANGRAM_RETURN_IF_ERROR(driver.Check(driver.ModuleGetFunction(function, module_, name),
                                         fmt::format("kernel {}", name)));
  }
  return OkStatus();
}

CudaKernels::~CudaKernels() {
  mapped_ = Mapping();
  const CudaContext::Entered in(*context_);
  if (module_ != nullptr) (void)context_->driver().ModuleUnload(module_);
}

Status CudaKernels::Grow(uint64_t bytes) {
  if (space_ != nullptr && space_->bytes() >= bytes) return OkStatus();
  const CudaDriver& driver = context_->driver();
  TANGRAM_RETURN_IF_ERROR(driver.Check(driver.StreamSynchronize(stream_), "waiting to hash more"));
  mapped_ = Mapping();
  space_.reset();
  memory_.reset();
  const uint64_t unit = context_->granularity();
  const uint64_t whole = (bytes + unit - 1) / unit * unit;
  auto memory = CudaDevice::Make(context_, {whole, whole});
  if (!memory.ok()) return memory.status();
  auto mapped = MapWhole(**memory);
  if (!mapped.ok()) return mapped.status();
  memory_ = std::move(memory).value();
  std::tie(space_, mapped_) = std::move(mapped).value();
  return OkStatus();
}

Status CudaKernels::Launch(CUfunction kernel, const kernels::Launch& grid, const void* parameters,
                           const std::string& what) {
  const CudaDriver& driver = context_->driver();
  void* arguments[] = {const_cast<void*>(parameters)};
  return driver.Check(driver.LaunchKernel(kernel, grid.blocks, 1, 1, grid.threads, 1, 1, 0, stream_,
                                          arguments, nullptr),
                      what);
}

Status CudaKernels::PutStrips(uint64_t list, std::vector<kernels::CopyStrip> strips,
                              CudaLists* lists) {
  kernels::CopyStripsParameters parameters;
  parameters.units = kernels::NumberStrips(strips);
  parameters.strips = list;
  parameters.count = strips.size();
  const auto& kept = lists->emplace_back(
      std::make_shared<const std::vector<kernels::CopyStrip>>(std::move(strips)));
  const CudaDriver& driver = context_->driver();
  TANGRAM_RETURN_IF_ERROR(
      driver.Check(driver.MemcpyAsync(list, HostAddress(kept->data()),
                                      kept->size() * sizeof(kept->front()), stream_),
                   "the list of what is copied"));
  return Launch(strips_, kernels::CopyStripsLaunch(parameters, kMostBlocks), &parameters,
                fmt::format("a copy of {} strips", parameters.count));
}

Status CudaKernels::Copy(std::vector<kernels::CopyStrip> strips, CudaLists* lists) {
  const std::scoped_lock lock(mu_);
  const CudaContext::Entered in(*context_);
  TANGRAM_RETURN_IF_ERROR(Grow(strips.size() * sizeof(strips[0])));
  return PutStrips(space_->address(), std::move(strips), lists);
}

// In the device's memory: results, the two lists, what is brought together, scratch.
Status CudaKernels::PutHashes(std::span<const HashOp> ops, Results* results) {
  std::vector<kernels::HashRange>& list = results->lists.emplace_back();
  std::vector<kernels::CopyStrip> strips;
  uint64_t gathered = 0;  // bytes; addresses of strips count from there
  for (const HashOp& op : ops) {
    if (op.of.shape == nullptr) {
      list.push_back({.from = op.of.address, .bytes = op.of.bytes});
      continue;
    }
    list.push_back({.from = gathered, .bytes = op.of.bytes});
    EachStrip(op.of, nullptr, [&](const Strip& strip) {
      strips.push_back({.to = gathered,
                        .to_pitch = strip.bytes,
                        .from = strip.address,
                        .from_pitch = strip.pitch,
                        .bytes = strip.bytes,
                        .lines = strip.lines});
      gathered += strip.lines * strip.bytes;
    });
    gathered = Aligned(gathered);
  }
  kernels::HashParameters parameters;
  parameters.count = list.size();
  parameters.units = kernels::NumberRanges(list);
  const uint64_t lists = Aligned(list.size() * sizeof(uint64_t));
  const uint64_t strip_list = lists + Aligned(list.size() * sizeof(list[0]));
  const uint64_t gather = strip_list + Aligned(strips.size() * sizeof(kernels::CopyStrip));
  const uint64_t scratch = gather + gathered;
  TANGRAM_RETURN_IF_ERROR(
      Grow(scratch + kernels::HashScratchBytes(parameters.units, parameters.count)));
  const uint64_t base = space_->address();
  parameters.ranges = base + lists;
  parameters.scratch = base + scratch;
  for (size_t i = 0; i < list.size(); ++i) {
    list[i].hash = base + i * sizeof(uint64_t);
    if (ops[i].of.shape != nullptr) list[i].from += base + gather;
  }
  for (kernels::CopyStrip& strip : strips) strip.to += base + gather;
  if (!strips.empty()) {
    TANGRAM_RETURN_IF_ERROR(PutStrips(base + strip_list, std::move(strips), &results->strips));
  }
  const CudaDriver& driver = context_->driver();
  TANGRAM_RETURN_IF_ERROR(
      driver.Check(driver.MemcpyAsync(parameters.ranges, HostAddress(list.data()),
                                      list.size() * sizeof(list[0]), stream_),
                   "the list of what is hashed"));
  const std::string what = fmt::format("hashing {} ranges", list.size());
  TANGRAM_RETURN_IF_ERROR(
      Launch(sums_, kernels::HashSumsLaunch(parameters, kMostBlocks), &parameters, what));
  TANGRAM_RETURN_IF_ERROR(
      Launch(chain_, kernels::HashChainLaunch(parameters, kMostBlocks), &parameters, what));
  const size_t first = results->wanted.size();
  for (const HashOp& op : ops) results->wanted.push_back(op.hash);
  return driver.Check(driver.MemcpyAsync(HostAddress(&results->came[first]), base,
                                         list.size() * sizeof(uint64_t), stream_),
                      "hashes from the device");
}

Event CudaKernels::Hash(std::span<const HashOp> ops) {
  if (ops.empty()) return Event::Finished(OkStatus());
  auto results = std::make_unique<Results>();
  results->came.resize(ops.size());
  std::vector<AddressRange> uses;
  for (const HashOp& op : ops) uses.push_back(RangeOf(op.of));
  const std::scoped_lock lock(mu_);
  const CudaContext::Entered in(*context_);
  Status status;
  for (size_t begin = 0, end = 0; status.ok() && begin < ops.size(); begin = end) {
    for (uint64_t bytes = 0; end < ops.size() && end - begin < kMostRanges; ++end) {
      bytes += ops[end].of.bytes * (ops[end].of.shape != nullptr ? kGathered : 1);
      if (bytes > kMostBytes && end > begin) break;
    }
    status = PutHashes(ops.subspan(begin, end - begin), results.get());
  }
  if (status.ok()) {
    auto event = CudaEvent::Record(context_, stream_);
    if (event.ok()) {
      context_->work().Add(stream_, std::move(uses), *event);
      return Event(std::make_shared<const HashEvent>(std::move(event).value(), std::move(results)));
    }
    status = event.status();
  }
  // Part of it may be under way, and would write to what goes now.
  (void)context_->driver().StreamSynchronize(stream_);
  return Event::Finished(std::move(status));
}

}  // namespace tangram::device
