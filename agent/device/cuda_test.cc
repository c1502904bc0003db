// The CUDA backend over the recording driver: the suite of every backend, and its own tests.
#include "agent/device/cuda.h"

#include <unistd.h>

#include <thread>

#include "agent/device/conformance.h"
#include "agent/device/platform.h"
#include "agent/device/testing/fake_cuda.h"
#include "kernels/kernels.h"

namespace tangram::device {
namespace {

using testing::FakeCuda;
using testing::FakeMachine;

constexpr uint64_t kUnit = 2 << 20;
constexpr const char* kDriver = TANGRAM_FAKE_CUDA;

// After every test: the driver rejected nothing, and nothing leaked.
class NothingIsLeft : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override { FakeCuda::Become({}); }
  void OnTestEnd(const ::testing::TestInfo&) override {
    EXPECT_EQ(FakeCuda::Leaks(), "");
    EXPECT_EQ(FakeCuda::Complaint(), "");
  }
};
[[maybe_unused]] const bool kWatched = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new NothingIsLeft);
  return true;
}();

std::shared_ptr<CudaContext> Open() {
  auto context = CudaContext::Open(kDriver, 0);
  EXPECT_TRUE(context.ok()) << context.status().message();
  return context.ok() ? *context : nullptr;
}

struct Cuda {
  static constexpr uint64_t kUnit = device::kUnit;
  static constexpr bool kBytes = true;
  // A handle's descriptor carries no rights: each importer chooses the access of its mapping.
  static constexpr bool kReadOnlyExports = false;
  static std::unique_ptr<Device> Make(uint64_t bytes) {
    auto made = CudaDevice::Make(Open(), {bytes, kUnit});
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (!made.ok()) return nullptr;
    return std::move(made).value();
  }
  static std::unique_ptr<Device> Importer() { return CudaDevice::Importer(Open(), kUnit); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, DeviceConformance, Cuda);

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = CudaDevice::Make(Open(), {8 * kUnit, kUnit});
    ASSERT_TRUE(made.ok()) << made.status().message();
    device_ = std::move(made).value();
    space_ = device_->Reserve(8 * kUnit).value();
  }
  std::vector<Placement> Blocks(uint64_t count) {
    std::vector<Placement> out;
    for (uint64_t i = 0; i < count; ++i) {
      out.push_back({i * kUnit, device_->Create(kUnit).value(), {0, kUnit}});
    }
    return out;
  }
  Memory At(uint64_t unit, uint64_t units = 1) const {
    return {device_.get(), space_->address() + unit * kUnit, units * kUnit};
  }

  std::unique_ptr<CudaDevice> device_;
  SpacePtr space_;
};

TEST_F(CudaDeviceTest, IsNotAccessibleFromCpu) {
  const auto mapped = device_->Map(space_, Blocks(1), Access::kReadWrite);
  ASSERT_TRUE(mapped.ok());
  EXPECT_TRUE(View(At(0)).empty());
}

TEST_F(CudaDeviceTest, SetsAccessOncePerContiguousRange) {
  std::vector<Placement> placements = Blocks(6);
  std::swap(placements[0], placements[2]);   // in any order
  placements.erase(placements.begin() + 4);  // 0..3, then 5
  const auto mapped = device_->Map(space_, placements, Access::kReadWrite);
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  EXPECT_EQ(FakeCuda::Calls("cuMemMap"), 5U);
  EXPECT_EQ(FakeCuda::Calls("cuMemSetAccess"), 2U);
}

// Any call may fail, at any place of the list.
TEST_F(CudaDeviceTest, RollsBackWholeListWhenMapFails) {
  const std::vector<Placement> placements = Blocks(4);
  const std::string before = FakeCuda::Leaks();
  for (const char* call : {"cuMemMap", "cuMemSetAccess"}) {
    for (const uint64_t skip : {0, 3}) {
      if (skip > 0 && std::string(call) == "cuMemSetAccess") continue;  // it is called only once
      FakeCuda::Fail(call, CUDA_ERROR_OUT_OF_MEMORY, skip);
      const auto failed = device_->Map(space_, placements, Access::kReadWrite);
      EXPECT_EQ(failed.status().code(), Code::kNoMemory) << failed.status().message();
      EXPECT_EQ(FakeCuda::Leaks(), before);
    }
  }
  EXPECT_TRUE(device_->Map(space_, placements, Access::kReadWrite).ok());
}

