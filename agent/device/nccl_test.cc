// Comm channels of NCCL over the recording NCCL and driver: both ends in this process.
#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "agent/base/testing/hang.h"
#include "agent/device/cuda.h"
#include "agent/device/cuda_context.h"
#include "agent/device/nccl_library.h"
#include "agent/device/platform.h"
#include "agent/device/testing/fake_cuda.h"
#include "agent/device/testing/fake_nccl.h"

namespace tangram::device {
namespace {

using tangram::testing::Eventually;
using testing::FakeCuda;
using testing::FakeNccl;
using testing::FakeNcclOptions;

constexpr uint64_t kBytes = 64 << 10;

class NcclTest : public ::testing::Test {
 protected:
  void SetUp() override {
    FakeCuda::Become({.granularity = 4096});
    FakeNccl::Become({});
    platform_ = MakePlatform({.name = "cuda", .driver = TANGRAM_FAKE_CUDA}).value();
    wires_ = Wires1();
  }
  void TearDown() override {
    one_.reset();
    other_.reset();
    wires_.reset();
    platform_.reset();
    EXPECT_EQ(FakeNccl::Complaint(), "") << "NCCL would have refused, or worse";
    EXPECT_EQ(FakeCuda::Complaint(), "");
    EXPECT_EQ(FakeCuda::Leaks(), "");
    EXPECT_EQ(FakeNccl::Open(), 0U);
  }

  Result<std::unique_ptr<Wires>> Open(const std::string& library = TANGRAM_FAKE_NCCL) const {
    return platform_->OpenWires({.name = "nccl", .library = library, .buffer_bytes = kBytes});
  }
  std::unique_ptr<Wires> Wires1() const { return Open().value(); }

  void Connect() {
    std::string hello, answer;
    one_ = wires_->Offer(&hello).value();
    other_ = wires_->Accept(hello, &answer).value();
    ASSERT_TRUE(one_->Answered(answer).ok());
    ASSERT_TRUE(Eventually([&] { return Both(one_->Open(), other_->Open()); }));
  }
  // Polls both ends; true if both returned true.
  static bool Both(const Result<bool>& one, const Result<bool>& other) {
    EXPECT_TRUE(one.ok()) << one.status().message();
    EXPECT_TRUE(other.ok()) << other.status().message();
    return one.ok() && other.ok() && *one && *other;
  }
  static void Put(const Memory& memory, const std::vector<std::byte>& bytes) {
    const CopyOp op{memory.Part(0, bytes.size()),
                    Memory::Own({const_cast<std::byte*>(bytes.data()), bytes.size()})};
    ASSERT_TRUE(memory.device->Copy({&op, 1}).Wait().ok());
  }
  static std::vector<std::byte> Get(const Memory& memory, uint64_t bytes) {
    std::vector<std::byte> out(bytes);
    const CopyOp op{Memory::Own(out), memory.Part(0, bytes)};
    EXPECT_TRUE(memory.device->Copy({&op, 1}).Wait().ok());
    return out;
  }
  static std::vector<std::byte> Pattern(uint64_t bytes, unsigned seed) {
    std::vector<std::byte> out(bytes);
    for (size_t i = 0; i < bytes; ++i) out[i] = std::byte((i * 31 + seed * 7 + i / 251) & 0xff);
    return out;
  }

