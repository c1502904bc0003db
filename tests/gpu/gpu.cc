#include "tests/gpu/gpu.h"

#include <fmt/format.h>

#include <cstdlib>

namespace tangram::gpu {

uint64_t RoundUp(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

Gpu::Gpu(const std::string& library) {
  // Loads code with its module: a launch that loads code would wait for streams behind a gate, and
  // cannot be captured.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  auto context = device::CudaContext::Open(library, 0);
  if (!context.ok()) throw Lacks(context.status().message());
  context_ = std::move(context).value();
  auto more = MoreDriver::Load(library);
  if (!more.ok()) throw Lacks(more.status().message());
  more_ = *more;
  entered_.emplace(*context_);
  Check(driver().DeviceGet(&device_, 0), "the device");
  Check(driver().StreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0), "a stream");
}

Gpu::~Gpu() {
  if (stream_ == nullptr) return;
  (void)driver().StreamSynchronize(stream_);
  (void)driver().StreamDestroy(stream_);
}

int Gpu::Attribute(CUdevice_attribute attribute) const {
  int out = 0;
  Check(driver().DeviceGetAttribute(&out, attribute, device_),
        fmt::format("attribute {} of the device", static_cast<int>(attribute)));
  return out;
}

uint32_t Gpu::sms() const {
  return static_cast<uint32_t>(Attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
}

uint64_t Gpu::free_bytes() const {
  size_t free = 0, total = 0;
  Check(driver().MemGetInfo(&free, &total), "how much memory is free");
  return free;
}

void Gpu::Check(CUresult result, const std::string& what) const {
  if (result != CUDA_SUCCESS) throw Failed(driver().Check(result, what).message());
}

void Gpu::Wait(CUstream stream) const {
  Check(driver().StreamSynchronize(stream), "waiting for a stream");
}

Stream::Stream(const Gpu& gpu) : gpu_(gpu) {
  gpu.Check(gpu.driver().StreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0), "a stream");
}
Stream::~Stream() {
  (void)gpu_.driver().StreamSynchronize(stream_);
  (void)gpu_.driver().StreamDestroy(stream_);
}

Event::Event(const Gpu& gpu) : gpu_(gpu) {
  gpu.Check(gpu.driver().EventCreate(&event_, CU_EVENT_DEFAULT), "an event");
}
Event::~Event() { (void)gpu_.driver().EventDestroy(event_); }
void Event::Record(CUstream stream) const {
  gpu_.Check(gpu_.driver().EventRecord(event_, stream), "recording an event");
}
void Event::HoldUp(CUstream stream) const {
  gpu_.Check(gpu_.more().StreamWaitEvent(stream, event_, 0), "a stream that waits for an event");
}
bool Event::Done() const {
  const CUresult result = gpu_.driver().EventQuery(event_);
  if (result != CUDA_ERROR_NOT_READY) gpu_.Check(result, "looking at an event");
  return result == CUDA_SUCCESS;
}
void Event::Wait() const {
  gpu_.Check(gpu_.driver().EventSynchronize(event_), "waiting for an event");
}
double Event::SecondsSince(const Event& earlier) const {
  float milliseconds = 0;
  gpu_.Check(gpu_.more().EventElapsedTime(&milliseconds, earlier.event_, event_),
             "the time between two events");
  return milliseconds * 1e-3;
}

Handle::Handle(const Gpu& gpu, uint64_t bytes) : gpu_(gpu), bytes_(bytes) {
  const CUmemAllocationProp properties = gpu.properties();
  gpu.Check(gpu.driver().MemCreate(&handle_, bytes, &properties, 0),
            fmt::format("a handle of {} bytes ({} are free)", bytes, gpu.free_bytes()));
}
Handle::~Handle() { (void)gpu_.driver().MemRelease(handle_); }

Range::Range(const Gpu& gpu, uint64_t bytes) : gpu_(gpu), bytes_(bytes) {
  gpu.Check(gpu.driver().MemAddressReserve(&address_, bytes, 0, 0, 0),
            fmt::format("addresses for {} bytes", bytes));
}
Range::~Range() { (void)gpu_.driver().MemAddressFree(address_, bytes_); }

void Allow(const Gpu& gpu, uint64_t address, uint64_t bytes, CUmemAccess_flags access) {
  CUmemAccessDesc desc{};
  desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  desc.location.id = gpu.device();
  desc.flags = access;
  gpu.Check(gpu.driver().MemSetAccess(address, bytes, &desc, 1),
            fmt::format("access to {} bytes", bytes));
}

void Map(const Gpu& gpu, uint64_t address, const Handle& handle, CUmemAccess_flags access) {
  gpu.Check(gpu.driver().MemMap(address, handle.bytes(), 0, handle.get(), 0),
            fmt::format("mapping a handle of {} bytes", handle.bytes()));
  Allow(gpu, address, handle.bytes(), access);
}

void Unmap(const Gpu& gpu, uint64_t address, uint64_t bytes) {
  gpu.Check(gpu.driver().MemUnmap(address, bytes), fmt::format("unmapping {} bytes", bytes));
}

Buffer::Buffer(const Gpu& gpu, uint64_t bytes)
    : gpu_(gpu),
      handle_(gpu, RoundUp(bytes, gpu.granularity())),
      range_(gpu, RoundUp(bytes, gpu.granularity())) {
  Map(gpu, address(), handle_);
}
Buffer::~Buffer() { (void)gpu_.driver().MemUnmap(address(), bytes()); }

void Copy(const Gpu& gpu, uint64_t to, uint64_t from, uint64_t bytes, CUstream stream) {
  gpu.Check(gpu.driver().MemcpyAsync(to, from, bytes, stream),
            fmt::format("a copy of {} bytes", bytes));
}

void Upload(const Gpu& gpu, uint64_t to, std::span<const std::byte> from) {
  if (from.empty()) return;
  Copy(gpu, to, reinterpret_cast<uint64_t>(from.data()), from.size(), gpu.stream());
  gpu.Wait();
}

std::vector<std::byte> Download(const Gpu& gpu, uint64_t from, uint64_t bytes) {
  std::vector<std::byte> out(bytes);
  if (bytes == 0) return out;
  Copy(gpu, reinterpret_cast<uint64_t>(out.data()), from, bytes, gpu.stream());
  gpu.Wait();
  return out;
}

}  // namespace tangram::gpu
