// The recording driver: handles, reservations, mappings, access.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "agent/device/testing/fake_cuda_state.h"

namespace tangram::device::testing {

std::shared_ptr<Physical> Physical::Of(UniqueFd memory, size_t bytes) {
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  struct stat info {};
  if (base == MAP_FAILED) return nullptr;
  std::shared_ptr<Physical> out(new Physical);
  out->base_ = static_cast<std::byte*>(base);
  out->bytes_ = bytes;
  if (fstat(memory.get(), &info) == 0) out->identity_ = info.st_ino;
  out->memory_ = std::move(memory);
  return out;
}

std::shared_ptr<Physical> Physical::Make(size_t bytes) {
  FakeState& state = State();
  if (bytes > state.total_bytes() - state.used_bytes) return nullptr;
  UniqueFd memory(memfd_create("fake-cuda", MFD_CLOEXEC));
  if (!memory || ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) return nullptr;
  auto out = Of(std::move(memory), bytes);
  if (out == nullptr) return nullptr;
  state.used_bytes += bytes;
  out->counted_ = true;
  return out;
}

std::shared_ptr<Physical> Physical::Import(UniqueFd memory, size_t bytes) {
  return Of(std::move(memory), bytes);
}

Physical::~Physical() {
  if (base_ != nullptr) munmap(base_, bytes_);
  if (counted_) State().used_bytes -= bytes_;
}

namespace {

bool InUnits(uint64_t a, uint64_t b = 0) {
  const uint64_t unit = State().granularity();
  return a % unit == 0 && b % unit == 0;
}

// The reason why this device cannot create memory with these properties; empty: it can.
std::string WrongWith(const CUmemAllocationProp& prop) {
  if (prop.type != CU_MEM_ALLOCATION_TYPE_PINNED) return "memory that is not pinned";
  if (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return "memory of no device";
  if (prop.location.id < 0 || prop.location.id >= State().machine.devices) return "no such device";
  if (prop.requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
      prop.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    return "a kind of handle that was not recorded";
  }
  return "";
}

}  // namespace

bool InUse(uint64_t begin, uint64_t end) {
  if (State().broken != CUDA_SUCCESS) return false;  // no work runs any more
  for (const auto& weak : State().all_streams) {
    const auto stream = weak.lock();
    if (stream == nullptr) continue;
    for (const FakeWork& copy : stream->work) {
      if (copy.to.Touches(begin, end) || copy.from.Touches(begin, end)) return true;
    }
  }
  return false;
}

uint64_t ReserveAddresses(uint64_t bytes, uint64_t alignment) {
  const uint64_t granularity = State().granularity();
  const uint64_t size = (bytes + granularity - 1) / granularity * granularity;
  const uint64_t unit = std::max(alignment, granularity);
  void* const at =
      mmap(nullptr, size + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return 0;
  // Frees both ends immediately, so that the address alone identifies the reservation.
  const auto begin = reinterpret_cast<uint64_t>(at), start = (begin + unit - 1) / unit * unit;
  if (start > begin) munmap(at, start - begin);
  if (begin + unit > start) munmap(reinterpret_cast<void*>(start + size), begin + unit - start);
  State().reservations[start] = size;
  return start;
}

void FreeAddresses(uint64_t address) {
  const auto it = State().reservations.find(address);
  munmap(reinterpret_cast<void*>(address), it->second);
  State().reservations.erase(it);
}

}  // namespace tangram::device::testing

using namespace tangram::device::testing;

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  Call call("cuMemGetInfo", Call::kContext);
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  *total = State().total_bytes();
  *free = *total - State().used_bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags) {
  Call call("cuMemGetAllocationGranularity");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (const std::string wrong = WrongWith(*prop); !wrong.empty()) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE, wrong);
  }
  *granularity = State().granularity();
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  Call call("cuMemCreate");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (const std::string wrong = WrongWith(*prop); !wrong.empty()) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE, wrong);
  }
  if (flags != 0 || size == 0 || !InUnits(size)) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE,
                       fmt::format("{} bytes are no units of the granularity, or flags", size));
  }
  auto physical = Physical::Make(size);
  if (physical == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = State().next++;
  State().handles[*handle] = std::move(physical);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  Call call("cuMemRelease");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (State().handles.erase(handle) == 0) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE,
                       fmt::format("handle {} is released already, or never was", handle));
  }
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
  Call call("cuMemAddressReserve");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  const bool power = (alignment & (alignment - 1)) == 0;
  if (flags != 0 || size == 0 || !InUnits(size) || !power) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE,
                       fmt::format("{} bytes aligned to {} are no units", size, alignment));
  }
  *address = ReserveAddresses(size, alignment);
  return *address != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  Call call("cuMemAddressFree");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  FakeState& state = State();
  const auto it = state.reservations.find(address);
  if (it == state.reservations.end() || it->second != size || state.buffers.contains(address)) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE, "these addresses are no whole reservation");
  }
  const auto first = state.mappings.lower_bound(address);
  if (first != state.mappings.end() && first->first < address + size) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE, "something is mapped there");
  }
  FreeAddresses(address);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  Call call("cuMemMap");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  FakeState& state = State();
  const auto refuse = [&](const std::string& why) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE,
                       fmt::format("{} bytes of handle {}: {}", size, handle, why));
  };
  const auto it = state.handles.find(handle);
  if (it == state.handles.end()) return refuse("there is no such handle");
  if (flags != 0 || offset != 0) return refuse("flags and the offset must be 0");
  if (size == 0 || !InUnits(address, size)) return refuse("no units of the granularity");
  if (size > it->second->bytes()) return refuse("it has fewer");
  if (!state.Reserved(address, size)) return refuse("these addresses are not reserved");
  const auto next = state.mappings.lower_bound(address);
  if (state.Find(address) != state.mappings.end() ||
      (next != state.mappings.end() && next->first < address + size)) {
    return refuse("something is mapped there");
  }
  state.mappings[address] = {size, it->second, CU_MEM_ACCESS_FLAGS_PROT_NONE};
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  Call call("cuMemUnmap");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  FakeState& state = State();
  const auto it = state.mappings.find(address);
  if (it == state.mappings.end() || it->second.bytes != size || state.buffers.contains(address)) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE,
                       fmt::format("{} bytes that are not one whole mapping", size));
  }
  if (InUse(address, address + size)) {
    return call.Refuse(CUDA_ERROR_ILLEGAL_STATE, "a copy that did not run yet uses it");
  }
  state.mappings.erase(it);
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* desc,
                        size_t count) {
  Call call("cuMemSetAccess");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  FakeState& state = State();
  if (count != 1 || desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE || desc->location.id != 0) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE, "access of the one device is what was recorded");
  }
  std::vector<FakeMapping*> all;
  uint64_t at = address;
  while (at < address + size) {
    const auto it = state.mappings.find(at);
    if (it == state.mappings.end() || it->second.bytes > address + size - at ||
        state.buffers.contains(at)) {
      return call.Refuse(CUDA_ERROR_INVALID_VALUE,
                         fmt::format("{} bytes that are not whole mappings side by side", size));
    }
    all.push_back(&it->second);
    at += it->second.bytes;
  }
  for (FakeMapping* mapping : all) mapping->access = desc->flags;
  return CUDA_SUCCESS;
}