  std::unique_ptr<Platform> platform_;
  std::unique_ptr<Wires> wires_;
  std::unique_ptr<Wire> one_, other_;
};

TEST_F(NcclTest, TransfersInOrderThroughBothBuffers) {
  Connect();
  for (unsigned round = 0; round < 5; ++round) {
    const size_t buffer = round % Wire::kBuffers;
    const uint64_t bytes = kBytes - round * 1000;
    Put(one_->Buffer(buffer), Pattern(bytes, round));
    ASSERT_TRUE(one_->Send(buffer, bytes).ok());
    ASSERT_TRUE(other_->Receive(buffer, bytes).ok());
    ASSERT_TRUE(Eventually([&] { return Both(other_->Done(buffer), one_->Done(buffer)); }));
    ASSERT_EQ(Get(other_->Buffer(buffer), bytes), Pattern(bytes, round));
  }
  EXPECT_EQ(wires_->kind(), "nccl 2.28.9");
}

TEST_F(NcclTest, OverlapsBothBuffersAndCompletesInOrder) {
  Connect();
  for (const size_t buffer : {0, 1}) Put(one_->Buffer(buffer), Pattern(kBytes, unsigned(buffer)));
  for (const size_t buffer : {0, 1}) ASSERT_TRUE(one_->Send(buffer, kBytes).ok());
  for (const size_t buffer : {0, 1}) ASSERT_TRUE(other_->Receive(buffer, kBytes).ok());
  EXPECT_EQ(one_->Send(0, 1).code(), Code::kInternal) << "it is under way";
  ASSERT_TRUE(Eventually([&] { return Both(other_->Done(1), one_->Done(1)); }));
  EXPECT_TRUE(*other_->Done(0));
  for (const size_t buffer : {0, 1}) {
    EXPECT_EQ(Get(other_->Buffer(buffer), kBytes), Pattern(kBytes, unsigned(buffer)));
  }
}

TEST_F(NcclTest, SendCompletesOnlyAfterPeerReceives) {
  Connect();
  ASSERT_TRUE(one_->Send(0, kBytes).ok());
  for (int look = 0; look < 20; ++look) ASSERT_FALSE(*one_->Done(0));
  ASSERT_TRUE(other_->Receive(0, kBytes).ok());
  EXPECT_TRUE(Eventually([&] { return Both(other_->Done(0), one_->Done(0)); }));
}

TEST_F(NcclTest, AbortEndsTransfersAndNotifiesPeer) {
  Connect();
  ASSERT_TRUE(one_->Send(0, kBytes).ok());
  ASSERT_FALSE(*one_->Done(0));
  ASSERT_TRUE(other_->Receive(1, kBytes).ok());
  one_->Abort();
  EXPECT_EQ(one_->Done(0).status().code(), Code::kUnavailable);
  EXPECT_EQ(one_->Send(1, 1).code(), Code::kUnavailable);
  EXPECT_TRUE(Eventually([&] { return !other_->Done(1).ok(); }));
  EXPECT_NE(other_->Done(1).status().message().find("nccl: between the two: remote process exited"),
            std::string::npos)
      << other_->Done(1).status().message();
}

TEST_F(NcclTest, AbortsWhileConnectingToAbsentPeer) {
  std::string hello;
  one_ = wires_->Offer(&hello).value();
  EXPECT_FALSE(*one_->Open());
  one_->Abort();
  EXPECT_EQ(one_->Open().status().code(), Code::kUnavailable);
  EXPECT_EQ(wires_->Accept("not an id", &hello).status().code(), Code::kInvalid);
}

TEST_F(NcclTest, AbortEndsHungTransfer) {
  FakeNccl::Become({.hang_at = 2});
  Connect();
  ASSERT_TRUE(one_->Send(0, kBytes).ok());
  ASSERT_TRUE(other_->Receive(0, kBytes).ok());
  for (int look = 0; look < 50; ++look) ASSERT_FALSE(Both(one_->Done(0), other_->Done(0)));
  one_->Abort();
  other_->Abort();
}

TEST_F(NcclTest, ReportsErrorNameWhenTransferFails) {
  FakeNccl::Become({.fail_at = 1});
  Connect();
  ASSERT_TRUE(one_->Send(0, kBytes).ok());
  ASSERT_TRUE(Eventually([&] { return !one_->Done(0).ok(); }));
  EXPECT_NE(one_->Done(0).status().message().find("unhandled system error (2)"), std::string::npos)
      << one_->Done(0).status().message();
}

TEST_F(NcclTest, ReportsMissingOrOutdatedLibrary) {
  const Status none = Open("libnccl-that-is-not-here.so.2").status();
  EXPECT_EQ(none.code(), Code::kInvalid);
  EXPECT_TRUE(none.message().starts_with("nccl: library not found (libnccl-that-is-not-here.so.2"))
      << none.message();
  FakeNccl::Become({.version = 21703});
  EXPECT_EQ(Open().status().message(),
            "nccl: " TANGRAM_FAKE_NCCL " is too old: it is 2.17.3; NCCL 2.18.0 or newer is needed");
  FakeNccl::Become({.version = 2804});
  EXPECT_NE(Open().status().message().find("it is 2.8.4"), std::string::npos);
  const Status other = Open(TANGRAM_FAKE_CUDA).status();
  EXPECT_NE(other.message().find("it has no ncclGetVersion"), std::string::npos);
  FakeNccl::Become({});
  EXPECT_EQ(MakePlatform({})->get()->OpenWires({.name = "nccl"}).status().message(),
            "platform host has no comm library named 'nccl'");
}

// The recording NCCL itself: it rejects invalid calls. Two ends, called as a program calls them.
class NcclRecording : public NcclTest {
 protected:
  void SetUp() override {
    NcclTest::SetUp();
    context_ = CudaContext::Open(TANGRAM_FAKE_CUDA, 0).value();
    const CudaContext::Entered in(*context_);  // the thread stays in this context
    ASSERT_EQ(library_->GetUniqueId(&id_), kNcclSuccess);
    config_.blocking = 0;
    for (const int rank : {0, 1}) {
      ASSERT_EQ(library_->CommInitRankConfig(&ends_[rank], 2, id_, rank, &config_),
                kNcclInProgress);
      ASSERT_EQ(cuStreamCreateWithPriority(&streams_[rank], CU_STREAM_NON_BLOCKING, 0),
                CUDA_SUCCESS);
    }
    auto device = CudaDevice::Make(context_, {16384, 16384});
    memory_ = std::move(device).value();
    std::tie(space_, mapped_) = MapWhole(*memory_).value();
  }
  void TearDown() override {
    for (const int rank : {0, 1}) {
      if (ends_[rank] != nullptr) EXPECT_EQ(library_->CommAbort(ends_[rank]), kNcclSuccess);
      EXPECT_EQ(cuStreamSynchronize(streams_[rank]), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamDestroy(streams_[rank]), CUDA_SUCCESS);
    }
    mapped_ = {};
    space_.reset();
    memory_.reset();
    context_.reset();
    NcclTest::TearDown();
  }
  NcclResult Error(int rank) const {
    NcclResult out = kNcclSuccess;
    EXPECT_EQ(library_->CommGetAsyncError(ends_[rank], &out), kNcclSuccess);
    return out;
  }
  void Ready() const {
    ASSERT_TRUE(Eventually([&] { return Ready(Error(0), Error(1)); }));
  }
  static bool Ready(NcclResult one, NcclResult other) {
    return one == kNcclSuccess && other == kNcclSuccess;
  }
  NcclResult Send(uint64_t bytes, CUstream stream, uint64_t offset = 0) const {
    return library_->Send(reinterpret_cast<void*>(space_->address() + offset), bytes, kNcclBytes, 1,
                          ends_[0], stream);
  }
  static void ExpectComplaint(const std::string& words) {
    const std::string said = FakeNccl::Complaint();
    EXPECT_NE(said.find(words), std::string::npos) << said;
  }

