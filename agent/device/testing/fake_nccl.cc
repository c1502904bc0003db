// The recording NCCL: its entry points. Only non-blocking communicators of two ranks, since no
// others are used here.
#include "agent/device/testing/fake_nccl.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "agent/device/testing/fake_nccl_state.h"

namespace tangram::device::testing {
namespace {

// The calling thread's group.
struct Group {
  int depth = 0;
  std::map<FakeCommPtr, std::vector<FakeCall>> calls;
};
Group& MyGroup() {
  thread_local Group group;
  return group;
}

uint64_t Number(const char* name, uint64_t otherwise) {
  const char* const told = std::getenv(name);
  return told == nullptr ? otherwise : std::strtoull(told, nullptr, 10);
}

// Null, with a complaint: no such communicator, or an aborted one.
FakeCommPtr Find(NcclComm name, const char* call) {
  FakeNcclState& state = NcclState();
  FakeCommPtr comm;
  {
    const std::scoped_lock lock(state.mu);
    const auto it = state.comms.find(name);
    if (it != state.comms.end()) comm = it->second;
  }
  bool aborted = false;
  if (comm != nullptr) {
    const std::scoped_lock lock(comm->mu);
    aborted = comm->aborted;
  }
  if (comm != nullptr && !aborted) return comm;
  (void)Complain(kNcclInvalidArgument,
                 fmt::format("{} of {}", call,
                             aborted ? "a communicator after its abort" : "no communicator"));
  return nullptr;
}

bool InContext() {
  CUcontext now = nullptr;
  return cuCtxGetCurrent(&now) == CUDA_SUCCESS && now != nullptr;
}

NcclResult Transfer(const char* name, const FakeCall& call, int type, int peer, NcclComm to) {
  const FakeCommPtr comm = Find(to, name);
  if (comm == nullptr) return kNcclInvalidArgument;
  if (!InContext()) {
    return Complain(kNcclInvalidUsage, fmt::format("{} by a thread in no context", name));
  }
  Group& group = MyGroup();
  const std::scoped_lock lock(comm->mu);
  if (!comm->connected || !comm->calls.empty()) {
    return Complain(kNcclInvalidArgument,
                    fmt::format("{} before what was asked of the communicator last is done", name));
  }
  if (type != kNcclBytes || peer != 1 - comm->rank) {
    return Complain(kNcclInvalidArgument,
                    fmt::format("{} of type {} with rank {}", name, type, peer));
  }
  if (comm->group != std::thread::id{} && comm->group != std::this_thread::get_id()) {
    return Complain(kNcclInvalidUsage, "two threads in one group");
  }
  if (group.depth == 0) {
    comm->calls = {call};
    comm->looks = 0;
    return kNcclInProgress;
  }
  comm->group = std::this_thread::get_id();
  group.calls[comm].push_back(call);
  return kNcclSuccess;
}

}  // namespace

FakeNcclState& NcclState() {
  static FakeNcclState* const state = [] {
    auto* const made = new FakeNcclState;
    FakeNcclOptions& options = made->options;
    options.version = static_cast<int>(Number("FAKE_NCCL_VERSION", 22809));
    options.room = Number("FAKE_NCCL_ROOM", UINT64_MAX);
    options.hang_at = Number("FAKE_NCCL_HANG_AT", 0);
    options.fail_at = Number("FAKE_NCCL_FAIL_AT", 0);
    options.deaf = Number("FAKE_NCCL_DEAF", 0) != 0;
    return made;
  }();
  return *state;
}

NcclResult Complain(NcclResult result, const std::string& why) {
  const std::scoped_lock lock(NcclState().complaint_mu);
  NcclState().complaint = why;
  return result;
}

void FakeNccl::Become(const FakeNcclOptions& options) {
  FakeNcclState& state = NcclState();
  const std::scoped_lock lock(state.mu);
  state.options = options;
  (void)Complaint();
  state.offered.clear();
  state.comms.clear();
  state.kernels = state.hangs = state.at_once = state.most_at_once = 0;
}

std::string FakeNccl::Complaint() {
  const std::scoped_lock lock(NcclState().complaint_mu);
  return std::exchange(NcclState().complaint, {});
}

uint64_t FakeNccl::Open() {
  std::map<NcclComm, FakeCommPtr> comms;
  {
    const std::scoped_lock lock(NcclState().mu);
    comms = NcclState().comms;
  }
  uint64_t out = 0;
  for (const auto& [name, comm] : comms) {
    const std::scoped_lock one(comm->mu);
    out += comm->aborted ? 0 : 1;
  }
  return out;
}

uint64_t FakeNccl::Hangs() {
  const std::scoped_lock lock(NcclState().mu);
  return NcclState().hangs;
}

uint64_t FakeNccl::MostAtOnce() {
  const std::scoped_lock lock(NcclState().mu);
  return NcclState().most_at_once;
}

}  // namespace tangram::device::testing

using namespace tangram;
using namespace tangram::device;
using namespace tangram::device::testing;

