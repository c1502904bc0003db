// The recording driver: kernels, graphs, and streams that wait for each other, called like a
// driver.
#include <gtest/gtest.h>

#include <vector>

#include "agent/device/testing/fake_cuda.h"
#include "kernels/parameters.h"

namespace tangram::device::testing {
namespace {

constexpr uint64_t kUnit = 2 << 20;

// Three adjacent units of memory, and two streams.
class FakeCudaLaunchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    FakeCuda::Become({});
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    CUcontext context = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAddressReserve(&at_, 3 * kUnit, 0, 0, 0), CUDA_SUCCESS);
    for (uint64_t i = 0; i < 3; ++i) {
      handles_[i] = Create();
      Map(i, handles_[i]);
    }
    for (CUstream& stream : streams_) {
      ASSERT_EQ(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    }
    const uint64_t image = 0;
    ASSERT_EQ(cuModuleLoadData(&module_, &image), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleGetFunction(&gather_, module_, "gather_blocks"), CUDA_SUCCESS);
  }
  void TearDown() override {
    for (const CUstream stream : streams_) {
      (void)cuStreamSynchronize(stream);
      EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
    }
    FakeCuda::Become({});  // clears the error
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleUnload(module_), CUDA_SUCCESS);
    for (uint64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(cuMemUnmap(At(i), kUnit), CUDA_SUCCESS);
      EXPECT_EQ(cuMemRelease(handles_[i]), CUDA_SUCCESS);
    }
    EXPECT_EQ(cuMemAddressFree(at_, 3 * kUnit), CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
    EXPECT_EQ(FakeCuda::Leaks(), "");
  }

  static CUmemGenericAllocationHandle Create() {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemGenericAllocationHandle out = 0;
    EXPECT_EQ(cuMemCreate(&out, kUnit, &properties, 0), CUDA_SUCCESS);
    return out;
  }
  void Map(uint64_t unit, CUmemGenericAllocationHandle handle,
           CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    EXPECT_EQ(cuMemMap(At(unit), kUnit, 0, handle, 0), CUDA_SUCCESS);
    Allow(unit, flags);
  }
  void Allow(uint64_t unit, CUmemAccess_flags flags) {
    CUmemAccessDesc desc{};
    desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    desc.flags = flags;
    EXPECT_EQ(cuMemSetAccess(At(unit), kUnit, &desc, 1), CUDA_SUCCESS);
  }
  CUdeviceptr At(uint64_t unit) const { return at_ + unit * kUnit; }
  void Fill(uint64_t unit, int value) {
    std::vector<std::byte> bytes(kUnit, std::byte(value));
    ASSERT_EQ(
        cuMemcpyAsync(At(unit), reinterpret_cast<CUdeviceptr>(bytes.data()), kUnit, streams_[0]),
        CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(streams_[0]), CUDA_SUCCESS);
  }
  int ValueOf(uint64_t unit) {
    std::byte out{};
    EXPECT_EQ(cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(&out), At(unit) + 100, 1, streams_[1]),
              CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(streams_[1]), CUDA_SUCCESS);
    return static_cast<int>(out);
  }
  // Copies one block of `bytes`, by the kernel.
  CUresult Gather(uint64_t to, uint64_t from, uint64_t bytes, CUstream stream) {
    kernels::GatherBlocksParameters parameters{to, bytes, 0, from, bytes, 0, bytes, 1};
    void* list[] = {&parameters};
    return cuLaunchKernel(gather_, 2, 1, 1, 64, 1, 1, 0, stream, list, nullptr);
  }

  CUdeviceptr at_ = 0;
  CUmemGenericAllocationHandle handles_[3] = {};
  CUstream streams_[2] = {};
  CUmodule module_ = nullptr;
  CUfunction gather_ = nullptr;
};