  const std::shared_ptr<const NcclLibrary> library_ = NcclLibrary::Load(TANGRAM_FAKE_NCCL).value();
  std::shared_ptr<CudaContext> context_;
  NcclId id_{};
  NcclConfig config_;
  std::array<NcclComm, 2> ends_{};
  std::array<CUstream, 2> streams_{};
  std::unique_ptr<Device> memory_;
  SpacePtr space_;
  Mapping mapped_;
};

TEST_F(NcclRecording, RejectsCallsBeforeCommunicatorIsReady) {
  EXPECT_EQ(Send(10, streams_[0]), kNcclInvalidArgument);
  ExpectComplaint("before what was asked of the communicator last is done");
  Ready();
  EXPECT_EQ(Send(10, streams_[0]), kNcclInProgress);
  EXPECT_EQ(Send(10, streams_[0]), kNcclInvalidArgument) << "the first is not on its stream yet";
  ExpectComplaint("before what was asked");
}

TEST_F(NcclRecording, RejectsCommunicatorAfterAbort) {
  Ready();
  ASSERT_EQ(library_->CommAbort(ends_[0]), kNcclSuccess);
  EXPECT_EQ(Send(10, streams_[0]), kNcclInvalidArgument);
  ExpectComplaint("ncclSend of a communicator after its abort");
  EXPECT_EQ(library_->CommAbort(std::exchange(ends_[0], nullptr)), kNcclInvalidArgument);
  ExpectComplaint("ncclCommAbort of a communicator after its abort");
}

TEST_F(NcclRecording, RejectsUnorderedStreams) {
  Ready();
  ASSERT_EQ(Send(10, streams_[0]), kNcclInProgress);
  ASSERT_TRUE(Eventually([&] { return Error(0) == kNcclSuccess; }));
  ASSERT_EQ(Send(10, streams_[1]), kNcclInProgress);
  ASSERT_TRUE(Eventually([&] { return Error(0) == kNcclInvalidUsage; }));
  ExpectComplaint("two streams, in no order");
}

TEST_F(NcclRecording, RejectsUnmappedMemory) {
  Ready();
  ASSERT_EQ(Send(10, streams_[0], 1 << 20), kNcclInProgress);
  ASSERT_TRUE(Eventually([&] { return Error(0) == kNcclUnhandledCudaError; }));
  ExpectComplaint("not mapped");
  EXPECT_NE(FakeCuda::Complaint(), "");
}

TEST_F(NcclRecording, RejectsTwoThreadsInOneGroup) {
  Ready();
  ASSERT_EQ(library_->GroupStart(), kNcclSuccess);
  ASSERT_EQ(Send(10, streams_[0]), kNcclSuccess);
  std::jthread([&] {
    const CudaContext::Entered in(*context_);
    EXPECT_EQ(Send(10, streams_[0]), kNcclInvalidUsage);
  }).join();
  ExpectComplaint("two threads in one group");
  EXPECT_EQ(library_->GroupEnd(), kNcclInProgress);
  EXPECT_EQ(library_->GroupEnd(), kNcclInvalidUsage);
  ExpectComplaint("never began");
}

TEST_F(NcclRecording, DetectsMismatchedCounts) {
  Ready();
  ASSERT_EQ(Send(10, streams_[0]), kNcclInProgress);
  ASSERT_EQ(library_->Recv(reinterpret_cast<void*>(space_->address() + 4096), 20, kNcclBytes, 0,
                           ends_[1], streams_[1]),
            kNcclInProgress);
  CUevent event = nullptr;
  ASSERT_TRUE(Eventually([&] { return Ready(Error(0), Error(1)); }));
  ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  for (const CUstream stream : streams_) {  // run the work so far, as far as possible
    ASSERT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  }
  EXPECT_EQ(Error(1), kNcclInternalError);
  ExpectComplaint("10 bytes were sent and 20 are to be received");
  EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
}

TEST_F(NcclRecording, RejectsMissingContextAndForeignId) {
  Ready();
  std::jthread([&] {
    NcclComm comm = nullptr;
    EXPECT_EQ(library_->CommInitRankConfig(&comm, 2, id_, 1, &config_), kNcclInvalidUsage);
  }).join();
  ExpectComplaint("in no context");
  NcclComm comm = nullptr;
  EXPECT_EQ(library_->CommInitRankConfig(&comm, 2, id_, 0, &config_), kNcclInvalidUsage);
  ExpectComplaint("rank 0 is not where the id was made");
  config_.blocking = 1;
  EXPECT_EQ(library_->CommInitRankConfig(&comm, 2, id_, 1, &config_), kNcclInvalidArgument);
  ExpectComplaint("that do not block");
}

}  // namespace
}  // namespace tangram::device
