#include "agent/device/nccl_wires.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>

#include "agent/device/cuda.h"
#include "agent/device/nccl_library.h"

namespace tangram::device {
namespace {

// Multiprocessors for each kernel of a communicator: with one kernel that sends and one that
// receives (agent/mover/README.md, the order), most of a GPU stays free.
constexpr int kMostCtas = 4;

class NcclWire final : public Wire {
 public:
  static Result<std::unique_ptr<Wire>> Make(std::shared_ptr<CudaContext> context,
                                            std::shared_ptr<const NcclLibrary> library,
                                            const NcclId& id, int rank, uint64_t buffer_bytes) {
    std::unique_ptr<NcclWire> out(
        new NcclWire(std::move(context), std::move(library), rank, buffer_bytes));
    TANGRAM_RETURN_IF_ERROR(out->Begin(id));
    return std::unique_ptr<Wire>(std::move(out));
  }
  ~NcclWire() override { Abort(); }

  // An offer needs no reply: the id is enough.
  Status Answered(const std::string&) override { return OkStatus(); }

  Result<bool> Open() override {
    TANGRAM_RETURN_IF_ERROR(Progress());
    return open_;
  }

  Memory Buffer(size_t buffer) const override {
    return {memory_.get(), space_->address() + buffer * buffer_bytes_, buffer_bytes_};
  }

  Status Send(size_t buffer, uint64_t bytes) override { return Post({buffer, bytes, true}); }
  Status Receive(size_t buffer, uint64_t bytes) override { return Post({buffer, bytes, false}); }

  Result<bool> Done(size_t buffer) override {
    TANGRAM_RETURN_IF_ERROR(Progress());
    if (!under_way_[buffer]) return true;
    const auto& event = events_[buffer];
    if (event == nullptr || !event->Done()) return false;
    Status status = event->Wait();  // has ended, maybe with an error
    events_[buffer].reset();
    under_way_[buffer] = false;
    if (!status.ok()) return Fail(std::move(status));
    return true;
  }

  void Abort() override {
    if (failed_.ok()) failed_ = {Code::kUnavailable, "nccl: this side was aborted"};
    const CudaContext::Entered in(*context_);
    if (comm_ != nullptr) (void)library_->CommAbort(std::exchange(comm_, nullptr));
    if (stream_ == nullptr) return;
    // Kernels leave their loops once the communicator is aborted.
    const CudaDriver& driver = context_->driver();
    (void)driver.StreamSynchronize(stream_);
    (void)driver.StreamDestroy(std::exchange(stream_, nullptr));
    events_ = {};
  }

 private:
  struct Posted {
    size_t buffer = 0;
    uint64_t bytes = 0;
    bool sends = false;
  };

  NcclWire(std::shared_ptr<CudaContext> context, std::shared_ptr<const NcclLibrary> library,
           int rank, uint64_t buffer_bytes)
      : context_(std::move(context)),
        library_(std::move(library)),
        rank_(rank),
        buffer_bytes_(buffer_bytes) {}

  Status Begin(const NcclId& id) {
    const uint64_t unit = context_->granularity();
    const uint64_t bytes = (kBuffers * buffer_bytes_ + unit - 1) / unit * unit;
    auto memory = CudaDevice::Make(context_, {bytes, bytes});
    if (!memory.ok()) return memory.status();
    auto mapped = MapWhole(**memory);
    if (!mapped.ok()) return mapped.status();
    memory_ = std::move(memory).value();
    std::tie(space_, mapped_) = std::move(mapped).value();
    const CudaContext::Entered in(*context_);
    const CudaDriver& driver = context_->driver();
    int least = 0, greatest = 0;
    TANGRAM_RETURN_IF_ERROR(
        driver.Check(driver.CtxGetStreamPriorityRange(&least, &greatest), "priorities of streams"));
    TANGRAM_RETURN_IF_ERROR(
        driver.Check(driver.StreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, least),
                     "a stream for NCCL"));
    NcclConfig config;
    config.blocking = 0;
    config.min_ctas = 1;
    config.max_ctas = kMostCtas;
    return library_->Check(library_->CommInitRankConfig(&comm_, 2, id, rank_, &config),
                           "a communicator");
  }

  Status Post(const Posted& posted) {
    if (!failed_.ok()) return failed_;
    if (!open_ || posted.buffer >= kBuffers || under_way_[posted.buffer] ||
        posted.bytes > buffer_bytes_) {
      return {Code::kInternal,
              fmt::format(
                  "nccl: {} bytes of buffer {}, which is in use, or the comm channel is not open",
                  posted.bytes, posted.buffer)};
    }
    under_way_[posted.buffer] = true;
    waiting_.push_back(posted);
    return Progress();
  }

