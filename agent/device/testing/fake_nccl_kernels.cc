// The recording NCCL: the work of its kernels.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "agent/device/testing/fake_nccl_state.h"

namespace tangram::device::testing {
namespace {

// A kernel that sends or receives. The driver runs it, under its lock.
class Kernel {
 public:
  Kernel(FakeCommPtr comm, const FakeCall& call, uint64_t number)
      : comm_(std::move(comm)), call_(call), number_(number) {}

  FakeRun Run(std::span<const std::span<std::byte>> parts) {
    const std::scoped_lock lock(comm_->mu);
    if (comm_->aborted) return End();
    if (!resident_ && !Enter()) return FakeRun::kRunning;
    // A failed kernel spins until it is aborted.
    if (comm_->error != kNcclSuccess || hangs_) return FakeRun::kRunning;
    if (!comm_->pair->Pump() && !NcclState().options.deaf) {
      // Data that arrived before the loss of the other end is valid.
      if (!(call_.sends ? comm_->pair->Received(number_) : false)) {
        comm_->error = kNcclRemoteError;
        return FakeRun::kRunning;
      }
    }
    return (call_.sends ? Send(parts) : Receive(parts)) ? End() : FakeRun::kRunning;
  }

 private:
  // Takes one of the device's places for kernels.
  bool Enter() {
    FakeNcclState& state = NcclState();
    const std::scoped_lock lock(state.mu);
    if (state.at_once >= state.options.room) return false;
    state.most_at_once = std::max(state.most_at_once, ++state.at_once);
    ++state.kernels;
    hangs_ = state.kernels == state.options.hang_at;
    state.hangs += hangs_ ? 1 : 0;
    if (state.kernels == state.options.fail_at) comm_->error = kNcclSystemError;
    return resident_ = true;
  }

  FakeRun End() {
    --comm_->running;
    if (std::exchange(resident_, false)) {
      const std::scoped_lock lock(NcclState().mu);
      --NcclState().at_once;
    }
    return FakeRun::kDone;
  }

  // Ends when the other end has the bytes. A real kernel may end earlier; do not rely on that.
  bool Send(std::span<const std::span<std::byte>> parts) {
    if (!std::exchange(said_, true)) {
      std::vector<std::byte> bytes;
      bytes.reserve(call_.bytes);
      for (const auto& part : parts) bytes.insert(bytes.end(), part.begin(), part.end());
      comm_->pair->Say({0, number_, bytes.size()}, bytes);
      (void)comm_->pair->Pump();
    }
    return comm_->pair->Received(number_);
  }

  bool Receive(std::span<const std::span<std::byte>> parts) {
    std::vector<std::byte> bytes;
    if (!comm_->pair->Take(number_, &bytes)) return false;
    if (bytes.size() != call_.bytes) {
      comm_->error = Complain(kNcclInternalError, fmt::format("{} bytes were sent and {} are to be "
                                                              "received: that hangs, or worse",
                                                              bytes.size(), call_.bytes));
      return false;
    }
    const std::byte* from = bytes.data();
    for (const auto& part : parts) {
      std::memcpy(part.data(), from, part.size());
      from += part.size();
    }
    comm_->pair->Say({1, number_, 0}, {});
    (void)comm_->pair->Pump();
    return true;
  }

  const FakeCommPtr comm_;
  const FakeCall call_;
  const uint64_t number_;
  bool resident_ = false, hangs_ = false, said_ = false;
};

}  // namespace

void LaunchCalls(const FakeCommPtr& comm) {
  std::vector<FakeCall> calls;
  std::vector<std::shared_ptr<Kernel>> kernels;
  {
    const std::scoped_lock lock(comm->mu);
    calls = std::exchange(comm->calls, {});
    for (const FakeCall& call : calls) {
      if (comm->running > 0 && call.stream != comm->stream) {
        comm->error =
            Complain(kNcclInvalidUsage, "one communicator has work on two streams, in no order");
        return;
      }
      comm->stream = call.stream;
      ++comm->running;
      const uint64_t number = call.sends ? ++comm->sent : ++comm->received;
      kernels.push_back(std::make_shared<Kernel>(comm, call, number));
    }
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    const CUresult put =
        FakeCuda::Put(calls[i].stream,
                      {.address = calls[i].address,
                       .bytes = calls[i].bytes,
                       .writes = !calls[i].sends,
                       .runs = [kernel = kernels[i]](auto parts) { return kernel->Run(parts); }});
    if (put == CUDA_SUCCESS) continue;
    const std::scoped_lock lock(comm->mu);
    comm->running -= calls.size() - i;
    comm->error = Complain(kNcclUnhandledCudaError,
                           "a buffer that is not mapped so, or a stream "
                           "that is not there");
    return;
  }
}

}  // namespace tangram::device::testing