TEST_F(CudaDeviceTest, CompletesCopyOnlyWithItsEvent) {
  const auto mapped = device_->Map(space_, Blocks(2), Access::kReadWrite);
  ASSERT_TRUE(mapped.ok());
  std::vector<std::byte> bytes(kUnit, std::byte{7}), back(kUnit);
  const std::vector<CopyOp> ops{
      {At(0), Memory::Own(bytes)}, {At(1), At(0)}, {Memory::Own(back), At(1)}};
  const Event event = device_->Copy(ops);
  EXPECT_EQ(FakeCuda::Waiting(), 3U);
  EXPECT_EQ(back[0], std::byte{0});
  EXPECT_FALSE(event.Done());
  EXPECT_FALSE(event.Done()) << "a look at it is no wait for it";
  EXPECT_TRUE(event.Wait().ok());
  EXPECT_TRUE(event.Done());
  EXPECT_TRUE(back == bytes);
}

TEST_F(CudaDeviceTest, KeepsMemoryMappedUntilCopyCompletes) {
  auto mapped = device_->Map(space_, Blocks(3), Access::kReadWrite);
  ASSERT_TRUE(mapped.ok());
  std::vector<std::byte> bytes(kUnit, std::byte{7}), back(kUnit);
  const std::vector<CopyOp> first{{At(0), Memory::Own(bytes)}, {At(1), At(0)}};
  const CopyOp second{Memory::Own(back), At(1)};
  const Event one = device_->Copy(first), two = device_->Copy({&second, 1});
  const uint64_t waiting = FakeCuda::Waiting();
  EXPECT_GE(waiting, 2U);
  (*mapped)[2] = Mapping();
  EXPECT_EQ(FakeCuda::Waiting(), waiting) << "nobody uses that one";
  (*mapped)[0] = Mapping();
  EXPECT_TRUE(one.Done()) << "it was waited for";
  EXPECT_FALSE(two.Done());
  device_->Release(std::move(*mapped), two);
  EXPECT_TRUE(two.Done());
  EXPECT_TRUE(back == bytes);
}

// A unit of a slab has a part in every line, so it is in all of the slab's handles.
TEST_F(CudaDeviceTest, KeepsAllSlabHandlesMappedUntilCopyCompletes) {
  auto mapped = device_->Map(space_, Blocks(2), Access::kReadWrite);
  ASSERT_TRUE(mapped.ok());
  const Shape shape{{{2, kUnit / 2}}, 2};
  Memory slab = At(0, 2);
  slab.shape = &shape;
  std::vector<std::byte> back(kUnit);
  const CopyOp op{Memory::Own(back), slab.Part(0, kUnit)};
  const Event event = device_->Copy({&op, 1});
  EXPECT_GT(FakeCuda::Waiting(), 0U);
  EXPECT_FALSE(event.Done());
  mapped->pop_back();
  EXPECT_EQ(FakeCuda::Waiting(), 0U);
  EXPECT_TRUE(event.Done());
}

TEST_F(CudaDeviceTest, WaitsForCopiesWhenDestroyed) {
  const auto mapped = device_->Map(space_, Blocks(1), Access::kReadWrite);
  ASSERT_TRUE(mapped.ok());
  std::vector<std::byte> back(kUnit, std::byte{1});
  const CopyOp op{Memory::Own(back), At(0)};
  const Event event = device_->Copy({&op, 1});
  device_.reset();
  EXPECT_EQ(FakeCuda::Waiting(), 0U);
  EXPECT_TRUE(event.Done());
  EXPECT_TRUE(event.Wait().ok());
}

// Afterwards every call of the driver fails: a process that sees the error must end.
TEST_F(CudaDeviceTest, FailsCopyWithoutWriteAccess) {
  const std::vector<Placement> block = Blocks(1);
  const auto mapped = device_->Map(space_, block, Access::kRead);
  ASSERT_TRUE(mapped.ok());
  std::vector<std::byte> bytes(kUnit);
  const CopyOp out{Memory::Own(bytes), At(0)}, in{At(0), Memory::Own(bytes)};
  EXPECT_TRUE(device_->Copy({&out, 1}).Wait().ok());
  const Status refused = device_->Copy({&in, 1}).Wait();
  EXPECT_EQ(refused.code(), Code::kInternal);
  EXPECT_NE(refused.message().find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos)
      << refused.message();
  EXPECT_FALSE(device_->Copy({&out, 1}).Wait().ok());
}