extern "C" {

NcclResult ncclGetVersion(int* version) {
  *version = NcclState().options.version;
  return kNcclSuccess;
}

const char* ncclGetErrorString(NcclResult result) {
  switch (result) {
    case kNcclSuccess:
      return "no error";
    case kNcclUnhandledCudaError:
      return "unhandled cuda error";
    case kNcclSystemError:
      return "unhandled system error";
    case kNcclInternalError:
      return "internal error";
    case kNcclInvalidArgument:
      return "invalid argument";
    case kNcclInvalidUsage:
      return "invalid usage";
    case kNcclRemoteError:
      return "remote process exited or there was a network error";
    case kNcclInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(NcclComm) {
  thread_local std::string last;
  const std::scoped_lock lock(NcclState().complaint_mu);
  last = NcclState().complaint;
  return last.c_str();
}

NcclResult ncclGetUniqueId(NcclId* id) {
  static std::atomic<uint64_t> next{0};
  const std::string name = fmt::format("tangram-recorded-nccl-{}-{}", getpid(), next++);
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(socket.get(), 1) != 0) {
    return kNcclSystemError;
  }
  *id = {};
  std::memcpy(id->bytes, name.data(), name.size());
  const std::scoped_lock lock(NcclState().mu);
  NcclState().offered[name] = std::move(socket);
  return kNcclSuccess;
}

NcclResult ncclCommInitRankConfig(NcclComm* out, int ranks, NcclId id, int rank,
                                  NcclConfig* config) {
  *out = nullptr;
  if (!InContext()) return Complain(kNcclInvalidUsage, "a communicator for a thread in no context");
  if (config == nullptr || config->magic != NcclConfig{}.magic) {
    return Complain(kNcclInvalidArgument, "a config that was not initialised");
  }
  if (ranks != 2 || rank < 0 || rank > 1 || config->blocking != 0) {
    return Complain(kNcclInvalidArgument,
                    "only communicators of two ranks that do not block are recorded");
  }
  const auto comm = std::make_shared<FakeComm>();
  comm->rank = rank;
  comm->name = id.bytes;
  FakeNcclState& state = NcclState();
  const std::scoped_lock lock(state.mu);
  if (rank == 0 && !state.offered.contains(comm->name)) {
    return Complain(kNcclInvalidUsage, "rank 0 is not where the id was made, or has it twice");
  }
  *out = reinterpret_cast<NcclComm>(comm.get());
  state.comms[*out] = comm;
  return kNcclInProgress;
}

NcclResult ncclCommGetAsyncError(NcclComm name, NcclResult* error) {
  const FakeCommPtr comm = Find(name, "ncclCommGetAsyncError");
  if (comm == nullptr) return kNcclInvalidArgument;
  bool launch = false;
  {
    const std::scoped_lock lock(comm->mu);
    if (comm->error == kNcclSuccess && !comm->connected) Connect(comm.get());
    if (comm->connected && comm->error == kNcclSuccess && !comm->pair->Pump() &&
        comm->running > 0 && !NcclState().options.deaf) {
      comm->error = kNcclRemoteError;
    }
    launch = !comm->calls.empty() && ++comm->looks == 2;
  }
  if (launch) LaunchCalls(comm);
  const std::scoped_lock lock(comm->mu);
  *error = comm->error;
  if (*error == kNcclSuccess && (!comm->connected || !comm->calls.empty()))
    *error = kNcclInProgress;
  return kNcclSuccess;
}

NcclResult ncclCommAbort(NcclComm name) {
  const FakeCommPtr comm = Find(name, "ncclCommAbort");
  if (comm == nullptr) return kNcclInvalidArgument;
  const std::scoped_lock lock(comm->mu);
  comm->aborted = true;
  comm->pair.reset();
  const std::scoped_lock state(NcclState().mu);
  NcclState().offered.erase(comm->name);
  return kNcclSuccess;
}

NcclResult ncclGroupStart() {
  ++MyGroup().depth;
  return kNcclSuccess;
}

NcclResult ncclGroupEnd() {
  Group& group = MyGroup();
  if (group.depth == 0) return Complain(kNcclInvalidUsage, "the end of a group that never began");
  if (--group.depth > 0 || group.calls.empty()) return kNcclSuccess;
  for (auto& [comm, calls] : group.calls) {
    const std::scoped_lock lock(comm->mu);
    comm->group = {};
    comm->calls = std::move(calls);
    comm->looks = 0;
  }
  group.calls.clear();
  return kNcclInProgress;
}

NcclResult ncclSend(const void* from, size_t count, int type, int peer, NcclComm comm,
                    CUstream_st* stream) {
  return Transfer("ncclSend", {reinterpret_cast<uint64_t>(from), count, true, stream}, type, peer,
                  comm);
}

NcclResult ncclRecv(void* to, size_t count, int type, int peer, NcclComm comm,
                    CUstream_st* stream) {
  return Transfer("ncclRecv", {reinterpret_cast<uint64_t>(to), count, false, stream}, type, peer,
                  comm);
}

}  // extern "C"