TEST_F(FakeCudaLaunchTest, RunsKernelInStreamOrderWithLaunchParameters) {
  Fill(0, 7);
  ASSERT_EQ(Gather(At(1), At(0), kUnit, streams_[0]), CUDA_SUCCESS);
  EXPECT_EQ(ValueOf(1), 0);
  ASSERT_EQ(cuStreamSynchronize(streams_[0]), CUDA_SUCCESS);
  EXPECT_EQ(ValueOf(1), 7);
  CUfunction none = nullptr;
  EXPECT_EQ(cuModuleGetFunction(&none, module_, "gather_block"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuLaunchKernel(gather_, 1, 1, 1, 1024, 1, 1, 0, streams_[0], nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaLaunchTest, LimitsKernelToAccessibleMappings) {
  std::vector<std::byte> host(64);
  const auto heap = reinterpret_cast<uint64_t>(host.data());
  const auto illegal = [&](uint64_t to, uint64_t from) {
    EXPECT_EQ(Gather(to, from, 64, streams_[0]), CUDA_SUCCESS);
    const bool out = cuStreamSynchronize(streams_[0]) == CUDA_ERROR_ILLEGAL_ADDRESS;
    FakeCuda::Become({});
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    return out;
  };
  EXPECT_FALSE(illegal(At(1), At(0)));
  EXPECT_TRUE(illegal(heap, At(0))) << "memory of the host";
  EXPECT_TRUE(illegal(At(1), heap));
  EXPECT_TRUE(illegal(At(3), At(0))) << "nothing is there";
  Allow(1, CU_MEM_ACCESS_FLAGS_PROT_READ);
  EXPECT_FALSE(illegal(At(0), At(1)));
  EXPECT_TRUE(illegal(At(1), At(0))) << "mapped for reading";
}

TEST_F(FakeCudaLaunchTest, GraphReadsCurrentMappingsOfItsAddresses) {
  Fill(0, 1);
  Fill(2, 2);
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  ASSERT_EQ(cuStreamBeginCapture(streams_[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
  ASSERT_EQ(Gather(At(1), At(0), kUnit, streams_[0]), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamEndCapture(streams_[0], &graph), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(FakeCuda::Waiting(), 0U) << "what is captured does not run";
  for (const int expected : {1, 2, 1}) {
    ASSERT_EQ(cuGraphLaunch(executable, streams_[0]), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(streams_[0]), CUDA_SUCCESS);
    EXPECT_EQ(ValueOf(1), expected);
    for (const uint64_t unit : {0, 2}) ASSERT_EQ(cuMemUnmap(At(unit), kUnit), CUDA_SUCCESS);
    std::swap(handles_[0], handles_[2]);
    for (const uint64_t unit : {0, 2}) Map(unit, handles_[unit]);
  }
  EXPECT_NE(FakeCuda::Leaks().find("2 graphs"), std::string::npos) << FakeCuda::Leaks();
  EXPECT_EQ(cuGraphExecDestroy(executable), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

TEST_F(FakeCudaLaunchTest, StreamWaitEventPreventsRace) {
  Fill(0, 7);
  CUevent copied = nullptr, last = nullptr;
  ASSERT_EQ(cuEventCreate(&copied, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&last, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  bool opened = false;
  const auto open = [](void* data) { *static_cast<bool*>(data) = true; };
  ASSERT_EQ(cuLaunchHostFunc(streams_[0], open, &opened), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyAsync(At(1), At(0), kUnit, streams_[0]), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyAsync(At(2), At(1), kUnit, streams_[1]), CUDA_ERROR_ILLEGAL_STATE);
  ASSERT_EQ(cuEventRecord(copied, streams_[0]), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(streams_[1], copied, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyAsync(At(2), At(1), kUnit, streams_[1]), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(last, streams_[1]), CUDA_SUCCESS);
  float milliseconds = 0;
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, copied, copied), CUDA_ERROR_NOT_READY);
  EXPECT_FALSE(opened);
  ASSERT_EQ(cuStreamSynchronize(streams_[1]), CUDA_SUCCESS);
  EXPECT_TRUE(opened) << "it waited for the other one";
  EXPECT_EQ(ValueOf(2), 7);
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, copied, copied), CUDA_SUCCESS);
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, copied, last), CUDA_ERROR_INVALID_HANDLE);
  for (const CUevent event : {copied, last}) EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
}

#if CUDA_VERSION >= 13000
TEST_F(FakeCudaLaunchTest, RunsAllCopiesOfBatch) {
  Fill(0, 5);
  CUdeviceptr to[] = {At(1), At(2)}, from[] = {At(0), At(0)};
  size_t bytes[] = {kUnit, 200}, first = 0;
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  ASSERT_EQ(cuMemcpyBatchAsync(to, from, bytes, 2, &attributes, &first, 1, streams_[0]),
            CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(streams_[0]), CUDA_SUCCESS);
  EXPECT_EQ(ValueOf(1), 5);
  EXPECT_EQ(ValueOf(2), 5);
}
#endif

}  // namespace
}  // namespace tangram::device::testing
