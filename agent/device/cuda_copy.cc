#include "agent/device/cuda_copy.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "agent/device/hash.h"
#include "agent/device/runs.h"

namespace tangram::device {
namespace {

// Bytes hashed at a time; the buffer's size.
constexpr uint64_t kHashed = 8 << 20;

// The process's own memory, or a device's memory that the CPU reaches.
bool OfHost(const Memory& memory) {
  if (memory.device == nullptr) return true;
  return !memory.device->ViewOf({memory.device, memory.address, 1}).empty();
}

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
  const auto launching = out->context_->ForLaunches();
  if (!launching.ok()) return launching.status();
  out->launching_ = *launching;
  return out;
}

CudaStream::~CudaStream() {
  const CudaContext::Entered in(*context_);
  const CudaDriver& driver = context_->driver();
  (void)driver.StreamSynchronize(stream_);
  context_->work().Forget(stream_);
  (void)driver.StreamDestroy(stream_);
}

Status CudaStream::PutStrip(const CopyOp& op, const Strip& to, const Strip& from,
                            std::vector<Run>* runs) {
  const CudaDriver& driver = context_->driver();
  const auto in_order = [](const Strip& s) { return s.lines == 1 || s.pitch == s.bytes; };
  if (in_order(to) && in_order(from)) {
    const Run run{to.address, from.address, to.lines * to.bytes};
    Run* const last = runs->empty() ? nullptr : &runs->back();
    if (last != nullptr && last->to + last->bytes == run.to &&
        last->from + last->bytes == run.from) {
      last->bytes += run.bytes;
    } else if (run.bytes > 0) {
      runs->push_back(run);
    }
    return OkStatus();
  }
  CUDA_MEMCPY2D copy{};
  copy.WidthInBytes = to.bytes;
  copy.Height = to.lines;
  copy.dstPitch = to.pitch;
  copy.srcPitch = from.pitch;
  // Explicit, so the driver need not guess the type of a heap address.
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

Status CudaStream::PutRuns(Batch* batch) {
  const CudaDriver& driver = context_->driver();
  for (const Run& run : std::exchange(batch->runs, {})) {
    TANGRAM_RETURN_IF_ERROR(driver.Check(driver.MemcpyAsync(run.to, run.from, run.bytes, stream_),
                                         fmt::format("a copy of {} bytes", run.bytes)));
  }
  return OkStatus();
}

Status CudaStream::Put(const CopyOp& op, std::vector<Run>* runs) {
  Status status;
  EachPair(op.to, op.from, [&](const Strip& to, const Strip& from) {
    if (status.ok()) status = PutStrip(op, to, from, runs);
  });
  return status;
}

Status CudaStream::AddHash(const Memory& memory, uint64_t* hash, Batch* batch) {
  if (OfHost(memory)) {
    batch->of_host.push_back({memory, hash});
    return OkStatus();
  }
  if (!HasKernels()) {
    TANGRAM_RETURN_IF_ERROR(PutRuns(batch));
    return HashByHost(memory, hash);
  }
  TANGRAM_RETURN_IF_ERROR(MakeRoom(memory, memory, batch));
  batch->uses.push_back(RangeOf(memory));
  batch->part.Hash(memory, hash);
  return OkStatus();
}

Status CudaStream::Add(const CopyOp& op, Batch* batch) {
  const bool to_host = OfHost(op.to), from_host = OfHost(op.from);
  const bool strips = op.to.shape != nullptr || op.from.shape != nullptr;
  for (const Memory* memory : {&op.to, &op.from}) {
    if (!OfHost(*memory)) batch->uses.push_back(RangeOf(*memory));
  }
  const auto range = [](const Memory& memory) { return memory.shape == nullptr; };
  if (!HasKernels() || (to_host && from_host)) {
    TANGRAM_RETURN_IF_ERROR(Put(op, &batch->runs));
  } else if (!to_host && !from_host && (strips || op.hash != nullptr)) {
    TANGRAM_RETURN_IF_ERROR(MakeRoom(op.to, op.from, batch));
    batch->part.Copy({op.to, op.from, strips ? nullptr : op.hash});
    if (!strips) return OkStatus();
  } else if (strips && !to_host && range(op.from)) {
    TANGRAM_RETURN_IF_ERROR(MakeRoom(op.to, op.from, batch));
    batch->part.FromHost(op);
    return OkStatus();
  } else if (strips && !from_host && range(op.to)) {
    TANGRAM_RETURN_IF_ERROR(MakeRoom(op.to, op.from, batch));
    batch->part.ToHost(op);
  } else {
    TANGRAM_RETURN_IF_ERROR(Put(op, &batch->runs));
  }
  return op.hash == nullptr ? OkStatus() : AddHash(op.to, op.hash, batch);
}

Status CudaStream::MakeRoom(const Memory& to, const Memory& from, Batch* batch) {
  const uint64_t bytes = batch->part.bytes() + CudaBatch::MostBytes(to, from);
  const uint64_t mirrored = batch->part.mirrored() + CudaBatch::MostMirrored(to, from);
  const bool fits = bytes <= CudaScratch::kBytes && mirrored <= CudaScratch::kMirrored;
  return fits || batch->part.empty() ? OkStatus() : Launch(batch);
}

Status CudaStream::Launch(Batch* batch) {
  // First, because the bytes to hash may come from these copies.
  TANGRAM_RETURN_IF_ERROR(PutRuns(batch));
  auto scratch = launching_.scratch->Take(batch->part.bytes(), batch->part.mirrored());
  if (scratch.status().code() == Code::kNoMemory) {
    return {Code::kNoMemory, fmt::format("{}; {}", scratch.status().message(), context_->Room())};
  }
  if (!scratch.ok()) return scratch.status();
  auto answer = batch->part.Put(context_->driver(), *launching_.kernels, *scratch, stream_);
  const Status status = answer.ok() ? scratch->Until(stream_, *answer) : answer.status();
  if (!status.ok()) {
    // Another batch gets the slot when this returns.
    (void)context_->driver().StreamSynchronize(stream_);
    return status;
  }
  if (*answer != nullptr) batch->answers.push_back(*answer);
  return OkStatus();
}

Event CudaStream::End(Status status, Batch batch) {
  if (status.ok()) status = batch.part.empty() ? PutRuns(&batch) : Launch(&batch);
  if (status.ok()) {
    auto event = CudaEvent::Record(context_, stream_);
    if (event.ok()) {
      context_->work().Add(stream_, std::move(batch.uses), *event);
      if (batch.answers.empty() && batch.of_host.empty()) return Event(std::move(event).value());
      return Event(std::make_shared<const CudaHashed>(
          std::move(event).value(), std::move(batch.answers), std::move(batch.of_host)));
    }
    status = event.status();
  }
  // Part of the batch may be running, and nothing else would report its end.
  (void)context_->driver().StreamSynchronize(stream_);
  return Event::Finished(std::move(status));
}

Event CudaStream::Copy(std::span<const CopyOp> ops) {
  const CudaContext::Entered in(*context_);
  Batch batch;
  Status status;
  for (size_t i = 0; i < ops.size() && status.ok(); ++i) status = Add(ops[i], &batch);
  return End(std::move(status), std::move(batch));
}

Event CudaStream::Hash(std::span<const HashOp> ops) {
  const CudaContext::Entered in(*context_);
  Batch batch;
  Status status;
  for (size_t i = 0; i < ops.size() && status.ok(); ++i) {
    status = AddHash(ops[i].of, ops[i].hash, &batch);
  }
  return End(std::move(status), std::move(batch));
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
