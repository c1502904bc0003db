#include "agent/device/cuda_hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "agent/device/cuda.h"
#include "kernels/kernels.h"

namespace tangram::device {
namespace {

// Of a launch; a range may have more by itself. What it needs beside them is a sixteenth.
constexpr uint64_t kMostBytes = 256 << 20;
constexpr size_t kMostRanges = 1 << 16;
// A quarter of the multiprocessors of the GPUs that we know: decoding goes on beside.
constexpr uint32_t kMostBlocks = 32;

constexpr uint64_t kAlign = 256;
uint64_t Aligned(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

// What the driver reads and writes while a batch is under way.
struct CudaHasher::Results {
  std::vector<uint64_t*> wanted;
  std::vector<uint64_t> came;                         // one for each
  std::deque<std::vector<kernels::HashRange>> lists;  // of each launch
};

class CudaHasher::HashEvent final : public Event::State {
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

Result<std::unique_ptr<CudaHasher>> CudaHasher::Make(std::shared_ptr<CudaContext> context,
                                                     CUstream stream) {
  if (kernels::Image().empty()) return std::unique_ptr<CudaHasher>();
  std::unique_ptr<CudaHasher> out(new CudaHasher(std::move(context), stream));
  TANGRAM_RETURN_IF_ERROR(out->Load());
  return out;
}

Status CudaHasher::Load() {
  const CudaDriver& driver = context_->driver();
  const CudaContext::Entered in(*context_);
  TANGRAM_RETURN_IF_ERROR(driver.Check(driver.ModuleLoadData(&module_, kernels::Image().data()),
                                       "loading kernels for " + context_->name()));
  TANGRAM_RETURN_IF_ERROR(
      driver.Check(driver.ModuleGetFunction(&sums_, module_, "hash_sums"), "kernel hash_sums"));
  return driver.Check(driver.ModuleGetFunction(&chain_, module_, "hash_chain"),
                      "kernel hash_chain");
}

CudaHasher::~CudaHasher() {
  mapped_ = Mapping();
  const CudaContext::Entered in(*context_);
  if (module_ != nullptr) (void)context_->driver().ModuleUnload(module_);
}

Status CudaHasher::Grow(uint64_t bytes) {
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

Status CudaHasher::Put(std::span<const HashOp> ops, Results* results) {
  std::vector<kernels::HashRange>& list = results->lists.emplace_back();
  for (const HashOp& op : ops) list.push_back({.from = op.of.address, .bytes = op.of.bytes});
  kernels::HashParameters parameters;
  parameters.count = list.size();
  parameters.units = kernels::NumberRanges(list);
  const uint64_t hashes = Aligned(list.size() * sizeof(uint64_t));
  const uint64_t lists = Aligned(list.size() * sizeof(list[0]));
  TANGRAM_RETURN_IF_ERROR(
      Grow(hashes + lists + kernels::HashScratchBytes(parameters.units, parameters.count)));
  const uint64_t base = space_->address();
  parameters.ranges = base + hashes;
  parameters.scratch = base + hashes + lists;
  for (size_t i = 0; i < list.size(); ++i) list[i].hash = base + i * sizeof(uint64_t);

  const CudaDriver& driver = context_->driver();
  const auto launch = [&](CUfunction kernel, const kernels::Launch& grid) {
    void* arguments[] = {&parameters};
    return driver.Check(driver.LaunchKernel(kernel, grid.blocks, 1, 1, grid.threads, 1, 1, 0,
                                            stream_, arguments, nullptr),
                        fmt::format("hashing {} ranges", list.size()));
  };
  const auto host = [](const void* at) { return reinterpret_cast<CUdeviceptr>(at); };
  TANGRAM_RETURN_IF_ERROR(driver.Check(driver.MemcpyAsync(parameters.ranges, host(list.data()),
                                                          list.size() * sizeof(list[0]), stream_),
                                       "the list of what is hashed"));
  TANGRAM_RETURN_IF_ERROR(launch(sums_, kernels::HashSumsLaunch(parameters, kMostBlocks)));
  TANGRAM_RETURN_IF_ERROR(launch(chain_, kernels::HashChainLaunch(parameters, kMostBlocks)));
  const size_t first = results->wanted.size();
  for (const HashOp& op : ops) results->wanted.push_back(op.hash);
  return driver.Check(driver.MemcpyAsync(host(&results->came[first]), base,
                                         list.size() * sizeof(uint64_t), stream_),
                      "hashes from the device");
}

Event CudaHasher::Hash(std::span<const HashOp> ops) {
  if (ops.empty()) return Event::Finished(OkStatus());
  auto results = std::make_unique<Results>();
  results->came.resize(ops.size());
  std::vector<AddressRange> uses;
  for (const HashOp& op : ops) uses.push_back({op.of.address, op.of.address + op.of.bytes});
  const std::scoped_lock lock(mu_);
  const CudaContext::Entered in(*context_);
  Status status;
  for (size_t begin = 0, end = 0; status.ok() && begin < ops.size(); begin = end) {
    for (uint64_t bytes = 0; end < ops.size() && end - begin < kMostRanges; ++end) {
      bytes += ops[end].of.bytes;
      if (bytes > kMostBytes && end > begin) break;
    }
    status = Put(ops.subspan(begin, end - begin), results.get());
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