TEST_F(CudaDeviceTest, DrainsBatchWhenDriverRejectsCopy) {
  const auto mapped = device_->Map(space_, Blocks(2), Access::kReadWrite);
  ASSERT_TRUE(mapped.ok());
  std::vector<std::byte> bytes(kUnit);
  const Shape shape{{{4, kUnit / 8}}, 2};
  Memory second = At(1);
  second.shape = &shape;
  const std::vector<CopyOp> ops{{At(0), Memory::Own(bytes)},
                                {second.Part(0, kUnit / 2), Memory::Own(bytes).Part(0, kUnit / 2)},
                                {second.Part(kUnit / 2, kUnit / 2), At(0).Part(0, kUnit / 2)}};
  for (const std::string refused : {"cuMemcpyAsync", "cuMemcpy2DAsync", "cuLaunchKernel"}) {
    // By kernels, or line by line in a build without them.
    if (refused == (kernels::Image().empty() ? "cuLaunchKernel" : "cuMemcpy2DAsync")) continue;
    FakeCuda::Fail(refused, CUDA_ERROR_INVALID_VALUE);
    const Event event = device_->Copy(ops);
    EXPECT_TRUE(event.Done());
    EXPECT_EQ(event.Wait().code(), Code::kInvalid) << refused;
    EXPECT_EQ(FakeCuda::Waiting(), 0U) << "who is told may free what it copied from";
  }
}

// The driver unmaps only whole handles: an importer that unmaps a part keeps all of it for now.
TEST_F(CudaDeviceTest, KeepsHandleMappedUntilWhollyReleased) {
  auto made = CudaDevice::Make(Open(), {2 * kUnit, 2 * kUnit});
  ASSERT_TRUE(made.ok());
  const Export all = (*made)->ExportOf((*made)->Create(2 * kUnit).value()).value();
  ASSERT_EQ(all.extents, (std::vector<Extent>{{0, 2 * kUnit, 0}}));
  auto importer = CudaDevice::Importer(Open(), kUnit);
  const SpacePtr space = importer->Reserve(2 * kUnit).value();
  const BlockPtr block = importer->Import(all.descriptors[0]->get(), all.extents).value();
  const Placement half{0, block, {0, kUnit}}, whole{0, block, {0, 2 * kUnit}};
  EXPECT_EQ(importer->Map(space, {&half, 1}, Access::kRead).status().code(), Code::kInvalid);
  auto mapped = importer->Map(space, {&whole, 1}, Access::kRead);
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  { const Mapping gone = mapped->front().Split(kUnit); }
  EXPECT_EQ(FakeCuda::Calls("cuMemUnmap"), 0U);
  EXPECT_EQ(importer->Map(space, {&whole, 1}, Access::kRead).status().code(), Code::kInvalid);
  mapped->clear();
  EXPECT_EQ(FakeCuda::Calls("cuMemUnmap"), 1U);
  EXPECT_TRUE(importer->Map(space, {&whole, 1}, Access::kRead).ok());
}

TEST_F(CudaDeviceTest, ExportsOneDescriptorPerHandle) {
  const std::vector<Placement> blocks = Blocks(2);
  const Export first = device_->ExportOf(blocks[0].block).value();
  const Export again = device_->ExportOf(blocks[0].block).value();
  EXPECT_EQ(first.descriptors, again.descriptors);
  EXPECT_EQ(FakeCuda::Calls("cuMemExportToShareableHandle"), 1U);
  EXPECT_NE(device_->ExportOf(blocks[1].block).value().descriptors, first.descriptors);
}

TEST_F(CudaDeviceTest, RejectsImportOfInvalidDescriptorOrExtents) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const UniqueFd in(pipe_ends[0]), out(pipe_ends[1]);
  const Extent extent{0, kUnit};
  auto importer = CudaDevice::Importer(Open(), kUnit);
  EXPECT_EQ(importer->Import(in.get(), {&extent, 1}).status().code(), Code::kInvalid);
  EXPECT_EQ(importer->Import(-1, {&extent, 1}).status().code(), Code::kInvalid);
  const Export one = device_->ExportOf(Blocks(1)[0].block).value();
  const Extent two[] = {{0, kUnit}, {kUnit, kUnit}}, more{0, 2 * kUnit};
  EXPECT_EQ(importer->Import(one.descriptors[0]->get(), two).status().code(), Code::kInvalid);
  EXPECT_EQ(importer->Import(one.descriptors[0]->get(), {}).status().code(), Code::kInvalid);
  // The driver shows the size of a handle only by the mappings that it rejects.
  const BlockPtr larger = importer->Import(one.descriptors[0]->get(), {&more, 1}).value();
  const SpacePtr space = importer->Reserve(2 * kUnit).value();
  const Placement placement{0, larger, {0, 2 * kUnit}};
  EXPECT_EQ(importer->Map(space, {&placement, 1}, Access::kRead).status().code(), Code::kInvalid);
  EXPECT_NE(FakeCuda::Complaint().find("it has fewer"), std::string::npos);
}

