// Memory that one process passes to another, like an agent to its engine. The other process reads
// it, is killed while it maps it, and tries to write to a read-only mapping.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "agent/device/hash.h"
#include "tests/gpu/acts.h"
#include "tests/gpu/draw.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/passed.h"

namespace tangram::gpu {
namespace {

constexpr uint64_t kMiB = 1 << 20;
using namespace std::chrono_literals;

uint64_t HashAt(const Gpu& gpu, uint64_t address, uint64_t bytes) {
  return device::HashOf(Download(gpu, address, bytes));
}

std::unique_ptr<Handle> Import(const Gpu& gpu, int descriptor, uint64_t bytes) {
  CUmemGenericAllocationHandle handle = 0;
  void* const number = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
  gpu.Check(gpu.driver().MemImportFromShareableHandle(&handle, number,
                                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            "importing a descriptor");
  return std::make_unique<Handle>(gpu, handle, bytes);
}

// Maps for reading only; if a driver does not support that, for both, and reports it.
std::string MapForReading(const Gpu& gpu, uint64_t address, const Handle& handle) {
  try {
    Map(gpu, address, handle, CU_MEM_ACCESS_FLAGS_PROT_READ);
    return "";
  } catch (const Failed& why) {
    Allow(gpu, address, handle.bytes(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return why.what();
  }
}

// The engine: reads the received memory, then maps and unmaps it until it is killed.
void ReadAndMap(const Line& line, const std::string& driver, uint64_t bytes) {
  const UniqueFd descriptor = line.Take();
  const Gpu gpu(driver);
  const auto handle = Import(gpu, descriptor.get(), bytes);
  const Range range(gpu, 2 * bytes);
  const CUresult more = gpu.driver().MemMap(range.address(), 2 * bytes, 0, handle->get(), 0);
  (void)MapForReading(gpu, range.address(), *handle);
  line.Say(fmt::format("{} {}", HashAt(gpu, range.address(), bytes), more == CUDA_SUCCESS ? 0 : 1));
  for (;;) {
    Unmap(gpu, range.address(), bytes);
    (void)MapForReading(gpu, range.address(), *handle);
  }
}

// Writes through a read-only mapping, and reports the driver's result; after any result this
// process has lost its context.
void WriteWhatIsForReading(const Line& line, const std::string& driver, uint64_t bytes) {
  const UniqueFd descriptor = line.Take();
  const Gpu gpu(driver);
  const auto handle = Import(gpu, descriptor.get(), bytes);
  const Range range(gpu, bytes);
  const std::string refused = MapForReading(gpu, range.address(), *handle);
  if (!refused.empty()) return line.Say("not tried, there is no such mapping: " + refused);
  std::vector<std::byte> other(kMiB, std::byte{0xee});
  const auto from = reinterpret_cast<uint64_t>(other.data());
  CUresult result = gpu.driver().MemcpyAsync(range.address(), from, other.size(), gpu.stream());
  if (result == CUDA_SUCCESS) result = gpu.driver().StreamSynchronize(gpu.stream());
  line.Say(result == CUDA_SUCCESS ? "written" : gpu.driver().Check(result, "a write").message());
}

std::string WhatADescriptorTells(int descriptor) {
  struct stat info {};
  std::string out = "fstat fails";
  if (fstat(descriptor, &info) == 0) out = fmt::format("fstat: {} bytes", info.st_size);
  const off_t end = lseek(descriptor, 0, SEEK_END);
  out += end < 0 ? ", no seeking" : fmt::format(", its end is at {}", end);
  char target[256];
  const std::string link = fmt::format("/proc/self/fd/{}", descriptor);
  const ssize_t length = readlink(link.c_str(), target, sizeof target);
  if (length > 0) out += ", is " + std::string(target, static_cast<size_t>(length));
  return out;
}

// Waits until as much memory is free as before, except the driver's overhead; the memory of a dead
// process is freed with a delay.
void ExpectFree(const Gpu& gpu, uint64_t before, uint64_t bytes, Recorder* out) {
  const auto begin = std::chrono::steady_clock::now();
  uint64_t free = 0;
  while ((free = gpu.free_bytes()) + bytes / 2 < before) {
    if (std::chrono::steady_clock::now() - begin > 10s) {
      out->Wrong(
          fmt::format("of {} free bytes {} came back after the importer was killed (others "
                      "who use this GPU would look like this, too)",
                      before, free));
      return;
    }
    std::this_thread::sleep_for(20ms);
  }
  out->Right("memory that came back whole after kill -9 of who mapped it", 1);
}

}  // namespace

void RunDescriptors(const Task& task) {
  const uint64_t bytes = (task.small ? 8 : 256) * kMiB;
  // Must be started before the driver is opened here.
  Child reader([&](const Line& line) { ReadAndMap(line, task.driver, bytes); });
  Child writer([&](const Line& line) { WriteWhatIsForReading(line, task.driver, bytes); });

  const Gpu gpu(task.driver);
  Recorder& out = *task.out;
  const uint64_t before = gpu.free_bytes();
  {
    const Buffer keep(gpu, 2 * kMiB);  // the agent also has other memory
    const Handle handle(gpu, bytes);
    const Range range(gpu, bytes);
    Map(gpu, range.address(), handle);
    std::vector<std::byte> pattern(bytes);
    Draw(7).Fill(pattern);
    Upload(gpu, range.address(), pattern);
    const uint64_t hash = device::HashOf(pattern);
    int number = -1;
    gpu.Check(gpu.driver().MemExportToShareableHandle(&number, handle.get(),
                                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              "exporting a handle");
    const UniqueFd descriptor(number);
    out.Fact("what a descriptor tells of its size", WhatADescriptorTells(number));

    reader.line().Pass(number);
    const std::string heard = reader.line().Hear();
    uint64_t theirs = 0;
    int refused = 0;
    if (std::sscanf(heard.c_str(), "%lu %d", &theirs, &refused) != 2) throw Failed(heard);
    out.Fact("mapping more than a handle has", refused != 0 ? "is refused" : "is not refused");
    if (theirs == hash) {
      out.Right("bytes that another process read", bytes);
    } else {
      out.Wrong("another process reads other bytes than were written");
    }
    std::this_thread::sleep_for(50ms);
    reader.Kill();

    writer.line().Pass(number);
    const std::string said = writer.line().Hear();
    out.Fact("writing through a mapping for reading", said);
    writer.Kill();
    if (HashAt(gpu, range.address(), bytes) == hash) {
      out.Right("memory unchanged by who was killed and by who wrote without access", bytes);
    } else {
      out.Wrong("memory was changed by a process that had mapped it for reading");
    }
    Unmap(gpu, range.address(), bytes);
  }
  ExpectFree(gpu, before, bytes, &out);
}

}  // namespace tangram::gpu
