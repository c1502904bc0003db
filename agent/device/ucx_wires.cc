#include "agent/device/ucx_wires.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <ucp/api/ucp.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <type_traits>
#include <utility>

namespace tangram::device {
namespace {

constexpr const char* kLibrary = "libucp.so.0";
constexpr ucp_tag_t kTag = 1;    // one peer per worker, messages of a tag in order
constexpr int kLast = 10'000;    // polls of a closing endpoint before its worker ends anyway
constexpr int kMaxContexts = 5;  // attempts for one worker while the node's interfaces change

// The used entry points, by the names of the header.
#define TANGRAM_UCX_ENTRY_POINTS(X) \
  X(ucp_get_version)                \
  X(ucp_init_version)               \
  X(ucp_cleanup)                    \
  X(ucp_context_query)              \
  X(ucp_worker_create)              \
  X(ucp_worker_destroy)             \
  X(ucp_worker_get_address)         \
  X(ucp_worker_release_address)     \
  X(ucp_worker_progress)            \
  X(ucp_ep_create)                  \
  X(ucp_ep_close_nbx)               \
  X(ucp_tag_send_nbx)               \
  X(ucp_tag_recv_nbx)               \
  X(ucp_request_check_status)       \
  X(ucp_request_cancel)             \
  X(ucp_request_free)               \
  X(ucs_status_string)

struct EntryPoints {
#define TANGRAM_UCX_DECLARE(name) decltype(&::name) name = nullptr;
  TANGRAM_UCX_ENTRY_POINTS(TANGRAM_UCX_DECLARE)
#undef TANGRAM_UCX_DECLARE
};

// The library and one context of it. A channel keeps the context of its worker.
struct Ucx : EntryPoints {
  ucp_context_h context = nullptr;

  explicit Ucx(const EntryPoints& entry_points) : EntryPoints(entry_points) {}
  Ucx(const Ucx&) = delete;
  Ucx& operator=(const Ucx&) = delete;
  ~Ucx() {
    if (context != nullptr) ucp_cleanup(context);
  }
  Status Check(ucs_status_t status, const std::string& what) const {
    if (status == UCS_OK) return OkStatus();
    return {Code::kUnavailable, fmt::format("ucx: {}: {}", what, ucs_status_string(status))};
  }
};

// A context lists the network interfaces of the node as they are now.
Result<std::shared_ptr<const Ucx>> MakeContext(const EntryPoints& entry_points) {
  const auto ucx = std::make_shared<Ucx>(entry_points);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_TAG;
  params.mt_workers_shared = 1;
  TANGRAM_RETURN_IF_ERROR(ucx->Check(
      ucx->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, nullptr, &ucx->context),
      "its context"));
  return std::shared_ptr<const Ucx>(ucx);
}

Result<std::shared_ptr<const Ucx>> Load(const std::string& library, bool gpu, std::string* kind) {
  // UCX's hooks into mmap track registrations of memory that is unmapped; our buffers do not need
  // that. UCX should also not catch our signals, or warn of messages left by an abort. It reads
  // these settings only from the environment, when it is loaded; values set by the user stay.
  setenv("UCX_MEM_EVENTS", "n", 0);
  setenv("UCX_LOG_LEVEL", "error", 0);
  setenv("UCX_HANDLE_ERRORS", "none", 0);
  setenv("UCX_LOG_FILE", "stderr", 0);  // where this process logs to
  void* const opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    const char* why = dlerror();
    return Status(Code::kInvalid,
                  fmt::format("ucx: library not found ({})", why != nullptr ? why : library));
  }
  EntryPoints ucx;
  const auto get = [&](const char* name, auto* function) -> Status {
    void* const found = dlsym(opened, name);
    if (found == nullptr) {
      return {Code::kInvalid, fmt::format("ucx: {} has no {}; UCX {}.{} or newer is needed",
                                          library, name, UCP_API_MAJOR, UCP_API_MINOR)};
    }
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(found);
    return OkStatus();
  };
#define TANGRAM_UCX_GET(name) TANGRAM_RETURN_IF_ERROR(get(#name, &ucx.name));
  TANGRAM_UCX_ENTRY_POINTS(TANGRAM_UCX_GET)
#undef TANGRAM_UCX_GET
  unsigned major = 0, minor = 0, release = 0;
  ucx.ucp_get_version(&major, &minor, &release);
  *kind = fmt::format("ucx {}.{}.{}", major, minor, release);
  if (major != UCP_API_MAJOR || minor < UCP_API_MINOR) {
    return Status(Code::kInvalid, fmt::format("ucx: {} is {}.{}; this was built for {}.{} or newer",
                                              library, major, minor, UCP_API_MAJOR, UCP_API_MINOR));
  }
  auto made = MakeContext(ucx);
  if (!made.ok()) return Status(Code::kInvalid, made.status().message());
  const Ucx& with = **made;
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  TANGRAM_RETURN_IF_ERROR(
      with.Check(with.ucp_context_query(with.context, &attributes), "what memory it reaches"));
  if (gpu && (attributes.memory_types & (uint64_t{1} << UCS_MEMORY_TYPE_CUDA)) == 0) {
    return Status(Code::kInvalid, fmt::format("ucx: {} was built without CUDA: it does not reach "
                                              "memory of a GPU; use nccl",
                                              library));
  }
  return made;
}