// An engine keeps what it had mapped: here two of four handles. The rest ended with its owner.
TEST_F(CudaDeviceTest, AdoptsMemoryAfterOwnerIsDestroyed) {
  (void)device_->Create(kUnit);
  const BlockPtr block = device_->Create(2 * kUnit).value();
  {
    const Placement placement{0, block, {0, 2 * kUnit}};
    const auto mapped = device_->Map(space_, {&placement, 1}, Access::kReadWrite);
    std::vector<std::byte> bytes(2 * kUnit, std::byte{1});
    std::fill_n(bytes.begin() + kUnit, kUnit, std::byte{2});
    const CopyOp op{At(0, 2), Memory::Own(bytes)};
    ASSERT_TRUE(device_->Copy({&op, 1}).Wait().ok());
  }
  const Export kept = device_->ExportOf(block).value();
  std::vector<int> fds;
  for (const SharedFd& fd : kept.descriptors) fds.push_back(fd->get());
  device_.reset();
  space_.reset();

  EXPECT_EQ(CudaDevice::Adopt(Open(), {kUnit, kUnit}, fds).status().code(), Code::kInvalid);
  auto next = CudaDevice::Adopt(Open(), {4 * kUnit, kUnit}, fds);
  ASSERT_TRUE(next.ok()) << next.status().message();
  EXPECT_EQ((*next)->free_bytes(), 4 * kUnit);
  for (const Extent& bad :
       {Extent{0, kUnit, 2}, Extent{0, 2 * kUnit, 0}, Extent{kUnit, kUnit, 0}}) {
    EXPECT_EQ((*next)->Claim({&bad, 1}).status().code(), Code::kInvalid);
  }
  std::vector<Extent> swapped{kept.extents[1], kept.extents[0]};
  const BlockPtr claimed = (*next)->Claim(swapped).value();
  EXPECT_EQ((*next)->free_bytes(), 2 * kUnit);
  EXPECT_EQ((*next)->Claim(swapped).status().code(), Code::kInvalid) << "it is not free";
  // Descriptors of adopted handles were kept, so no call of the driver can fail for them.
  FakeCuda::Fail("cuMemExportToShareableHandle", CUDA_ERROR_OUT_OF_MEMORY, 0, 1 << 20);
  EXPECT_EQ((*next)->ExportOf(claimed).value().descriptors[0], (*next)->Adopted(1));
  EXPECT_NE((*next)->Adopted(0), nullptr);
  FakeCuda::Fail("cuMemExportToShareableHandle", CUDA_SUCCESS, 0, 0);
  const SpacePtr space = (*next)->Reserve(2 * kUnit).value();
  const Placement placement{0, claimed, {0, 2 * kUnit}};
  const auto mapped = (*next)->Map(space, {&placement, 1}, Access::kReadWrite);
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  std::vector<std::byte> back(2 * kUnit);
  const CopyOp op{Memory::Own(back), {next->get(), space->address(), 2 * kUnit}};
  ASSERT_TRUE((*next)->Copy({&op, 1}).Wait().ok());
  EXPECT_EQ(back[0], std::byte{2});
  EXPECT_EQ(back[kUnit], std::byte{1});
}

TEST_F(CudaDeviceTest, SetsContextOncePerThread) {
  const auto mapped = device_->Map(space_, Blocks(1), Access::kReadWrite);
  ASSERT_TRUE(mapped.ok());
  const uint64_t before = FakeCuda::Calls("cuCtxSetCurrent");
  std::jthread([&] {
    std::vector<std::byte> bytes(kUnit);
    const CopyOp op{At(0), Memory::Own(bytes)};
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(device_->Copy({&op, 1}).Wait().ok());
  }).join();
  EXPECT_EQ(FakeCuda::Calls("cuCtxSetCurrent"), before + 1);
}

TEST(Cuda, ReportsSizesWhenMemoryIsInsufficient) {
  FakeCuda::Become({.memory_mib = 6});
  const Status none = CudaDevice::Make(Open(), {8 * kUnit, kUnit}).status();
  EXPECT_EQ(none.code(), Code::kNoMemory);
  EXPECT_NE(none.message().find("memory of 16777216 bytes, of which 6291456 are made"),
            std::string::npos)
      << none.message();
  EXPECT_NE(none.message().find("0 of 6291456 bytes of NVIDIA H200 (recorded) are free"),
            std::string::npos)
      << none.message();
  EXPECT_EQ(CudaDevice::Make(Open(), {kUnit, kUnit / 2}).status().code(), Code::kInvalid);
  EXPECT_EQ(CudaDevice::Make(Open(), {0, kUnit}).status().code(), Code::kInvalid);
}

