// The NCCL that this process found: entry points by name, nothing linked. Its header is not used,
// because it would require CUDA's runtime. The declarations here are the used part of its public
// interface (nccl.h); tests compare them with that header if it is installed.
#pragma once

#include <climits>
#include <cstddef>
#include <memory>
#include <string>

#include "agent/base/status.h"

struct CUstream_st;

namespace tangram::device {

using NcclComm = struct ncclComm*;

struct NcclId {
  char bytes[128];
};

enum NcclResult : int {
  kNcclSuccess = 0,
  kNcclUnhandledCudaError = 1,
  kNcclSystemError = 2,
  kNcclInternalError = 3,
  kNcclInvalidArgument = 4,
  kNcclInvalidUsage = 5,
  kNcclRemoteError = 6,
  kNcclInProgress = 7,
};

// As of NCCL 2.18: `version` says so, and newer libraries treat their later fields as not set.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = INT_MIN;  // INT_MIN: not set
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN, max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

constexpr int kNcclBytes = 1;  // ncclUint8

class NcclLibrary {
 public:
  // The oldest version with all used functions, as NCCL counts since 2.9: 10000 major + 100 minor +
  // patch.
  static constexpr int kVersion = 21800;
  static constexpr const char* kName = "libnccl.so.2";

  // Opens a library (a name that the loader finds, or a path). kInvalid, in one line: there is
  // none, or it is too old, with both versions. It is never closed: it has its own threads.
  static Result<std::shared_ptr<const NcclLibrary>> Load(const std::string& library);

  // "2.28.9"
  const std::string& version() const { return version_; }
  // The error of a failed call, with NCCL's text; `what` describes the call. kUnavailable: either
  // end may be at fault, and another transport may work.
  Status Check(NcclResult result, const std::string& what) const;

  NcclResult (*GetUniqueId)(NcclId* id) = nullptr;
  NcclResult (*CommInitRankConfig)(NcclComm* comm, int ranks, NcclId id, int rank,
                                   NcclConfig* config) = nullptr;
  NcclResult (*CommGetAsyncError)(NcclComm comm, NcclResult* error) = nullptr;
  NcclResult (*CommAbort)(NcclComm comm) = nullptr;
  NcclResult (*GroupStart)() = nullptr;
  NcclResult (*GroupEnd)() = nullptr;
  NcclResult (*Send)(const void* from, size_t count, int type, int peer, NcclComm comm,
                     CUstream_st* stream) = nullptr;
  NcclResult (*Recv)(void* to, size_t count, int type, int peer, NcclComm comm,
                     CUstream_st* stream) = nullptr;

 private:
  NcclLibrary() = default;
  Status Resolve(void* library, const std::string& path);

  NcclResult (*GetVersion)(int* version) = nullptr;
  const char* (*GetErrorString)(NcclResult result) = nullptr;
  const char* (*GetLastError)(NcclComm comm) = nullptr;
  std::string version_;
};

}  // namespace tangram::device
