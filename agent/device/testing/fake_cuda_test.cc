// The recording driver itself, called like a driver: it must reject what a real one rejects or
// leaves undefined. Otherwise passing tests of the backend over it would prove nothing.
#include "agent/device/testing/fake_cuda.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

namespace tangram::device::testing {
namespace {

constexpr uint64_t kUnit = 2 << 20;

class FakeCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    FakeCuda::Become({});
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    CUcontext context = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAddressReserve(&space_, 8 * kUnit, 0, 0, 0), CUDA_SUCCESS);
    for (CUstream& stream : streams_) {
      ASSERT_EQ(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    }
  }
  void TearDown() override {
    for (const CUstream stream : streams_) {
      (void)cuStreamSynchronize(stream);
      EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
    }
    for (const auto& [at, bytes] : mapped_) EXPECT_EQ(cuMemUnmap(at, bytes), CUDA_SUCCESS);
    for (const auto handle : handles_) EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAddressFree(space_, 8 * kUnit), CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
    EXPECT_EQ(FakeCuda::Leaks(), "");
    (void)FakeCuda::Complaint();
  }

  static CUmemAllocationProp Properties() {
    CUmemAllocationProp out{};
    out.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    out.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    out.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return out;
  }
  CUmemGenericAllocationHandle Create(uint64_t bytes = kUnit) {
    const CUmemAllocationProp properties = Properties();
    EXPECT_EQ(cuMemCreate(&handles_.emplace_back(), bytes, &properties, 0), CUDA_SUCCESS);
    return handles_.back();
  }
  void Map(uint64_t unit, CUmemGenericAllocationHandle handle, uint64_t bytes = kUnit) {
    EXPECT_EQ(cuMemMap(At(unit), bytes, 0, handle, 0), CUDA_SUCCESS);
    mapped_.push_back({At(unit), bytes});
  }
  CUresult Allow(uint64_t unit, uint64_t units,
                 CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    CUmemAccessDesc desc{};
    desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    desc.flags = flags;
    return cuMemSetAccess(At(unit), units * kUnit, &desc, 1);
  }
  CUdeviceptr At(uint64_t unit) const { return space_ + unit * kUnit; }
  static CUdeviceptr Of(std::vector<std::byte>& bytes) {
    return reinterpret_cast<CUdeviceptr>(bytes.data());
  }

  CUdeviceptr space_ = 0;
  CUstream streams_[2] = {};
  std::vector<CUmemGenericAllocationHandle> handles_;
  std::vector<std::pair<CUdeviceptr, uint64_t>> mapped_;
};