std::string Refusal(const FakeMachine& machine) {
  FakeCuda::Become(machine);
  const auto platform = MakePlatform({.name = "cuda", .map_bytes = kUnit, .driver = kDriver});
  EXPECT_EQ(platform.status().code(), Code::kInvalid);
  const std::string why = platform.status().message();
  EXPECT_EQ(why.find('\n'), std::string::npos) << "one line";
  return why;
}

TEST(CudaPlatform, ReportsWhyMachineIsUnsupported) {
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_PRED2(has, MakePlatform({.name = "cuda", .driver = "libnone.so"}).status().message(),
               "driver not found (libnone.so");
  EXPECT_PRED2(has, MakePlatform({.name = "cuda", .driver = "libc.so.6"}).status().message(),
               "too old: it has no cuGetProcAddress_v2");
  EXPECT_PRED2(has, Refusal({.missing = "cuMemSetAccess"}), "too old: it has no cuMemSetAccess");
  EXPECT_PRED2(has, Refusal({.version = 11080}), "it is of CUDA 11.8; CUDA 12.0 or newer");
  EXPECT_PRED2(has, Refusal({.devices = 0}), "no device");
  EXPECT_PRED2(has, Refusal({.name = "Tesla V100", .capability = 70}),
               "Tesla V100 cannot be used: its compute capability is 7.0, and the kernels are for "
               "8.0 and newer");
  EXPECT_PRED2(has, Refusal({.memory_management = false}), "no virtual memory management");
  EXPECT_PRED2(has, Refusal({.posix_descriptors = false}), "cannot be passed on");
  EXPECT_PRED2(has, Refusal({.name = "NVIDIA H200 MIG 1g.18gb"}), "a MIG slice reaches no other");
  FakeCuda::Become({});
  const auto second = MakePlatform({.name = "cuda", .ordinal = 1, .driver = kDriver});
  EXPECT_PRED2(has, second.status().message(), "there is no device 1: this process may use 1");
  const auto pages = MakePlatform({.name = "cuda", .map_bytes = 4096, .driver = kDriver});
  EXPECT_PRED2(has, pages.status().message(), "page_bytes = 4096");
  EXPECT_PRED2(has, pages.status().message(), "of multiples of 2097152");
}

TEST(CudaPlatform, PutsKvInOneHandleAndControlInHostMemory) {
  const auto platform = MakePlatform({.name = "cuda", .map_bytes = 2 * kUnit, .driver = kDriver});
  ASSERT_TRUE(platform.ok()) << platform.status().message();
  EXPECT_EQ((*platform)->pages(), "4 MiB (handles of NVIDIA H200 (recorded))");
  const PlatformInfo info = (*platform)->info();
  EXPECT_EQ(info.platform + ", " + info.device + ", " + info.capability + ", " + info.driver,
            "cuda, NVIDIA H200 (recorded), 9.0, 13.0");
  RankDevices devices = (*platform)->Make("rank", {5 * kUnit, 3 * kUnit - 1, 4096}).value();
  EXPECT_EQ(FakeCuda::Calls("cuMemCreate"), 3U + 1U);
  EXPECT_EQ(devices.weights->total_bytes(), 6 * kUnit);
  EXPECT_EQ(devices.kv->total_bytes(), 3 * kUnit);
  const auto control = MapWhole(*devices.control).value();
  const auto kv = MapWhole(*devices.kv).value();
  EXPECT_EQ(View({devices.control.get(), control.first->address(), 4096}).size(), 4096U);

  const Export all = devices.kv->ExportOf(kv.second.block()).value();
  ASSERT_EQ(all.extents, (std::vector<Extent>{{0, 3 * kUnit, 0}}));
  const RankDevices engine = (*platform)->Importers();
  const BlockPtr block = engine.kv->Import(all.descriptors[0]->get(), all.extents).value();
  const SpacePtr space = engine.kv->Reserve(3 * kUnit).value();
  const Placement whole{0, block, {0, 3 * kUnit}};
  EXPECT_TRUE(engine.kv->Map(space, {&whole, 1}, Access::kReadWrite).ok());
}

}  // namespace
}  // namespace tangram::device
