// Which backend a process is on: the one place that knows them by name.
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
  std::unique_ptr<Device> weights;  // others map it for reading
  std::unique_ptr<Device> kv;       // others map it for writing, as control
  std::unique_ptr<Device> control;
};

struct RankBytes {
  uint64_t weights = 0, kv = 0, control = 0;
};

// What an engine kept of a rank. Of the weights it has what it had mapped; of the others all, in
// order.
struct RankDescriptors {
  std::vector<int> weights, kv, control;
};

// Which memory it is, for people and for metrics.
struct PlatformInfo {
  std::string platform, pages;
  // Of a GPU: its name, what it can compute ("9.0"), and of which CUDA version its driver is.
  std::string device, capability, driver;
};

class Platform {
 public:
  virtual ~Platform() = default;
  virtual const char* name() const = 0;
  // The unit in which weights and KV are mapped, in bytes.
  virtual uint64_t granularity() const = 0;
  // What its pages are, for people.
  virtual std::string pages() const = 0;
  virtual PlatformInfo info() const { return {name(), pages(), "", "", ""}; }
  // An error: its memory cannot be used by this process any more, which must end.
  virtual Status Health() const { return OkStatus(); }
  // They come from the pod's pool of huge pages: who imports them says so in its options.
  virtual bool hugetlb() const { return false; }
  // Memory of its own for a rank. `rank` names it where the system shows names.
  virtual Result<RankDevices> Make(const std::string& rank, const RankBytes& bytes) const = 0;
  // Memory that a process of ours made and an engine kept. What the engine did not keep of the
  // weights died with that process, and is made anew.
  virtual Result<RankDevices> Adopt(const std::string& rank, const RankDescriptors& descriptors,
                                    const RankBytes& bytes) const = 0;
  // Devices without memory of their own: an engine's.
  virtual RankDevices Importers() const = 0;
  // A communication library that reaches other processes' memory of this platform. kInvalid: there
  // is none of this name here, or none that could be used, and why.
  virtual Result<std::unique_ptr<Wires>> OpenWires(const WireOptions& options) const;
  // Work on its device in order. `stream`: one that the caller has and keeps, as the platform knows
  // them (a CUstream); null: one of its own. kInvalid: nothing runs there.
  virtual Result<std::unique_ptr<Queue>> OpenQueue(void* stream = nullptr) const;
  // What reaches the memory of its device beyond this machine (Member.nvlink_domain); empty:
  // nothing, or nobody says so.
  virtual std::string fabric() const { return ""; }
};

struct PlatformOptions {
  std::string name = "host";
  // Weights and KV are mapped in multiples of this (the geometry's page_bytes).
  uint64_t map_bytes = 4096;
  bool hugetlb = false;  // the pod was given huge pages
  // Of `cuda`: which of the GPUs that the process may use, and its driver, by a name that the
  // loader finds or by a path.
  int ordinal = 0;
  std::string driver = "libcuda.so.1";
  std::string management = "libnvidia-ml.so.1";  // likewise; what it does not tell is not known
  // The host's weights and KV are memory of so many bytes a descriptor, in multiples of map_bytes,
  // as devices have whose memory comes in handles; 0: all in one.
  uint64_t descriptor_bytes = 0;
  // Also platforms that have sizes and no bytes: for tests and benches of real sizes. Nobody can
  // be served from them.
  bool sizes_only = false;
};

// kInvalid: there is no such platform (the message lists what there is), this machine has not what
// it needs, or it does not map in such multiples.
Result<std::unique_ptr<Platform>> MakePlatform(const PlatformOptions& options);

}  // namespace tangram::device
