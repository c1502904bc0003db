// Fetches the ranges of a job from its sources. It does not know what the ranges are or how a
// source fetches them. It decides when each source is queried for which ranges, and which source
// replaces one that fails or sends wrong bytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "agent/device/memory.h"

namespace tangram::mover {

// The unit of a request; it arrives as a whole.
struct Range {
  std::vector<device::Memory> units;  // destinations, in order; each is hashed separately
  std::vector<uint32_t> sources;      // of the job, in the order in which they are queried
  uint64_t bytes() const;
};

// A source of bytes.
class Source {
 public:
  // Called when a range has arrived and was verified; with its units' hashes, in order.
  using Arrived = std::function<void(size_t range, std::vector<uint64_t> hashes)>;

  virtual ~Source() = default;
  virtual std::string name() const = 0;  // for messages
  // Maximum concurrent calls.
  virtual size_t lanes() const { return 1; }
  // Fetches ranges of the job, by index, and reports each immediately. Ranges that arrived before a
  // failure stay. kNotHeld: not yet; the same source is queried again, or the next, if another had
  // failed before. kUnavailable, kCorrupt: another source is tried. Any other error ends the job.
  virtual Status Bring(std::span<const Range> job, std::span<const size_t> wanted,
                       const Arrived& arrived, const std::stop_token& stop) = 0;
};

struct Limits {
  size_t workers = 2;  // concurrent calls
  // Maximum per call, unless one range is larger: a call costs both sides a token over gRPC.
  uint64_t batch_bytes = 256 << 20;
  // Failures of a source after which this job does not query it again. Calls that were in progress
  // when one failed count as the same failure.
  int failures = 2;
  std::chrono::milliseconds ask_again{20};
  // Pause after a failure of a source: longer than gRPC takes to connect again (100 ms), since
  // until then every call fails for the same reason.
  std::chrono::milliseconds after_failure{200};
  // Maximum share of its time that a worker may work; it sleeps the rest (pacer.h). None: all of
  // it.
  std::function<double()> share;
  bool yields = true;  // workers take the time that serving leaves; false if serving waits for them
};

// Called when a range has arrived, with the source that had it.
using Came =
    std::function<void(const Source& source, size_t range, const std::vector<uint64_t>& hashes)>;

// Fetches all ranges, each once. Earlier sources are queried first, so put near ones, and those
// that others wait for, first. Blocks; workers call `came`, and `failed` for each failed call. The
// error is that of the first range that no source had, with the errors of all its sources; `stop`
// ends it with kUnavailable.
Status Bring(std::span<const Range> job, std::span<Source* const> sources, const Limits& limits,
             const Came& came, const std::function<void(const Source&, const Status&)>& failed,
             std::stop_token stop);

}  // namespace tangram::mover
