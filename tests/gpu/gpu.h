// The checked GPU: the backend's context and driver, with errors as exceptions, because no act
// continues after one. Streams, events and memory are freed with their objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "agent/device/cuda_context.h"
#include "tests/gpu/driver.h"

namespace tangram::gpu {

// An act cannot continue; the reason in one line.
struct Failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// The machine lacks a requirement of the act; named in one line.
struct Lacks : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One per process, used by one thread, in whose context it is.
class Gpu {
 public:
  // Opens device 0 of the devices visible to the process. Throws Lacks.
  explicit Gpu(const std::string& library);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const device::CudaDriver& driver() const { return context_->driver(); }
  const MoreDriver& more() const { return more_; }
  const std::string& name() const { return context_->name(); }
  uint64_t granularity() const { return context_->granularity(); }
  CUmemAllocationProp properties() const { return context_->properties(); }
  CUdevice device() const { return device_; }
  int Attribute(CUdevice_attribute attribute) const;
  // Number of multiprocessors.
  uint32_t sms() const;
  uint64_t free_bytes() const;

  // Throws Failed with the attempted action.
  void Check(CUresult result, const std::string& what) const;
  // The stream of work that is not timed.
  CUstream stream() const { return stream_; }
  void Wait() const { Wait(stream_); }
  void Wait(CUstream stream) const;

 private:
  std::shared_ptr<device::CudaContext> context_;
  std::optional<device::CudaContext::Entered> entered_;
  MoreDriver more_;
  CUdevice device_ = 0;
  CUstream stream_ = nullptr;
};

class Stream {
 public:
  explicit Stream(const Gpu& gpu);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator CUstream() const { return stream_; }

 private:
  const Gpu& gpu_;
  CUstream stream_ = nullptr;
};

class Event {
 public:
  explicit Event(const Gpu& gpu);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void Record(CUstream stream) const;
  // Later work on the stream waits for the recorded work.
  void HoldUp(CUstream stream) const;
  void Wait() const;
  bool Done() const;
  double SecondsSince(const Event& earlier) const;

 private:
  const Gpu& gpu_;
  CUevent event_ = nullptr;
};

// Physical memory, allocated like the backend's: a handle that may be exported.
class Handle {
 public:
  Handle(const Gpu& gpu, uint64_t bytes);
  Handle(const Gpu& gpu, CUmemGenericAllocationHandle handle, uint64_t bytes)
      : gpu_(gpu), handle_(handle), bytes_(bytes) {}
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  CUmemGenericAllocationHandle get() const { return handle_; }
  uint64_t bytes() const { return bytes_; }

 private:
  const Gpu& gpu_;
  CUmemGenericAllocationHandle handle_ = 0;
  const uint64_t bytes_;
};

// Reserved addresses. Mappings in it must end before it is destroyed.
class Range {
 public:
  Range(const Gpu& gpu, uint64_t bytes);
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

 private:
  const Gpu& gpu_;
  const uint64_t bytes_;
  CUdeviceptr address_ = 0;
};

// Maps a whole handle and gives access; unmaps it.
void Map(const Gpu& gpu, uint64_t address, const Handle& handle,
         CUmemAccess_flags access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
void Allow(const Gpu& gpu, uint64_t address, uint64_t bytes, CUmemAccess_flags access);
void Unmap(const Gpu& gpu, uint64_t address, uint64_t bytes);

// Memory with its own address.
class Buffer {
 public:
  Buffer(const Gpu& gpu, uint64_t bytes);  // rounded up to the driver's granularity
  ~Buffer();
  uint64_t address() const { return range_.address(); }
  uint64_t bytes() const { return handle_.bytes(); }

 private:
  const Gpu& gpu_;
  const Handle handle_;
  const Range range_;
};
using Buffers = std::vector<std::unique_ptr<Buffer>>;

uint64_t RoundUp(uint64_t bytes, uint64_t unit);

// Copies between host and device, and on the device; complete at return, except Copy.
void Upload(const Gpu& gpu, uint64_t to, std::span<const std::byte> from);
std::vector<std::byte> Download(const Gpu& gpu, uint64_t from, uint64_t bytes);
void Copy(const Gpu& gpu, uint64_t to, uint64_t from, uint64_t bytes, CUstream stream);

// Copies a list to memory of the device.
template <typename T>
std::unique_ptr<Buffer> UploadList(const Gpu& gpu, const std::vector<T>& items) {
  auto out = std::make_unique<Buffer>(gpu, items.size() * sizeof(T) + 1);
  Upload(gpu, out->address(), std::as_bytes(std::span(items)));
  return out;
}

}  // namespace tangram::gpu