TEST_F(FakeCudaTest, RejectsInvalidMappings) {
  const auto handle = Create(2 * kUnit);
  EXPECT_EQ(cuMemMap(At(0), kUnit, kUnit, handle, 0), CUDA_ERROR_INVALID_VALUE) << "an offset";
  EXPECT_EQ(cuMemMap(At(0), kUnit / 2, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "half a unit";
  EXPECT_EQ(cuMemMap(At(0) + 4096, kUnit, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(At(0), 3 * kUnit, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "it has fewer";
  EXPECT_EQ(cuMemMap(At(7), 2 * kUnit, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "unreserved";
  EXPECT_EQ(cuMemMap(At(0), kUnit, 0, 9999, 0), CUDA_ERROR_INVALID_VALUE) << "no such handle";
  Map(1, handle, 2 * kUnit);
  for (const uint64_t unit : {1, 2}) {
    EXPECT_EQ(cuMemMap(At(unit), kUnit, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "twice";
  }
  EXPECT_EQ(cuMemMap(At(0), 2 * kUnit, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "into another";
  EXPECT_NE(FakeCuda::Complaint().find("something is mapped there"), std::string::npos);
  EXPECT_EQ(FakeCuda::Complaint(), "") << "it is told once";
  Map(3, handle);
}

TEST_F(FakeCudaTest, UnmapsOnlyWholeMappings) {
  Map(0, Create(2 * kUnit), 2 * kUnit);
  EXPECT_EQ(cuMemUnmap(At(0), kUnit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemUnmap(At(1), kUnit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemUnmap(At(4), kUnit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(space_, 8 * kUnit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(space_, 4 * kUnit), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaTest, ReleasesHandleOnceAndKeepsMappedMemory) {
  Map(0, Create());
  EXPECT_EQ(cuMemRelease(handles_.back()), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handles_.back()), CUDA_ERROR_INVALID_VALUE);
  handles_.clear();
  EXPECT_NE(FakeCuda::Leaks().find("2097152 bytes of memory"), std::string::npos);
  EXPECT_EQ(Allow(0, 1), CUDA_SUCCESS);
}

TEST_F(FakeCudaTest, CreatesWholeUnitsWithinMemorySize) {
  FakeCuda::Become({.memory_mib = 4});
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUmemAllocationProp properties = Properties();
  CUmemGenericAllocationHandle none = 0;
  EXPECT_EQ(cuMemCreate(&none, kUnit + 4096, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&none, 3 * kUnit, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  Create(2 * kUnit);
  EXPECT_EQ(cuMemCreate(&none, kUnit, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  properties.location.id = 1;
  EXPECT_EQ(cuMemCreate(&none, kUnit, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  setenv("FAKE_CUDA_MIB", "6", 1);
  FakeCuda::Become({});
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  size_t free = 0, total = 0;
  EXPECT_EQ(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  unsetenv("FAKE_CUDA_MIB");
  EXPECT_EQ(total, 3 * kUnit);
  EXPECT_EQ(free, kUnit);
}

TEST_F(FakeCudaTest, SetsAccessOnlyOnWholeContiguousMappings) {
  Map(0, Create());
  Map(1, Create(2 * kUnit), 2 * kUnit);
  EXPECT_EQ(Allow(0, 2), CUDA_ERROR_INVALID_VALUE) << "half of the second";
  EXPECT_EQ(Allow(2, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Allow(0, 4), CUDA_ERROR_INVALID_VALUE) << "a gap";
  EXPECT_EQ(Allow(0, 3), CUDA_SUCCESS);
}

TEST_F(FakeCudaTest, PreventsCpuAccessToMappedMemory) {
  Map(0, Create());
  ASSERT_EQ(Allow(0, 1), CUDA_SUCCESS);
  // The kernel returns an error without a signal, because it would have to read a file name there.
  EXPECT_EQ(open(reinterpret_cast<const char*>(At(0)), O_RDONLY), -1);
  EXPECT_EQ(errno, EFAULT);
}

// Mapped without access, mapped for reading, unmapped: each breaks the context permanently.
TEST_F(FakeCudaTest, ReportsIllegalAddressWhenCopyLacksAccess) {
  Map(0, Create());
  std::vector<std::byte> bytes(kUnit);
  ASSERT_EQ(cuMemcpyAsync(Of(bytes), At(0), kUnit, streams_[0]), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(streams_[0]), CUDA_ERROR_ILLEGAL_ADDRESS) << "none was given";
  EXPECT_EQ(cuMemcpyAsync(Of(bytes), At(0), kUnit, streams_[1]), CUDA_ERROR_ILLEGAL_ADDRESS);

  FakeCuda::Become({});
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  ASSERT_EQ(Allow(0, 1, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyAsync(Of(bytes), At(0), kUnit, streams_[0]), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(streams_[0]), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyAsync(At(0), Of(bytes), kUnit, streams_[0]), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(streams_[0]), CUDA_ERROR_ILLEGAL_ADDRESS) << "for reading alone";

  FakeCuda::Become({});
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyAsync(Of(bytes), At(1), kUnit, streams_[0]), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(streams_[0]), CUDA_ERROR_ILLEGAL_ADDRESS) << "nothing is there";
}

TEST_F(FakeCudaTest, RejectsUnmapBeforeCopyCompletes) {
  Map(0, Create());
  Map(1, Create());
  ASSERT_EQ(Allow(0, 2), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyAsync(At(1), At(0), kUnit, streams_[0]), CUDA_SUCCESS);
  for (const uint64_t unit : {0, 1}) {
    EXPECT_EQ(cuMemUnmap(At(unit), kUnit), CUDA_ERROR_ILLEGAL_STATE);
    EXPECT_NE(FakeCuda::Complaint().find("a copy that did not run yet uses it"), std::string::npos);
  }
  ASSERT_EQ(cuStreamSynchronize(streams_[0]), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(At(1), kUnit), CUDA_SUCCESS);
  mapped_.pop_back();
}

TEST_F(FakeCudaTest, RejectsRacingCopiesOfTwoStreams) {
  const auto one = Create();
  Map(0, one);
  Map(1, Create());
  Map(2, one);  // the same bytes again
  ASSERT_EQ(Allow(0, 3), CUDA_SUCCESS);
  std::vector<std::byte> bytes(kUnit), more(kUnit);
  ASSERT_EQ(cuMemcpyAsync(At(0), Of(bytes), kUnit, streams_[0]), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyAsync(Of(more), At(0), 1, streams_[1]), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(cuMemcpyAsync(Of(more), At(2), 1, streams_[1]), CUDA_ERROR_ILLEGAL_STATE) << "alias";
  EXPECT_EQ(cuMemcpyAsync(Of(bytes), At(1), 1, streams_[1]), CUDA_ERROR_ILLEGAL_STATE) << "host";
  EXPECT_EQ(cuMemcpyAsync(At(1), Of(bytes), kUnit, streams_[1]), CUDA_SUCCESS) << "both read";
  EXPECT_EQ(cuMemcpyAsync(Of(more), At(0), 1, streams_[0]), CUDA_SUCCESS) << "in order";
  ASSERT_EQ(cuStreamSynchronize(streams_[0]), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyAsync(Of(more), At(2), 1, streams_[1]), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyAsync(At(0), At(2) + 100, 200, streams_[0]), CUDA_ERROR_ILLEGAL_STATE)
      << "onto itself";
  ASSERT_EQ(cuStreamSynchronize(streams_[1]), CUDA_SUCCESS);
}

// Columns of one slab: their lines alternate, and no byte belongs to both.
TEST_F(FakeCudaTest, AllowsConcurrentCopiesOfInterleavedLines) {
  Map(0, Create());
  ASSERT_EQ(Allow(0, 1), CUDA_SUCCESS);
  std::vector<std::byte> bytes(4 * 256, std::byte{5});
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = bytes.data();
  copy.srcPitch = 256;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = At(0);
  copy.dstPitch = 1024;
  copy.WidthInBytes = 256;
  copy.Height = 4;
  ASSERT_EQ(cuMemcpy2DAsync(&copy, streams_[0]), CUDA_SUCCESS);
  copy.dstDevice = At(0) + 255;
  EXPECT_EQ(cuMemcpy2DAsync(&copy, streams_[1]), CUDA_ERROR_ILLEGAL_STATE) << "by one byte";
  copy.dstDevice = At(0) + 256;
  EXPECT_EQ(cuMemcpy2DAsync(&copy, streams_[1]), CUDA_SUCCESS);
  copy.dstPitch = 128;
  EXPECT_EQ(cuMemcpy2DAsync(&copy, streams_[1]), CUDA_ERROR_INVALID_VALUE);
  copy.dstPitch = 1024;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = reinterpret_cast<void*>(At(0) + 256);
  EXPECT_EQ(cuMemcpy2DAsync(&copy, streams_[1]), CUDA_ERROR_INVALID_VALUE) << "it is no host's";
  for (const CUstream stream : streams_) ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  std::vector<std::byte> line(1024);
  ASSERT_EQ(cuMemcpyAsync(Of(line), At(0) + 1024, 1024, streams_[0]), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(streams_[0]), CUDA_SUCCESS);
  for (size_t i = 0; i < line.size(); ++i) {
    ASSERT_EQ(line[i], i < 512 ? std::byte{5} : std::byte{0}) << i;
  }
}

// One query runs one copy, and a destroyed stream leaves its copies to its events.
TEST_F(FakeCudaTest, RunsCopiesOnlyWhenQueried) {
  std::vector<std::byte> a(64, std::byte{1}), b(64), c(64);
  CUevent event = nullptr;
  ASSERT_EQ(cuEventCreate(&event, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS) << "nothing was recorded";
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyAsync(Of(b), Of(a), 64, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyAsync(Of(c), Of(b), 64, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(b[0], std::byte{0});
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(b[0], std::byte{1});
  EXPECT_EQ(c[0], std::byte{0});
  EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(c[0], std::byte{1});
  EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy(event), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(FakeCudaTest, RejectsCallsWithoutContext) {
  std::jthread([&] {
    std::vector<std::byte> bytes(64);
    EXPECT_EQ(cuMemcpyAsync(Of(bytes), At(0), 1, streams_[0]), CUDA_ERROR_INVALID_CONTEXT);
    CUevent event = nullptr;
    EXPECT_EQ(cuEventCreate(&event, 0), CUDA_ERROR_INVALID_CONTEXT);
  }).join();
}

// Like a driver's: a descriptor cannot be measured, read or mapped, and keeps the memory alive.
TEST_F(FakeCudaTest, SharesMemoryWithImportingProcess) {
  const auto handle = Create();
  Map(0, handle);
  ASSERT_EQ(Allow(0, 1), CUDA_SUCCESS);
  int descriptor = -1;
  ASSERT_EQ(cuMemExportToShareableHandle(&descriptor, handle,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  struct stat info {};
  ASSERT_EQ(fstat(descriptor, &info), 0);
  EXPECT_EQ(info.st_size, 0);
  EXPECT_EQ(mmap(nullptr, kUnit, PROT_READ, MAP_SHARED, descriptor, 0), MAP_FAILED);

  const auto put = [&](CUmemGenericAllocationHandle into, uint64_t unit, int value) {
    std::vector<std::byte> bytes(kUnit, std::byte(value));
    return cuMemMap(At(unit), kUnit, 0, into, 0) == CUDA_SUCCESS &&
           Allow(unit, 1) == CUDA_SUCCESS &&
           cuMemcpyAsync(At(unit), Of(bytes), kUnit, streams_[0]) == CUDA_SUCCESS &&
           cuStreamSynchronize(streams_[0]) == CUDA_SUCCESS;
  };
  const auto import = [&](CUmemGenericAllocationHandle* out) {
    return cuMemImportFromShareableHandle(
        out, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  };
  const pid_t child = fork();
  if (child == 0) {
    CUmemGenericAllocationHandle theirs = 0;
    _exit(import(&theirs) == CUDA_SUCCESS && put(theirs, 1, 9) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  std::vector<std::byte> bytes(kUnit);
  ASSERT_EQ(cuMemcpyAsync(Of(bytes), At(0), kUnit, streams_[0]), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(streams_[0]), CUDA_SUCCESS);
  EXPECT_TRUE(bytes == std::vector<std::byte>(kUnit, std::byte{9})) << "the other one wrote it";

  // The owner is destroyed; the descriptor alone holds the memory now, and can be imported
  // repeatedly.
  EXPECT_EQ(cuMemUnmap(At(0), kUnit), CUDA_SUCCESS);
  mapped_.clear();
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  handles_.clear();
  for (const uint64_t unit : {0, 1}) {
    ASSERT_EQ(import(&handles_.emplace_back()), CUDA_SUCCESS);
    Map(unit, handles_.back());
  }
  ASSERT_EQ(Allow(0, 2), CUDA_SUCCESS);
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  ASSERT_EQ(cuMemcpyAsync(Of(bytes), At(1), kUnit, streams_[0]), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(streams_[0]), CUDA_SUCCESS);
  EXPECT_EQ(bytes[kUnit - 1], std::byte{9});
  close(descriptor);
}

TEST_F(FakeCudaTest, ReportsLeaks) {
  Create();
  EXPECT_NE(FakeCuda::Leaks().find("1 handles, 1 reservations, 2 streams"), std::string::npos)
      << FakeCuda::Leaks();
}

}  // namespace
}  // namespace tangram::device::testing
