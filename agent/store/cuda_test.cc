// Whole transitions where the CPU cannot access weights and KV: platform `cuda` over the recording
// driver. It runs no copy before a wait for it, and has a handle and a descriptor per page.
#include <gtest/gtest.h>

#include <algorithm>

#include "agent/device/testing/fake_cuda.h"
#include "agent/device/testing/fake_nccl.h"
#include "agent/store/testing/fixture.h"

namespace tangram::store {
namespace {

using device::testing::FakeCuda;
using device::testing::FakeNccl;
using testing::StoreTest;
using testing::World;

constexpr const char* kOutOfMemory = "(CUDA_ERROR_OUT_OF_MEMORY, 2)";

class CudaWorld : public StoreTest, public ::testing::WithParamInterface<v1::SlabFormat> {
 protected:
  void SetUp() override { FakeCuda::Become({.granularity = 4096}); }
  void TearDown() override {
    EXPECT_EQ(FakeCuda::Complaint(), "") << "the driver would have refused, or worse";
    EXPECT_EQ(FakeCuda::Leaks(), "");
    StoreTest::TearDown();
  }
  static void PullKvFromAll(const World::Options& options);
  // Bytes of weights from other ranks in the last Stage, by transport.
  static std::map<std::string, uint64_t> Ways(const World& world) {
    std::map<std::string, uint64_t> out;
    for (const auto& [member, progress] : world.progress) {
      EXPECT_EQ(progress->corrupt, 0U) << member;
      for (const auto& [way, bytes] : progress->weights_by_way.Get()) out[way] += bytes;
    }
    return out;
  }
  static World::Options Options(uint64_t seed) {
    World::Options options = testing::Small(false, seed);
    options.memory = {.name = "cuda", .driver = TANGRAM_FAKE_CUDA};
    options.format = GetParam();
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Store, CudaWorld,
                         ::testing::Values(v1::SLAB_FORMAT_GRANULE_MAJOR,
                                           v1::SLAB_FORMAT_ROW_MAJOR),
                         [](const auto& info) {
                           return info.param == v1::SLAB_FORMAT_ROW_MAJOR ? "RowMajor"
                                                                          : "GranuleMajor";
                         });

TEST_P(CudaWorld, KeepsBytesCorrectAcrossExpertAndTensorLayouts) {
  World world(Options(31));
  Begin(world, 3, 1);
  ASSERT_OK(world.Reshape(3, 3));
  ASSERT_OK(world.Reshape(1, 2));
  ASSERT_OK(world.Flip(world.Left(2)));
  ASSERT_OK(world.Check());
  EXPECT_EQ(FakeCuda::Waiting(), 0U);
}

// Agents that fetch from each other by NCCL, with weights of both slab formats.
TEST_P(CudaWorld, FetchesCorrectBytesOverNccl) {
  FakeNccl::Become({});
  {
    World::Options options = Options(35);
    options.wire = {.name = "nccl", .library = TANGRAM_FAKE_NCCL, .buffer_bytes = 40'000};
    World world(options);
    Begin(world, 3, 1);
    ASSERT_OK(world.Reshape(3, 3));
    uint64_t wire = 0;
    for (const auto& [member, progress] : world.progress) {
      wire += progress->wire;
      EXPECT_EQ(progress->tcp, 0U) << member;
      EXPECT_EQ(progress->corrupt, 0U) << member;
    }
    EXPECT_GT(wire, 0U);
    ASSERT_OK(world.Reshape(1, 2));
    ASSERT_OK(world.Check());
    world.transports->EndAttempt();
  }
  EXPECT_EQ(FakeNccl::Complaint(), "");
  EXPECT_EQ(FakeNccl::Open(), 0U);
  EXPECT_LE(FakeNccl::MostAtOnce(), 4U) << "two of an end that sends, two of one that receives";
}

// Agents of one node: each maps the handles of the others and copies from them, with weights of
// both slab formats, in one pass.
TEST_P(CudaWorld, FetchesCorrectBytesFromPeerMemory) {
  World::Options options = Options(37);
  options.shared_memory = true;
  World world(options);
  Begin(world, 3, 1);
  ASSERT_OK(world.Reshape(3, 3));
  std::map<std::string, uint64_t> ways = Ways(world);
  EXPECT_GT(ways["node"], 0U);
  EXPECT_EQ(ways["tcp"], 0U);
  ASSERT_OK(world.Reshape(1, 2));
  ASSERT_OK(world.Check());
  world.transports->EndAttempt();
}

// A GPU that cannot access the others' memory, whichever call reports it: bytes come over the
// network.
TEST_P(CudaWorld, FetchesOverNetworkWhenPeerMemoryUnreachable) {
  World::Options options = Options(38);
  options.shared_memory = true;
  World world(options);
  Begin(world, 3, 1);
  uint32_t group = 3;
  for (const char* call : {"cuMemImportFromShareableHandle", "cuMemSetAccess"}) {
    bool done = false;
    const v1::Layout target = world.Reshaped(group, 3, &done);
    ASSERT_OK(world.Prepare(target));
    FakeCuda::Fail(call, CUDA_ERROR_INVALID_DEVICE, 0, 1 << 20);
    const Status staged = world.Stage(target);
    FakeCuda::Fail(call, CUDA_SUCCESS, 0, 0);
    ASSERT_OK(staged);
    std::map<std::string, uint64_t> ways = Ways(world);
    EXPECT_EQ(ways["node"], 0U) << call;
    EXPECT_GT(ways["tcp"], 0U) << call;
    world.Abort(target);
    ASSERT_OK(world.Flip(target));
    ASSERT_OK(world.Check());
    world.transports->EndAttempt();
    if (done) group = 4 - group;
  }
}

TEST_P(CudaWorld, RestoresOldLayoutAfterAbort) {
  World world(Options(32));
  Begin(world, 3, 1);
  bool done = false;
  const v1::Layout target = world.Reshaped(3, 3, &done);
  ASSERT_OK(world.Prepare(target));
  ASSERT_OK(world.Stage(target));
  world.Abort(target);
  ASSERT_OK(world.Check());
  ASSERT_OK(world.Flip(world.Reshaped(3, 3, &done)));
  ASSERT_OK(world.Check());
}

// Whichever call fails, a transition aborts with the reason or uses another transport. Nothing is
// left of it, and the next one succeeds.
TEST_P(CudaWorld, CleansUpWhenAnyDriverCallFails) {
  World world(Options(36));
  Begin(world, 3, 1);
  uint32_t group = 3;
  int aborted = 0;
  for (const char* call : {"cuMemMap", "cuMemSetAccess", "cuMemcpyAsync", "cuLaunchKernel",
                           "cuEventCreate", "cuEventRecord", "cuMemHostAlloc"}) {
    for (const uint64_t skip : {0, 1, 7}) {
      SCOPED_TRACE(std::string(call) + " after " + std::to_string(skip));
      bool done = false;
      const v1::Layout target = world.Reshaped(group, 3, &done);
      FakeCuda::Fail(call, CUDA_ERROR_OUT_OF_MEMORY, skip, 1 << 20);
      Status status = world.Prepare(target);
      if (status.ok()) status = world.Stage(target);
      FakeCuda::Fail(call, CUDA_SUCCESS, 0, 0);
      if (!status.ok()) {
        EXPECT_NE(status.message().find(kOutOfMemory), std::string::npos) << status.message();
        ++aborted;
      }
      world.Abort(target);
      ASSERT_OK(world.Check());
      ASSERT_OK(world.Flip(target));
      if (done) group = 4 - group;
    }
  }
  EXPECT_GT(aborted, 15);
}

// The export of a handle takes a descriptor of the process. With none left, an engine would get
// places without memory.
TEST_P(CudaWorld, ReportsErrorWhenMemoryExportFails) {
  World world(Options(39));
  Begin(world, 3, 1);
  bool done = false;
  const v1::Layout target = world.Reshaped(3, 3, &done);
  ASSERT_OK(world.Prepare(target));
  ASSERT_OK(world.Stage(target));
  const char* const call = "cuMemExportToShareableHandle";
  FakeCuda::Fail(call, CUDA_ERROR_OUT_OF_MEMORY, 0, 1 << 20);
  const auto fresh = world.at(0).store->NewMappings();
  FakeCuda::Fail(call, CUDA_SUCCESS, 0, 0);
  EXPECT_NE(fresh.status().message().find(kOutOfMemory), std::string::npos)
      << fresh.status().message();
  ASSERT_OK(world.CommitAndRetire(target));
  ASSERT_OK(world.Check());

  // KV and control are exported when the rank is created: without them its agent does not start.
  FakeCuda::Fail(call, CUDA_ERROR_OUT_OF_MEMORY, 0, 1 << 20);
  const Status made = world.Replace(world.at(0));
  FakeCuda::Fail(call, CUDA_SUCCESS, 0, 0);
  EXPECT_NE(made.message().find(kOutOfMemory), std::string::npos) << made.message();
}

TEST_P(CudaWorld, ResumesMemoryAfterAgentDies) {
  World world(Options(33));
  Begin(world, 3, 1);
  bool done = false;
  ASSERT_OK(world.Flip(world.Reshaped(3, 3, &done)));
  for (uint32_t rank = 0; rank < 3; ++rank) ASSERT_OK(world.Restart(world.at(rank)));
  ASSERT_OK(world.Check());
  ASSERT_OK(world.Reshape(1, 2));
  ASSERT_OK(world.Check());
}

#ifdef TANGRAM_CUDA  // without kernels the host hashes one after another
// The bytes of a granule are few compared with the cost of a driver call.
TEST_P(CudaWorld, BatchesDriverCallsForGranules) {
  World::Options options = Options(35);
  options.shape.moe_inner = 512;  // 64 granules an expert
  World world(options);
  Begin(world, 3, 1);
  const auto calls = [] {
    uint64_t all = 0;
    for (const char* name :
         {"cuLaunchKernel", "cuMemcpyAsync", "cuMemcpy2DAsync", "cuEventCreate", "cuEventRecord",
          "cuEventSynchronize", "cuStreamSynchronize", "cuMemAlloc", "cuMemHostAlloc"}) {
      all += FakeCuda::Calls(name);
    }
    return all;
  };
  const auto flip = [&](bool network) {
    bool done = false;
    const v1::Layout target = world.Reshaped(network ? 3 : 1, 3, &done);
    ASSERT_OK(world.Prepare(target));
    const uint64_t before = calls();
    ASSERT_OK(world.Stage(target));
    const uint64_t asked = calls() - before;
    uint64_t bytes = 0;
    for (const auto& [member, p] : world.progress) bytes += p->local + p->shared + p->tcp;
    const uint64_t granules = bytes / world.geometry().granule_bytes();
    EXPECT_GT(granules, 800U);
    EXPECT_LT(asked, granules / 4);
    ASSERT_OK(world.CommitAndRetire(target));
    ASSERT_OK(world.Check());
  };
  flip(true);
  flip(false);
}

#endif

// A rank's KV, as its engine accesses it.
class EngineKv {
 public:
  EngineKv(const World& world, RankStore& store) : devices_(world.platform->Importers()) {
    const EngineRegions regions = store.Regions();
    EXPECT_EQ(regions.kv.extents.size(), 1U) << "one handle";
    const device::BlockPtr block =
        devices_.kv->Import(regions.kv.descriptors[0]->get(), regions.kv.extents).value();
    space_ = devices_.kv->Reserve(block->bytes()).value();
    const device::Placement whole{0, block, {0, block->bytes()}};
    mapped_ = devices_.kv->Map(space_, {&whole, 1}, device::Access::kReadWrite).value();
  }
  std::vector<std::byte> Read() {
    std::vector<std::byte> out(space_->bytes());
    const device::CopyOp copy{device::Memory::Own(out), All()};
    EXPECT_TRUE(devices_.kv->Copy({&copy, 1}).Wait().ok());
    return out;
  }
  void Write(std::vector<std::byte> bytes) {
    const device::CopyOp copy{All(), device::Memory::Own(bytes)};
    EXPECT_TRUE(devices_.kv->Copy({&copy, 1}).Wait().ok());
  }

 private:
  device::Memory All() { return {devices_.kv.get(), space_->address(), space_->bytes()}; }

  device::RankDevices devices_;
  device::SpacePtr space_;
  std::vector<device::Mapping> mapped_;
};

// From a sibling (0 and 2 share an agent), from another agent, and within the rank.
TEST_P(CudaWorld, PullsKvFromEveryKindOfSource) {
  World::Options options = Options(34);
  options.kv_bytes = 8 << 20;  // the other agent needs several sends
  for (const bool one_node : {false, true}) {
    SCOPED_TRACE(one_node);
    options.shared_memory = one_node;
    PullKvFromAll(options);
  }
}

void CudaWorld::PullKvFromAll(const World::Options& options) {
  World world(options);
  std::vector<std::unique_ptr<EngineKv>> engines;
  std::vector<std::vector<std::byte>> kv;
  for (size_t m = 0; m < 3; ++m) {
    world.AddMember();
    engines.push_back(std::make_unique<EngineKv>(world, *world.members[m]->store));
    std::vector<std::byte>& bytes = kv.emplace_back(engines[m]->Read().size());
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = std::byte((i * 13 + m * 101 + i / 255) & 0xff);
    }
    engines[m]->Write(bytes);
  }
  EXPECT_TRUE(world.members[0]->store->kv().empty()) << "the CPU does not reach it";
  v1::KvPull pull;
  std::vector<std::byte> want = kv[0];
  for (uint32_t i = 0; i < 60; ++i) {
    const uint32_t length = 65536 - i;
    const uint64_t from = (4 << 20) + uint64_t{i} * 60000, to = uint64_t{i} * 65536;
    pull.add_source_rank(i % 3);
    pull.add_source_offset(from);
    pull.add_target_offset(to);
    pull.add_length(length);
    std::copy_n(kv[i % 3].begin() + static_cast<int64_t>(from), length,
                want.begin() + static_cast<int64_t>(to));
  }
  // Also with a corrupted byte: its ranges are fetched again.
  for (const char* fault : {"", "kv.before_pull=corrupt"}) {
    ASSERT_OK(fault::Arm(fault));
    engines[0]->Write(kv[0]);
    StageProgress progress;
    const auto pulled =
        world.members[0]->store->KvPull(pull, world.Addresses(world.First(1)), &progress, {});
    ASSERT_TRUE(pulled.ok()) << pulled.status().message();
    EXPECT_EQ(progress.corrupt, *fault == 0 || options.shared_memory ? 0U : 1U);
    EXPECT_TRUE(engines[0]->Read() == want);
  }
}

}  // namespace
}  // namespace tangram::store