// The context for the next worker. Thread-safe.
class Contexts {
 public:
  explicit Contexts(std::shared_ptr<const Ucx> first) : current_(std::move(first)) {}

  // Sets `worker`, and the context in which it was created. A worker opens all interfaces that its
  // context lists, and fails if one of them no longer exists. A node's interfaces change (pods,
  // bridges), so a new context with the current list is created then.
  Status MakeWorker(std::shared_ptr<const Ucx>* ucx, ucp_worker_h* worker) {
    ucp_worker_params_t params{};
    params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    for (int contexts = 1;; ++contexts) {
      *ucx = Current();
      const ucs_status_t made = (*ucx)->ucp_worker_create((*ucx)->context, &params, worker);
      if (made != UCS_ERR_NO_DEVICE || contexts == kMaxContexts) {
        return (*ucx)->Check(made, "a worker");
      }
      spdlog::info("ucx interface of this node removed, creating a new context");
      TANGRAM_RETURN_IF_ERROR(Replace(*ucx));
    }
  }

 private:
  std::shared_ptr<const Ucx> Current() {
    const std::scoped_lock lock(mu_);
    return current_;
  }
  // Does nothing if another thread has replaced it already.
  Status Replace(const std::shared_ptr<const Ucx>& old) {
    const std::scoped_lock lock(mu_);
    if (current_ != old) return OkStatus();
    auto made = MakeContext(*old);
    if (!made.ok()) return made.status();
    current_ = std::move(made).value();
    return OkStatus();
  }

  std::mutex mu_;
  std::shared_ptr<const Ucx> current_;
};

class UcxWire final : public Wire {
 public:
  static Result<std::unique_ptr<UcxWire>> Make(Contexts* contexts, const UcxMemory& memory,
                                               uint64_t buffer_bytes) {
    std::unique_ptr<UcxWire> out(new UcxWire(memory.gpu, buffer_bytes));
    auto device = memory.make(kBuffers * buffer_bytes);
    if (!device.ok()) return device.status();
    auto mapped = MapWhole(**device);
    if (!mapped.ok()) return mapped.status();
    out->memory_ = std::move(device).value();
    std::tie(out->space_, out->mapped_) = std::move(mapped).value();
    TANGRAM_RETURN_IF_ERROR(contexts->MakeWorker(&out->ucx_, &out->worker_));
    return out;
  }
  ~UcxWire() override { Abort(); }

  // The address of its worker, for the other end.
  Result<std::string> Address() const {
    ucp_address_t* address = nullptr;
    size_t bytes = 0;
    TANGRAM_RETURN_IF_ERROR(
        ucx_->Check(ucx_->ucp_worker_get_address(worker_, &address, &bytes), "a worker's address"));
    std::string out(reinterpret_cast<const char*>(address), bytes);
    ucx_->ucp_worker_release_address(worker_, address);
    return out;
  }

  Status Answered(const std::string& address) override {
    if (!failed_.ok()) return failed_;
    if (address.empty() || endpoint_ != nullptr) {
      return Fail({Code::kInvalid, "ucx: reply without an address, or a duplicate reply"});
    }
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    // Only transports that detect a lost peer; shared memory of a node is left to the node
    // transport.
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = [](void* wire, ucp_ep_h, ucs_status_t status) {
      static_cast<UcxWire*>(wire)->error_ = status;
    };
    params.err_handler.arg = this;
    Status status = ucx_->Check(ucx_->ucp_ep_create(worker_, &params, &endpoint_), "an endpoint");
    return status.ok() ? status : Fail(std::move(status));
  }

  Result<bool> Open() override {
    TANGRAM_RETURN_IF_ERROR(Progress());
    return endpoint_ != nullptr;
  }

  Memory Buffer(size_t buffer) const override {
    return {memory_.get(), space_->address() + buffer * buffer_bytes_, buffer_bytes_};
  }

  Status Send(size_t buffer, uint64_t bytes) override {
    TANGRAM_RETURN_IF_ERROR(MayPost(buffer, bytes));
    const ucp_request_param_t param = Param();
    return Posted(buffer, ucx_->ucp_tag_send_nbx(endpoint_, At(buffer), bytes, kTag, &param),
                  fmt::format("sending {} bytes", bytes));
  }

  Status Receive(size_t buffer, uint64_t bytes) override {
    TANGRAM_RETURN_IF_ERROR(MayPost(buffer, bytes));
    const ucp_request_param_t param = Param();
    return Posted(buffer,
                  ucx_->ucp_tag_recv_nbx(worker_, At(buffer), bytes, kTag, ~ucp_tag_t{0}, &param),
                  fmt::format("receiving {} bytes", bytes));
  }

