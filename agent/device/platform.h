// The backend of a process: the only place that knows backends by name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "agent/device/device.h"
#include "agent/device/queue.h"
#include "agent/device/wire.h"

namespace tangram::device {

// A device for each purpose of a rank. Weights and KV are in the platform's memory, control is
// always in the host's: agent and engine both write and read it.
struct RankDevices {
  std::unique_ptr<Device> weights;  // other processes map it for reading
  std::unique_ptr<Device> kv;       // other processes map it for writing, like control
  std::unique_ptr<Device> control;
};

struct RankBytes {
  uint64_t weights = 0, kv = 0, control = 0;
};

// Descriptors of a rank that an engine kept. For weights those of the memory that it had mapped;
// for the others all, in order.
struct RankDescriptors {
  std::vector<int> weights, kv, control;
};

// The kind of memory, for people and for metrics.
struct PlatformInfo {
  std::string platform, pages;
  // For a GPU: its name, its compute capability ("9.0"), and its driver's CUDA version.
  std::string device, capability, driver;
};

class Platform {
 public:
  virtual ~Platform() = default;
  virtual const char* name() const = 0;
  // The unit in which weights and KV are mapped, in bytes.
  virtual uint64_t granularity() const = 0;
  // Kind of its pages, for people.
  virtual std::string pages() const = 0;
  virtual PlatformInfo info() const { return {name(), pages(), "", "", ""}; }
  // An error: this process can no longer use its memory and must end.
  virtual Status Health() const { return OkStatus(); }
  // Pages come from the pod's pool of huge pages: importers set that in their options.
  virtual bool hugetlb() const { return false; }
  // New memory for a rank. `rank` names it where the system shows names.
  virtual Result<RankDevices> Make(const std::string& rank, const RankBytes& bytes) const = 0;
  // Memory that a dead agent created and an engine kept. Weights that the engine did not keep ended
  // with that process, and are created again.
  virtual Result<RankDevices> Adopt(const std::string& rank, const RankDescriptors& descriptors,
                                    const RankBytes& bytes) const = 0;
  // Devices without memory, for an engine.
  virtual RankDevices Importers() const = 0;
  // A communication library that reaches other processes' memory of this platform. kInvalid: there
  // is none of this name here, or none that is usable, with the reason.
  virtual Result<std::unique_ptr<Wires>> OpenWires(const WireOptions& options) const;
  // Ordered work on its device. `stream`: the caller's, of the platform's type (a CUstream); null:
  // a new one. kInvalid: nothing can run there.
  virtual Result<std::unique_ptr<Queue>> OpenQueue(void* stream = nullptr) const;
  // The domain from which other machines reach its device's memory (Member.nvlink_domain); empty:
  // none, or unknown.
  virtual std::string fabric() const { return ""; }
};

struct PlatformOptions {
  std::string name = "host";
  // Weights and KV are mapped in multiples of this (the geometry's page_bytes).
  uint64_t map_bytes = 4096;
  bool hugetlb = false;  // the pod was given huge pages
  // For `cuda`: the GPU's index among those that the process may use, and the driver, by a name
  // that the loader finds or by a path.
  int ordinal = 0;
  std::string driver = "libcuda.so.1";
  std::string management = "libnvidia-ml.so.1";  // likewise; missing data is left unknown
  // The host's weights and KV have this many bytes per descriptor, a multiple of map_bytes, like
  // devices with memory in handles; 0: one descriptor.
  uint64_t descriptor_bytes = 0;
  // Allows platforms with sizes and no bytes: for tests and benches of real sizes. They cannot
  // serve.
  bool sizes_only = false;
};

// kInvalid: there is no such platform (the message lists them), this machine lacks a requirement,
// or it does not map in such multiples.
Result<std::unique_ptr<Platform>> MakePlatform(const PlatformOptions& options);

}  // namespace tangram::device
