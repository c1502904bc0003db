// libfakeucp.so: contexts and workers of UCX. A context lists the interfaces at its creation, like
// a real one. It moves no bytes.
#include "agent/device/testing/fake_ucp.h"

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstring>

// What the library's handles point to.
struct ucp_context {
  uint64_t interfaces;
};
struct ucp_worker {
  ucp_context_h context;
};

namespace tangram::device::testing {
namespace {

constexpr char kAddress[] = "the address of a worker";

std::atomic<uint64_t> interfaces{0};  // grows with every change
std::atomic<uint64_t> made{0}, contexts_alive{0}, workers_alive{0};
std::atomic<bool> change_for_ever{false}, fail_next_worker{false};

}  // namespace

void FakeUcp::Reset() {
  made = 0;
  change_for_ever = fail_next_worker = false;
}
void FakeUcp::ChangeInterfaces() { ++interfaces; }
void FakeUcp::ChangeInterfacesForEver() { change_for_ever = true; }
void FakeUcp::FailNextWorker() { fail_next_worker = true; }
uint64_t FakeUcp::contexts_made() { return made; }
uint64_t FakeUcp::contexts() { return contexts_alive; }
uint64_t FakeUcp::workers() { return workers_alive; }

}  // namespace tangram::device::testing

namespace fake = tangram::device::testing;

extern "C" {

void ucp_get_version(unsigned* major, unsigned* minor, unsigned* release) {
  *major = UCP_API_MAJOR;
  *minor = UCP_API_MINOR;
  *release = 0;
}

ucs_status_t ucp_init_version(unsigned, unsigned, const ucp_params_t*, const ucp_config_t*,
                              ucp_context_h* context) {
  *context = new ucp_context{fake::interfaces};
  ++fake::made;
  ++fake::contexts_alive;
  return UCS_OK;
}

void ucp_cleanup(ucp_context_h context) {
  delete context;
  --fake::contexts_alive;
}

ucs_status_t ucp_context_query(ucp_context_h, ucp_context_attr_t* attributes) {
  attributes->memory_types = uint64_t{1} << UCS_MEMORY_TYPE_HOST;
  return UCS_OK;
}

ucs_status_t ucp_worker_create(ucp_context_h context, const ucp_worker_params_t*,
                               ucp_worker_h* worker) {
  if (fake::fail_next_worker.exchange(false)) return UCS_ERR_NO_MEMORY;
  if (fake::change_for_ever) ++fake::interfaces;
  if (context->interfaces != fake::interfaces) return UCS_ERR_NO_DEVICE;
  *worker = new ucp_worker{context};
  ++fake::workers_alive;
  return UCS_OK;
}

void ucp_worker_destroy(ucp_worker_h worker) {
  delete worker;
  --fake::workers_alive;
}

ucs_status_t ucp_worker_get_address(ucp_worker_h, ucp_address_t** address, size_t* bytes) {
  *address = reinterpret_cast<ucp_address_t*>(const_cast<char*>(fake::kAddress));
  *bytes = sizeof fake::kAddress - 1;
  return UCS_OK;
}

void ucp_worker_release_address(ucp_worker_h, ucp_address_t*) {}

unsigned ucp_worker_progress(ucp_worker_h) { return 0; }

ucs_status_t ucp_ep_create(ucp_worker_h, const ucp_ep_params_t*, ucp_ep_h*) {
  return UCS_ERR_UNREACHABLE;
}

ucs_status_ptr_t ucp_ep_close_nbx(ucp_ep_h, const ucp_request_param_t*) { return nullptr; }

ucs_status_ptr_t ucp_tag_send_nbx(ucp_ep_h, const void*, size_t, ucp_tag_t,
                                  const ucp_request_param_t*) {
  return nullptr;
}

ucs_status_ptr_t ucp_tag_recv_nbx(ucp_worker_h, void*, size_t, ucp_tag_t, ucp_tag_t,
                                  const ucp_request_param_t*) {
  return nullptr;
}

ucs_status_t ucp_request_check_status(void*) { return UCS_OK; }

void ucp_request_cancel(ucp_worker_h, void*) {}

void ucp_request_free(void*) {}

const char* ucs_status_string(ucs_status_t status) {
  return status == UCS_ERR_NO_DEVICE ? "No such device" : "Out of memory";
}

}  // extern "C"