  Result<bool> Done(size_t buffer) override {
    TANGRAM_RETURN_IF_ERROR(Progress());
    if (requests_[buffer] == nullptr) return true;
    const ucs_status_t state = ucx_->ucp_request_check_status(requests_[buffer]);
    if (state == UCS_INPROGRESS) return false;
    ucx_->ucp_request_free(std::exchange(requests_[buffer], nullptr));
    Status status = ucx_->Check(state, "between the two");
    if (!status.ok()) return Fail(std::move(status));
    return true;
  }

  void Abort() override {
    if (failed_.ok()) failed_ = {Code::kUnavailable, "ucx: this side was aborted"};
    if (worker_ == nullptr) return;
    for (void*& request : requests_) {
      if (request != nullptr) ucx_->ucp_request_cancel(worker_, request);
    }
    if (endpoint_ != nullptr) {
      ucp_request_param_t param{};
      param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      param.flags = UCP_EP_CLOSE_FLAG_FORCE;
      void* const closing = ucx_->ucp_ep_close_nbx(std::exchange(endpoint_, nullptr), &param);
      if (closing != nullptr && !UCS_PTR_IS_ERR(closing)) {
        for (int i = 0; i < kLast && ucx_->ucp_request_check_status(closing) == UCS_INPROGRESS;
             ++i) {
          ucx_->ucp_worker_progress(worker_);
        }
        ucx_->ucp_request_free(closing);
      }
    }
    for (void*& request : requests_) {
      if (request != nullptr) ucx_->ucp_request_free(std::exchange(request, nullptr));
    }
    ucx_->ucp_worker_destroy(std::exchange(worker_, nullptr));
  }

 private:
  UcxWire(bool gpu, uint64_t buffer_bytes) : gpu_(gpu), buffer_bytes_(buffer_bytes) {}

  void* At(size_t buffer) const { return reinterpret_cast<void*>(Buffer(buffer).address); }

  // States the memory type, so that UCX need not detect it from the address.
  ucp_request_param_t Param() const {
    ucp_request_param_t out{};
    out.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    out.memory_type = gpu_ ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
    return out;
  }

  Status MayPost(size_t buffer, uint64_t bytes) const {
    if (!failed_.ok()) return failed_;
    if (endpoint_ != nullptr && buffer < kBuffers && requests_[buffer] == nullptr &&
        bytes <= buffer_bytes_) {
      return OkStatus();
    }
    return {
        Code::kInternal,
        fmt::format("ucx: {} bytes of buffer {}, which is in use, or the comm channel is not open",
                    bytes, buffer)};
  }

  // A null request: it completed immediately.
  Status Posted(size_t buffer, void* request, const std::string& what) {
    if (UCS_PTR_IS_ERR(request)) return Fail(ucx_->Check(UCS_PTR_STATUS(request), what));
    requests_[buffer] = request;
    return OkStatus();
  }

  Status Progress() {
    if (!failed_.ok()) return failed_;
    while (ucx_->ucp_worker_progress(worker_) != 0) {
    }
    if (error_ != UCS_OK) return Fail(ucx_->Check(error_, "between the two"));
    return OkStatus();
  }

  Status Fail(Status status) {
    failed_ = std::move(status);
    Abort();
    return failed_;
  }

  std::shared_ptr<const Ucx> ucx_;
  const bool gpu_;
  const uint64_t buffer_bytes_;
  std::unique_ptr<Device> memory_;
  SpacePtr space_;
  Mapping mapped_;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  ucs_status_t error_ = UCS_OK;
  Status failed_;
  std::array<void*, kBuffers> requests_{};
};

class UcxWires final : public Wires {
 public:
  UcxWires(std::shared_ptr<const Ucx> ucx, UcxMemory memory, std::string kind,
           uint64_t buffer_bytes)
      : contexts_(std::move(ucx)),
        memory_(std::move(memory)),
        kind_(std::move(kind)),
        buffer_bytes_(buffer_bytes) {}

  const char* name() const override { return "ucx"; }
  const std::string& kind() const override { return kind_; }

  Result<std::unique_ptr<Wire>> Offer(std::string* hello) override {
    auto wire = UcxWire::Make(&contexts_, memory_, buffer_bytes_);
    if (!wire.ok()) return wire.status();
    auto address = (*wire)->Address();
    if (!address.ok()) return address.status();
    *hello = std::move(address).value();
    return std::unique_ptr<Wire>(std::move(wire).value());
  }

  Result<std::unique_ptr<Wire>> Accept(const std::string& hello, std::string* answer) override {
    auto wire = Offer(answer);
    if (wire.ok()) TANGRAM_RETURN_IF_ERROR((*wire)->Answered(hello));
    return wire;
  }

 private:
  Contexts contexts_;
  const UcxMemory memory_;
  const std::string kind_;
  const uint64_t buffer_bytes_;
};

}  // namespace

Result<std::unique_ptr<Wires>> MakeUcxWires(const UcxMemory& memory, const WireOptions& options) {
  std::string kind;
  auto ucx = Load(options.library.empty() ? kLibrary : options.library, memory.gpu, &kind);
  if (!ucx.ok()) return ucx.status();
  return std::unique_ptr<Wires>(std::make_unique<UcxWires>(std::move(ucx).value(), memory,
                                                           std::move(kind), options.buffer_bytes));
}

}  // namespace tangram::device