  // A non-blocking communicator accepts no call until it reports that the last one is on the
  // stream. Before that, an event there would mean nothing.
  Status Progress() {
    if (!failed_.ok()) return failed_;
    const CudaContext::Entered in(*context_);
    while (true) {
      NcclResult state = kNcclSuccess;
      Status status =
          library_->Check(library_->CommGetAsyncError(comm_, &state), "asking for its errors");
      if (status.ok()) status = library_->Check(state, open_ ? "between the two" : "connecting");
      if (!status.ok()) return Fail(std::move(status));
      if (state == kNcclInProgress) return OkStatus();
      open_ = true;
      if (launching_) {
        auto event = CudaEvent::Record(context_, stream_);
        if (!event.ok()) return Fail(event.status());
        events_[*std::exchange(launching_, std::nullopt)] = std::move(event).value();
      }
      if (waiting_.empty()) return OkStatus();
      status = Launch(waiting_.front());
      if (!status.ok()) return Fail(std::move(status));
      launching_ = waiting_.front().buffer;
      waiting_.pop_front();
    }
  }

  Status Launch(const Posted& posted) {
    const std::string what =
        fmt::format("{} {} bytes", posted.sends ? "sending" : "receiving", posted.bytes);
    TANGRAM_RETURN_IF_ERROR(library_->Check(library_->GroupStart(), what));
    void* const at = reinterpret_cast<void*>(Buffer(posted.buffer).address);
    const int peer = 1 - rank_;
    const NcclResult given =
        posted.sends ? library_->Send(at, posted.bytes, kNcclBytes, peer, comm_, stream_)
                     : library_->Recv(at, posted.bytes, kNcclBytes, peer, comm_, stream_);
    const NcclResult ended = library_->GroupEnd();  // ends a failed group too
    TANGRAM_RETURN_IF_ERROR(library_->Check(given, what));
    return library_->Check(ended, what);
  }

  Status Fail(Status status) {
    failed_ = std::move(status);
    Abort();
    return failed_;
  }

  const std::shared_ptr<CudaContext> context_;
  const std::shared_ptr<const NcclLibrary> library_;
  const int rank_;
  const uint64_t buffer_bytes_;
  std::unique_ptr<Device> memory_;
  SpacePtr space_;
  Mapping mapped_;
  CUstream stream_ = nullptr;
  NcclComm comm_ = nullptr;
  bool open_ = false;
  Status failed_;
  std::deque<Posted> waiting_;
  std::optional<size_t> launching_;  // buffer of the last call to NCCL
  std::array<bool, kBuffers> under_way_{};
  std::array<std::shared_ptr<const CudaEvent>, kBuffers> events_;
};

class NcclWires final : public Wires {
 public:
  NcclWires(std::shared_ptr<CudaContext> context, std::shared_ptr<const NcclLibrary> library,
            uint64_t buffer_bytes)
      : context_(std::move(context)),
        library_(std::move(library)),
        kind_("nccl " + library_->version()),
        buffer_bytes_(buffer_bytes) {}

  const char* name() const override { return "nccl"; }
  const std::string& kind() const override { return kind_; }

  Result<std::unique_ptr<Wire>> Offer(std::string* hello) override {
    NcclId id{};
    {
      const CudaContext::Entered in(*context_);
      TANGRAM_RETURN_IF_ERROR(library_->Check(library_->GetUniqueId(&id), "an id"));
    }
    hello->assign(id.bytes, sizeof id.bytes);
    return NcclWire::Make(context_, library_, id, 0, buffer_bytes_);
  }

  Result<std::unique_ptr<Wire>> Accept(const std::string& hello, std::string* answer) override {
    NcclId id{};
    if (hello.size() != sizeof id.bytes) {
      return Status(Code::kInvalid, fmt::format("nccl: id of {} bytes, must have {}", hello.size(),
                                                sizeof id.bytes));
    }
    std::memcpy(id.bytes, hello.data(), sizeof id.bytes);
    answer->clear();
    return NcclWire::Make(context_, library_, id, 1, buffer_bytes_);
  }

 private:
  const std::shared_ptr<CudaContext> context_;
  const std::shared_ptr<const NcclLibrary> library_;
  const std::string kind_;
  const uint64_t buffer_bytes_;
};

}  // namespace

Result<std::unique_ptr<Wires>> MakeNcclWires(std::shared_ptr<CudaContext> context,
                                             const WireOptions& options) {
  auto library = NcclLibrary::Load(options.library.empty() ? NcclLibrary::kName : options.library);
  if (!library.ok()) return library.status();
  return std::unique_ptr<Wires>(std::make_unique<NcclWires>(
      std::move(context), std::move(library).value(), options.buffer_bytes));
}

}  // namespace tangram::device
