// The recording driver: memory as descriptors, for other processes.
//
// The driver's descriptors have no size that can be queried, cannot be read or mapped, and keep the
// memory alive. One end of a socket has these properties if the memfd is in its buffer. An importer
// peeks at the message (MSG_PEEK), which gives it a descriptor of the memory and leaves the
// message.
#include <fmt/format.h>
#include <sys/socket.h>

#include <cstring>
#include <utility>

#include "agent/device/testing/fake_cuda_state.h"

using namespace tangram::device::testing;

namespace {

struct Note {
  char magic[8] = {'f', 'a', 'k', 'e', 'c', 'u', 'd', 'a'};
  uint64_t bytes = 0;
};

union Control {
  char bytes[CMSG_SPACE(sizeof(int))];
  cmsghdr align;
};

msghdr Message(iovec* part, Control* control) {
  msghdr out{};
  out.msg_iov = part;
  out.msg_iovlen = 1;
  out.msg_control = control->bytes;
  out.msg_controllen = sizeof control->bytes;
  return out;
}

}  // namespace

CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  Call call("cuMemExportToShareableHandle");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  const auto it = State().handles.find(handle);
  if (it == State().handles.end() || flags != 0 ||
      type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE, "no such handle, or no such kind of descriptor");
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;  // out of descriptors
  }
  const tangram::UniqueFd sender(ends[0]);
  tangram::UniqueFd shown(ends[1]);
  Note note;
  note.bytes = it->second->bytes();
  iovec part{&note, sizeof note};
  Control control{};
  msghdr message = Message(&part, &control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int memory = it->second->memory();
  std::memcpy(CMSG_DATA(header), &memory, sizeof memory);
  if (sendmsg(sender.get(), &message, MSG_NOSIGNAL) != sizeof note) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *static_cast<int*>(out) = shown.release();
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* from,
                                        CUmemAllocationHandleType type) {
  Call call("cuMemImportFromShareableHandle");
  if (call.failure() != CUDA_SUCCESS) return call.failure();
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return call.Refuse(CUDA_ERROR_INVALID_VALUE, "a kind of descriptor that was not recorded");
  }
  Note note;
  iovec part{&note, sizeof note};
  Control control{};
  msghdr message = Message(&part, &control);
  const int descriptor = static_cast<int>(reinterpret_cast<intptr_t>(from));
  const ssize_t got = recvmsg(descriptor, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  int memory = -1;
  if (const cmsghdr* header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
      header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&memory, CMSG_DATA(header), sizeof memory);
  }
  tangram::UniqueFd there(memory);
  if (!there || got != sizeof note ||
      std::memcmp(note.magic, Note{}.magic, sizeof note.magic) != 0) {
    return CUDA_ERROR_INVALID_VALUE;  // a caller may pass any descriptor
  }
  auto physical = Physical::Import(std::move(there), note.bytes);
  if (physical == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = State().next++;
  State().handles[*handle] = std::move(physical);
  return CUDA_SUCCESS;
}
