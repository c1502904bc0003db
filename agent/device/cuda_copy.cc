#include "agent/device/cuda_copy.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "agent/device/hash.h"
#include "agent/device/runs.h"

namespace tangram::device {
namespace {

// What is hashed at once; the buffer's size.
constexpr uint64_t kHashed = 8 << 20;

// The process's own memory, or a device's that the CPU reaches.
bool OfHost(const Memory& memory) {
  if (memory.device == nullptr) return true;
  return !memory.device->ViewOf({memory.device, memory.address, 1}).empty();
}

// The end of copies, with the lists that the driver reads until then.
class CopyEvent final : public Event::State {
 public:
  CopyEvent(std::shared_ptr<const CudaEvent> event, CudaLists lists)
      : event_(std::move(event)), lists_(std::move(lists)) {}
  ~CopyEvent() override { (void)event_->Wait(); }
  bool Done() const override { return event_->Done(); }
  Status Wait() const override { return event_->Wait(); }

 private:
  const std::shared_ptr<const CudaEvent> event_;
  const CudaLists lists_;
};

}  // namespace

Status CheckCopies(std::span<const CopyOp> ops) {
  for (const CopyOp& op : ops) {
    const bool shapes = op.to.shape != nullptr && op.from.shape != nullptr;
    if (op.to.bytes == op.from.bytes && (!shapes || SamePlanes(*op.to.shape, *op.from.shape))) {
      continue;
    }
    return {Code::kInvalid, fmt::format("cuda device: copy of {} bytes to {}, or of units to units "
                                        "of another shape",
                                        op.from.bytes, op.to.bytes)};
  }
  return OkStatus();
}

Result<std::unique_ptr<CudaStream>> CudaStream::Make(std::shared_ptr<CudaContext> context) {
  const CudaDriver& driver = context->driver();
  const CudaContext::Entered in(*context);
  int least = 0, greatest = 0;
  TANGRAM_RETURN_IF_ERROR(
      driver.Check(driver.CtxGetStreamPriorityRange(&least, &greatest), "priorities of streams"));
  CUstream stream = nullptr;
  TANGRAM_RETURN_IF_ERROR(driver.Check(
      driver.StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, least), "a stream"));
  auto out = std::make_unique<CudaStream>(std::move(context), stream);
  auto kernels = CudaKernels::Make(out->context_, stream);
  if (!kernels.ok()) return kernels.status();
  out->kernels_ = std::move(kernels).value();
  return out;
}

CudaStream::~CudaStream() {
  const CudaContext::Entered in(*context_);
  const CudaDriver& driver = context_->driver();
  (void)driver.StreamSynchronize(stream_);
  kernels_.reset();
  context_->work().Forget(stream_);
  (void)driver.StreamDestroy(stream_);
}

Status CudaStream::PutStrip(const CopyOp& op, const Strip& to, const Strip& from,
                            std::vector<kernels::CopyStrip>* apart) {
  const CudaDriver& driver = context_->driver();
  const auto in_order = [](const Strip& s) { return s.lines == 1 || s.pitch == s.bytes; };
  if (in_order(to) && in_order(from)) {
    const uint64_t bytes = to.lines * to.bytes;
    return driver.Check(driver.MemcpyAsync(to.address, from.address, bytes, stream_),
                        fmt::format("a copy of {} bytes", bytes));
  }
  if (kernels_ != nullptr && !OfHost(op.to) && !OfHost(op.from)) {
    apart->push_back({.to = to.address,
                      .to_pitch = to.pitch,
                      .from = from.address,
                      .from_pitch = from.pitch,
                      .bytes = to.bytes,
                      .lines = to.lines});
    return OkStatus();
  }
  CUDA_MEMCPY2D copy{};
  copy.WidthInBytes = to.bytes;
  copy.Height = to.lines;
  copy.dstPitch = to.pitch;
  copy.srcPitch = from.pitch;
  // The driver is not left to guess what an address of the heap is.
  if (OfHost(op.to)) {
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = reinterpret_cast<void*>(to.address);
  } else {
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = to.address;
  }
  if (OfHost(op.from)) {
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = reinterpret_cast<const void*>(from.address);
  } else {
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = from.address;
  }
  return driver.Check(driver.Memcpy2DAsync(&copy, stream_),
                      fmt::format("a copy of {} lines of {} bytes", to.lines, to.bytes));
}

Status CudaStream::Put(const CopyOp& op, std::vector<kernels::CopyStrip>* apart) {
  Status status;
  EachPair(op.to, op.from, [&](const Strip& to, const Strip& from) {
    if (status.ok()) status = PutStrip(op, to, from, apart);
  });
  return status;
}

Event CudaStream::Copy(std::span<const CopyOp> ops) {
  const CudaContext::Entered in(*context_);
  std::vector<AddressRange> uses;
  std::vector<kernels::CopyStrip> apart;
  CudaLists lists;
  Status status;
  for (const CopyOp& op : ops) {
    for (const Memory* memory : {&op.to, &op.from}) {
      if (!OfHost(*memory)) uses.push_back(RangeOf(*memory));
    }
    status = Put(op, &apart);
    if (!status.ok()) break;
  }
  if (status.ok() && !apart.empty()) status = kernels_->Copy(std::move(apart), &lists);
  if (status.ok()) {
    auto event = CudaEvent::Record(context_, stream_);
    if (event.ok()) {
      context_->work().Add(stream_, std::move(uses), *event);
      if (lists.empty()) return Event(std::move(event).value());
      return Event(std::make_shared<const CopyEvent>(std::move(event).value(), std::move(lists)));
    }
    status = event.status();
  }
  // Part of the batch may be on its way, and nothing else would tell when it is over.
  (void)context_->driver().StreamSynchronize(stream_);
  return Event::Finished(std::move(status));
}

Event CudaStream::Hash(std::span<const HashOp> ops) {
  std::vector<HashOp> here;
  for (const HashOp& op : ops) {
    if (kernels_ != nullptr && !OfHost(op.of)) {
      here.push_back(op);
    } else if (Status status = HashByHost(op.of, op.hash); !status.ok()) {
      return Event::Finished(std::move(status));
    }
  }
  return kernels_ != nullptr ? kernels_->Hash(here) : Event::Finished(OkStatus());
}

Status CudaStream::HashByHost(const Memory& memory, uint64_t* hash) {
  const uint64_t unit = memory.shape != nullptr ? memory.shape->unit_bytes() : 1;
  const uint64_t step = std::max<uint64_t>(1, kHashed / unit) * unit;
  std::vector<std::byte> buffer(std::min(step, memory.bytes));
  Hasher hasher;
  for (uint64_t at = 0; at < memory.bytes; at += step) {
    const auto part = std::span(buffer).first(std::min(step, memory.bytes - at));
    const CopyOp op{Memory::Own(part), memory.Part(at, part.size())};
    TANGRAM_RETURN_IF_ERROR(Copy({&op, 1}).Wait());
    hasher.Add(part);
  }
  *hash = hasher.Value();
  return OkStatus();
}

}  // namespace tangram::device
