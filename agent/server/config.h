// The agent's configuration file. Strict: unknown content is an error.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "agent/net/credentials.h"
#include "tangram/v1/layout.pb.h"

namespace tangram {

struct AgentConfig {
  std::string world, pod, pod_uid, node;
  uint64_t incarnation = 0;  // 0: from the clock
  uint32_t ranks = 1;
  uint64_t memory_bytes = 0;  // per rank, for experts and dense weights
  uint64_t kv_bytes = 0;      // per rank
  uint32_t spare_banks = 1;
  uint32_t granule_rows = 0;  // 0: layout::DefaultGranuleRows
  v1::SlabFormat slab_format = v1::SLAB_FORMAT_GRANULE_MAJOR;
  uint32_t load_threads = 2;       // that read the checkpoint concurrently, per rank
  uint32_t staging_percent = 100;  // of time in which a worker moves bytes while engines serve
  uint32_t max_step_stretch_percent = 0;  // how much longer copies may make steps; 0: no bound
  std::string device = "host";            // platform of the memory (agent/device/platform.h)
  uint32_t device_ordinal = 0;  // GPU index among those that the process may use; cuda only
  std::string cuda_driver = "libcuda.so.1";  // cuda only: a name that the loader finds, or a path
  uint64_t page_bytes = 4096;     // of the world's geometry: memory is mapped in multiples of it
  bool hugetlb = false;           // the pod has huge pages (page_bytes a multiple of their size)
  bool sizes_only = false;        // a flag of the process, not a key of the file: platform `ghost`
  uint64_t descriptor_bytes = 0;  // the same (agent/device/platform.h)
  std::string checkpoint, revision;
  std::string listen, data_listen, advertise, metrics_listen;  // host:port; advertise: host
  std::string engine_socket, engine_token_file, ready_file, in_world_file;
  std::string hashes_file;  // per device: this, "-" and its number
  std::string
      node_socket_dir;  // that pods of this node share, for memory they may map; empty: none
  std::string link = "tcp";
  // Of its GPUs and its NIC, as in Member; empty: the driver's value, or none.
  std::string nvlink_domain, rail;
  // Communication library between agents: "nccl", "ucx", "none", or "auto" (the platform's, if it
  // is installed). comm_library_path: its path, if the loader does not find it.
  std::string comm_library = "auto", comm_library_path;
  net::TlsFiles tls;
  bool insecure_fabric = false;  // the data port speaks plain TCP with any client that reaches it
  // Maximum wait of an abort for an engine that has voted. Not a key of the file, only for tests.
  std::chrono::milliseconds abort_wait{10'000};
  std::string log_level = "info";
  bool log_json = true;
};

// "key=value" for top-level keys; each replaces the file's value.
using Overrides = std::vector<std::string>;

// kInvalid names the file, the line and the key. `text`: content of the file.
Result<AgentConfig> ParseConfig(const std::string& text, const std::string& file,
                                const Overrides& overrides = {});
Result<AgentConfig> LoadConfig(const std::string& file, const Overrides& overrides = {});

}  // namespace tangram
