#include "agent/device/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace tangram::device {
namespace {

// Before 2.9 the minor version had one digit less; all of those are too old.
std::string Words(int version) {
  if (version < 10000) {
    return fmt::format("{}.{}.{}", version / 1000, version % 1000 / 100, version % 100);
  }
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

Status TooOld(const std::string& path, const std::string& why) {
  return {Code::kInvalid, fmt::format("nccl: {} is too old: {}; NCCL {} or newer is needed", path,
                                      why, Words(NcclLibrary::kVersion))};
}

}  // namespace

Status NcclLibrary::Resolve(void* library, const std::string& path) {
  const auto get = [&](const char* name, auto* function) -> Status {
    void* const found = dlsym(library, name);
    if (found == nullptr) return TooOld(path, fmt::format("it has no {}", name));
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(found);
    return OkStatus();
  };
  TANGRAM_RETURN_IF_ERROR(get("ncclGetVersion", &GetVersion));
  int version = 0;
  if (const NcclResult got = GetVersion(&version); got != kNcclSuccess) {
    return {Code::kInvalid,
            fmt::format("nccl: {} does not report its version ({})", path, static_cast<int>(got))};
  }
  version_ = Words(version);
  if (version < kVersion) return TooOld(path, "it is " + version_);
  TANGRAM_RETURN_IF_ERROR(get("ncclGetErrorString", &GetErrorString));
  TANGRAM_RETURN_IF_ERROR(get("ncclGetLastError", &GetLastError));
  TANGRAM_RETURN_IF_ERROR(get("ncclGetUniqueId", &GetUniqueId));
  TANGRAM_RETURN_IF_ERROR(get("ncclCommInitRankConfig", &CommInitRankConfig));
  TANGRAM_RETURN_IF_ERROR(get("ncclCommGetAsyncError", &CommGetAsyncError));
  TANGRAM_RETURN_IF_ERROR(get("ncclCommAbort", &CommAbort));
  TANGRAM_RETURN_IF_ERROR(get("ncclGroupStart", &GroupStart));
  TANGRAM_RETURN_IF_ERROR(get("ncclGroupEnd", &GroupEnd));
  TANGRAM_RETURN_IF_ERROR(get("ncclSend", &Send));
  return get("ncclRecv", &Recv);
}

Result<std::shared_ptr<const NcclLibrary>> NcclLibrary::Load(const std::string& library) {
  void* const opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    const char* why = dlerror();
    return Status(Code::kInvalid,
                  fmt::format("nccl: library not found ({}); NCCL {} or newer is required",
                              why != nullptr ? why : library, Words(kVersion)));
  }
  std::shared_ptr<NcclLibrary> out(new NcclLibrary);
  TANGRAM_RETURN_IF_ERROR(out->Resolve(opened, library));
  return std::shared_ptr<const NcclLibrary>(std::move(out));
}

Status NcclLibrary::Check(NcclResult result, const std::string& what) const {
  if (result == kNcclSuccess || result == kNcclInProgress) return OkStatus();
  const char* text = GetErrorString(result);
  const char* last = GetLastError(nullptr);
  return {Code::kUnavailable,
          fmt::format("nccl: {}: {} ({}){}{}", what, text != nullptr ? text : "an unknown error",
                      static_cast<int>(result), last != nullptr && *last != 0 ? "; last: " : "",
                      last != nullptr ? last : "")};
}

}  // namespace tangram::device
